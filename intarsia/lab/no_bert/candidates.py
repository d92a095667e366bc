"""What is tried, and in which order: ways of reading texts, and models with their options."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from intarsia.tasks.examples import TaskData

View = Literal["word", "char"]
LONGEST: dict[View, int] = {"word": 2, "char": 5}  # the longest n-grams that are counted
DENSE = ("RBF SVM", "boosted trees", "MLP")  # models that read components instead of n-grams
COUNTING = ("NB-SVM", "multinomial NB", "complement NB")  # models that read n-grams alone, never below 0
MANY_ROWS = 10_000  # too many for kernels, whose cost grows with their square
MANY_LABELS = 20  # too many for boosted trees, and for logistic regression in one piece
EXHAUSTED = 200  # so many draws in a row that were there before: all has been tried


@dataclass(frozen=True)
class Features:
    """How texts become numbers. The two texts of a pair are read alike, and their rows combined."""

    views: tuple[View, ...]
    weighting: Literal["tf-idf", "log counts", "binary"] = "tf-idf"
    longest: tuple[int, ...] = ()  # n-grams of each view; empty: all that are counted
    least: int = 1  # texts that an n-gram must occur in
    components: int = 0  # of a singular value decomposition; 0: none
    pairing: Literal["", "sides", "shared"] = ""  # side by side, or what both texts have and what one of them has
    overlap: bool = False  # measures of overlap, beside the n-grams or alone

    def __str__(self) -> str:
        longest = self.longest or tuple(LONGEST[view] for view in self.views)
        names = [v if n == LONGEST[v] else f"{v}(≤{n})" for v, n in zip(self.views, longest, strict=True)]
        parts = [f"{'+'.join(names)} {self.weighting}"] if names else []
        parts += [f"in ≥{self.least} texts"] if self.least > 1 else []
        parts += [f"SVD-{self.components}"] if self.components else []
        parts += [self.pairing] if self.pairing else []
        return " + ".join([" ".join(parts)] * bool(parts) + ["overlap"] * self.overlap)


@dataclass(frozen=True)
class Candidate:
    features: Features
    model: str
    options: tuple[tuple[str, Any], ...] = ()  # as scikit-learn names them

    def __str__(self) -> str:
        options = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.options]
        return f"{self.features}, {' '.join([self.model, *options])}"

    def to_dict(self) -> dict[str, Any]:
        features = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self.features).items()}
        return {"name": str(self), "features": features, "model": self.model, "options": dict(self.options)}


def plan(data: TaskData, seed: int) -> Iterator[Candidate]:
    """Candidates without end: first what is cheap and usually good, then random draws, none of them twice."""
    usual = _usual(data)
    yield from usual
    seen = set(usual)
    generator = random.Random(seed)
    repeated = 0
    while repeated < EXHAUSTED:
        candidate = _drawn(generator, data)
        repeated = repeated + 1 if candidate in seen else 0
        if not repeated:
            seen.add(candidate)
            yield candidate


def _usual(data: TaskData) -> list[Candidate]:
    def usual(views: Sequence[View], model: str, weighting: str = "tf-idf", **options: Any) -> None:
        components = 100 if model in DENSE and views else 0
        made.append(_candidate(data, views, model, options, weighting=weighting, components=components))

    made: list[Candidate] = []
    trees: dict[str, Any] = {"max_iter": 100, "learning_rate": 0.05, "max_leaf_nodes": 15}
    network: dict[str, Any] = {"hidden_layer_sizes": 64, "alpha": 10.0, "learning_rate_init": 1e-3, "max_iter": 20}
    both: tuple[View, ...] = ("word", "char")
    if data.kind == "score":
        usual(("word",), "ridge", alpha=1.0)
        if data.pairs:
            usual((), "ridge", alpha=1.0)
            usual((), "boosted trees", **trees)
        usual(both, "ridge", alpha=1.0)
        usual(("char",), "ridge", alpha=1.0)
        usual(("word",), "linear SVM", C=0.1)
    else:
        usual(("word",), "logistic regression", C=4.0)
        if data.pairs:
            usual((), "logistic regression", C=1.0)
            usual((), "boosted trees", **trees)
        usual(("word",), "multinomial NB", "log counts", alpha=0.5)
        usual(("word",), "NB-SVM", "binary", C=0.1)
        usual(both, "linear SVM", C=0.3)
        usual(both, "NB-SVM", "binary", C=0.1)
        usual(("char",), "linear SVM", C=0.3)
        usual(both, "ridge", alpha=1.0)
        usual(("word",), "SGD", alpha=1e-4)
        usual(("word",), "complement NB", "log counts", alpha=0.5)
        usual(both, "logistic regression", C=4.0)
    if len(data.train) <= MANY_ROWS:
        usual(both, "RBF SVM", C=1.0)
    usual(both, "MLP", **network)
    if len(data.labels) <= MANY_LABELS:
        usual(both, "boosted trees", **trees)
    return made


def _drawn(generator: random.Random, data: TaskData) -> Candidate:
    def between(low: float, high: float) -> float:
        """Log-uniform, to two digits."""
        return float(f"{math.exp(generator.uniform(math.log(low), math.log(high))):.2g}")

    names = ["ridge", "linear SVM", "MLP"]
    names += ["boosted trees"] if len(data.labels) <= MANY_LABELS else []
    names += ["RBF SVM"] if len(data.train) <= MANY_ROWS else []
    if data.kind != "score":
        names += ["logistic regression", "logistic regression", "linear SVM", "NB-SVM", "NB-SVM", "SGD"]
        names += ["multinomial NB", "complement NB"]
    model = generator.choice(names)
    options: dict[str, Any] = {}
    if model in ("logistic regression", "linear SVM", "NB-SVM", "RBF SVM"):
        options["C"] = between(0.1, 30) if model in ("logistic regression", "RBF SVM") else between(0.005, 3)
    elif model == "MLP":
        options = {
            "hidden_layer_sizes": generator.choice([16, 32, 64, 128]),
            "alpha": between(0.01, 30),
            "learning_rate_init": between(3e-4, 3e-3),
            "max_iter": generator.choice([5, 10, 20, 40]),
        }
    elif model == "boosted trees":
        options = {
            "max_iter": generator.choice([50, 100, 200]),
            "learning_rate": between(0.02, 0.2),
            "max_leaf_nodes": generator.choice([4, 8, 15, 31]),
            "l2_regularization": between(1e-3, 10),
        }
    else:
        options["alpha"] = {"ridge": between(0.1, 30), "SGD": between(1e-5, 1e-3)}.get(model, between(0.03, 3))
    weighable = data.kind != "score" and model not in ("MLP", "multinomial NB", "complement NB")
    if weighable and generator.random() < 0.25:
        options["class_weight"] = "balanced"

    views: tuple[View, ...] = generator.choice((("word",), ("char",), ("word", "char"), ("word", "char")))
    if data.pairs and model not in COUNTING and generator.random() < 0.2:
        return _candidate(data, (), model, options)
    weighting = "binary" if model == "NB-SVM" else "tf-idf"
    if model in ("multinomial NB", "complement NB"):
        weighting = generator.choice(["tf-idf", "log counts", "binary"])
    return _candidate(
        data,
        views,
        model,
        options,
        weighting=weighting,
        components=generator.choice([50, 100, 200, 300]) if model in DENSE else 0,
        longest=tuple(generator.choice([1, 2] if view == "word" else [3, 4, 5]) for view in views),
        least=generator.choice([1, 1, 2, 3]),
        pairing=generator.choice(["sides", "shared", "shared"]),
    )


def _candidate(
    data: TaskData, views: Sequence[View], model: str, options: dict[str, Any], **features: Any
) -> Candidate:
    """A candidate in its one spelling, so that equal ones are known as such."""
    if not views:
        return Candidate(Features((), overlap=True), model, tuple(options.items()))
    features["pairing"] = features.get("pairing", "shared") if data.pairs else ""
    features["overlap"] = data.pairs and model not in COUNTING
    if features.get("longest") == tuple(LONGEST[view] for view in views):
        features["longest"] = ()
    return Candidate(Features(tuple(views), **features), model, tuple(options.items()))
