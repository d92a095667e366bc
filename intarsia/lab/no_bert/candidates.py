"""The candidates of the search and their order: feature settings, and models with their options."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from intarsia.tasks.examples import TaskData

View = Literal["word", "char"]
MAX_NGRAM: dict[View, int] = {"word": 2, "char": 5}  # the longest counted n-gram of each view
DENSE_MODELS = ("RBF SVM", "boosted trees", "MLP")  # their input is SVD components, not n-grams
COUNT_MODELS = ("NB-SVM", "multinomial NB", "complement NB")  # their input is n-grams only, because it must be ≥ 0
MANY_ROWS = 10_000  # too many for kernel models, whose cost is quadratic in the rows
MANY_LABELS = 20  # too many for boosted trees and for multinomial logistic regression
MAX_REPEATED_DRAWS = 200  # after this many known candidates in a row, the search space is exhausted


@dataclass(frozen=True)
class TextFeatures:
    """How texts become numbers. Both texts of a pair use the same features, and their rows are combined."""

    views: tuple[View, ...]
    weighting: Literal["tf-idf", "log counts", "binary"] = "tf-idf"
    longest: tuple[int, ...] = ()  # maximum n-gram length of each view; empty: MAX_NGRAM
    least: int = 1  # minimum number of texts that contain an n-gram
    components: int = 0  # of a truncated SVD; 0: no SVD
    pairing: Literal["", "sides", "shared"] = ""  # concatenated, or product and absolute difference
    overlap: bool = False  # add overlap measures of the pair, or use only them

    def __str__(self) -> str:
        longest = self.longest or tuple(MAX_NGRAM[view] for view in self.views)
        names = [v if n == MAX_NGRAM[v] else f"{v}(≤{n})" for v, n in zip(self.views, longest, strict=True)]
        parts = [f"{'+'.join(names)} {self.weighting}"] if names else []
        parts += [f"in ≥{self.least} texts"] if self.least > 1 else []
        parts += [f"SVD-{self.components}"] if self.components else []
        parts += [self.pairing] if self.pairing else []
        return " + ".join([" ".join(parts)] * bool(parts) + ["overlap"] * self.overlap)


@dataclass(frozen=True)
class Candidate:
    features: TextFeatures
    model: str
    options: tuple[tuple[str, Any], ...] = ()  # scikit-learn's option names

    def __str__(self) -> str:
        options = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.options]
        return f"{self.features}, {' '.join([self.model, *options])}"

    def to_dict(self) -> dict[str, Any]:
        features = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self.features).items()}
        return {"name": str(self), "features": features, "model": self.model, "options": dict(self.options)}


def plan(data: TaskData, seed: int) -> Iterator[Candidate]:
    """Yield the default candidates, which are cheap and usually good, then random candidates without repetition."""
    defaults = _default_candidates(data)
    yield from defaults
    seen = set(defaults)
    generator = random.Random(seed)
    repeated = 0
    while repeated < MAX_REPEATED_DRAWS:
        candidate = _random_candidate(generator, data)
        repeated = repeated + 1 if candidate in seen else 0
        if not repeated:
            seen.add(candidate)
            yield candidate


def _default_candidates(data: TaskData) -> list[Candidate]:
    def add(views: Sequence[View], model: str, weighting: str = "tf-idf", **options: Any) -> None:
        components = 100 if model in DENSE_MODELS and views else 0
        found.append(_candidate(data, views, model, options, weighting=weighting, components=components))

    found: list[Candidate] = []
    trees: dict[str, Any] = {"max_iter": 100, "learning_rate": 0.05, "max_leaf_nodes": 15}
    network: dict[str, Any] = {"hidden_layer_sizes": 64, "alpha": 10.0, "learning_rate_init": 1e-3, "max_iter": 20}
    both: tuple[View, ...] = ("word", "char")
    if data.kind == "score":
        add(("word",), "ridge", alpha=1.0)
        if data.pairs:
            add((), "ridge", alpha=1.0)
            add((), "boosted trees", **trees)
        add(both, "ridge", alpha=1.0)
        add(("char",), "ridge", alpha=1.0)
        add(("word",), "linear SVM", C=0.1)
    else:
        add(("word",), "logistic regression", C=4.0)
        if data.pairs:
            add((), "logistic regression", C=1.0)
            add((), "boosted trees", **trees)
        add(("word",), "multinomial NB", "log counts", alpha=0.5)
        add(("word",), "NB-SVM", "binary", C=0.1)
        add(both, "linear SVM", C=0.3)
        add(both, "NB-SVM", "binary", C=0.1)
        add(("char",), "linear SVM", C=0.3)
        add(both, "ridge", alpha=1.0)
        add(("word",), "SGD", alpha=1e-4)
        add(("word",), "complement NB", "log counts", alpha=0.5)
        add(both, "logistic regression", C=4.0)
    if len(data.train) <= MANY_ROWS:
        add(both, "RBF SVM", C=1.0)
    add(both, "MLP", **network)
    if len(data.labels) <= MANY_LABELS:
        add(both, "boosted trees", **trees)
    return found


def _random_candidate(generator: random.Random, data: TaskData) -> Candidate:
    def between(low: float, high: float) -> float:
        """Return a log-uniform draw, rounded to two digits."""
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
    has_class_weight = data.kind != "score" and model not in ("MLP", "multinomial NB", "complement NB")
    if has_class_weight and generator.random() < 0.25:
        options["class_weight"] = "balanced"

    views: tuple[View, ...] = generator.choice((("word",), ("char",), ("word", "char"), ("word", "char")))
    if data.pairs and model not in COUNT_MODELS and generator.random() < 0.2:
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
        components=generator.choice([50, 100, 200, 300]) if model in DENSE_MODELS else 0,
        longest=tuple(generator.choice([1, 2] if view == "word" else [3, 4, 5]) for view in views),
        least=generator.choice([1, 1, 2, 3]),
        pairing=generator.choice(["sides", "shared", "shared"]),
    )


def _candidate(
    data: TaskData, views: Sequence[View], model: str, options: dict[str, Any], **features: Any
) -> Candidate:
    """Return a candidate in canonical form, so that equivalent candidates compare equal."""
    if not views:
        return Candidate(TextFeatures((), overlap=True), model, tuple(options.items()))
    features["pairing"] = features.get("pairing", "shared") if data.pairs else ""
    features["overlap"] = data.pairs and model not in COUNT_MODELS
    if features.get("longest") == tuple(MAX_NGRAM[view] for view in views):
        features["longest"] = ()
    return Candidate(TextFeatures(tuple(views), **features), model, tuple(options.items()))
