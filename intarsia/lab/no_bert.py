"""The no-BERT baseline: a search over models that use no pretrained transformer.

Houlsby et al. 2019 set such a search beside their adapters, to know whether the transformer helped at all. Here it is
n-grams of words and characters, read by linear models, naive Bayes, boosted trees and small networks of scikit-learn.
Every candidate is fitted on train and scored on dev; only the best of them is ever shown test.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from intarsia import __version__
from intarsia.console import seconds
from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import Example, Kind, TaskData
from intarsia.tasks.metrics import Interval, bootstrap, check_metric, default_metric, score

if TYPE_CHECKING:
    from intarsia.tasks.kinds import Answers

View = Literal["word", "char"]
LONGEST: dict[View, int] = {"word": 2, "char": 5}  # the longest n-grams that are counted
WORD = re.compile(r"\w+|[^\w\s]")  # unlike scikit-learn's, keeps punctuation and words of one letter
DENSE = ("RBF SVM", "boosted trees", "MLP")  # models that read components instead of n-grams
COUNTING = ("NB-SVM", "multinomial NB", "complement NB")  # models that read n-grams alone, never below 0
MOST_FEATURES = 100_000  # a view; the most frequent n-grams are kept
MANY_ROWS = 10_000  # too many for kernels, whose cost grows with their square
MANY_LABELS = 20  # too many for boosted trees, and for logistic regression in one piece
KEPT_READINGS = 3  # matrices are kept for so many ways of reading
HOPELESS = 30  # so many failures and no success: it is the data
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


@dataclass(frozen=True)
class Tried:
    """A candidate and what became of it: a score on dev, or the reason why it has none."""

    candidate: Candidate
    dev: float | None
    seconds: float
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**self.candidate.to_dict(), "dev": self.dev, "seconds": self.seconds, "problem": self.problem}


@dataclass(frozen=True)
class Progress:
    """What a watcher is told before each candidate; its text is for people."""

    done: int
    share: float  # of the budget, spent
    seconds_left: float | None  # unknown before the first candidate of a given number
    trying: Candidate
    metric: str
    best: Tried | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f"{seconds(self.seconds_left)} left · "
        best = "" if self.best is None else f"best {self.metric} {self.best.dev:.3f} · "
        return f"{self.done} tried · {left}{best}{self.trying}"


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Baseline:
    """The best candidate by dev, and how it did on test."""

    kind: Kind
    metric: str
    winner: Tried
    test: Interval
    test_examples: int
    parameters: dict[str, int]  # fitted numbers that a prediction needs: features, model, total
    tried: tuple[Tried, ...]  # in order, failed ones too
    seconds: float
    seed: int
    data: dict[str, Any]
    versions: dict[str, str]

    def best(self, count: int = 5) -> list[Tried]:
        """The best by dev; of equal ones the earlier, which is mostly the simpler."""
        return sorted((t for t in self.tried if t.dev is not None), key=lambda t: -(t.dev or 0.0))[:count]

    def summary(self) -> str:
        value, low, high = (100 * x for x in self.test)
        return (
            f"no pretrained transformer: {self.metric} {value:.1f} ({low:.1f}–{high:.1f}) on {self.test_examples:,} "
            f"test examples; {self.winner.candidate}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `metrics` as an inlay has them."""
        test = {**self.test._asdict(), "examples": self.test_examples}
        return {
            "kind": self.kind,
            "metrics": {"metric": self.metric, "dev": self.winner.dev, "test": test},
            "winner": self.winner.to_dict(),
            "parameters": self.parameters,
            "tried": [tried.to_dict() for tried in self.tried],
            "seconds": self.seconds,
            "seed": self.seed,
            "data": self.data,
            "versions": self.versions,
        }


def search(
    data: TaskData,
    minutes: float = 5.0,
    seed: int = 0,
    metric: str | None = None,
    watch: Watch | None = None,
    *,
    candidates: int | None = None,
) -> Baseline:
    """Try candidates until the minutes are spent, or the first `candidates` of them, and score the best on test.

    The order depends on the seed and on the kind and size of the data alone, so a number of candidates gives the same
    result on every run; minutes give as many as the machine is fast. A candidate that has begun is not cut short, at
    least one is fitted, and with minutes a perfect score on dev ends the search.
    """
    import sklearn

    from intarsia.tasks.kinds import Answers

    metric = metric or default_metric(data.kind, data.labels)
    check_metric(metric, data.kind, data.labels)
    if not minutes >= 0 or (candidates is not None and candidates < 1):
        raise IntarsiaError(f"minutes={minutes}, candidates={candidates} leave nothing to try. Expected more than 0.")
    answers = Answers.learn(data.kind, data.labels, data.train)
    gold = answers.gold(data.dev)
    corpus = Corpus(data, seed)
    began = monotonic()
    tried: list[Tried] = []
    best: tuple[float, Tried, Fitted] | None = None
    for candidate in plan(data, seed):
        spent = monotonic() - began
        left: float | None = max(0.0, 60 * minutes - spent)
        share = min(1.0, spent / (60 * minutes)) if minutes else 1.0
        if candidates is not None:
            share = len(tried) / candidates
            left = spent * (candidates / len(tried) - 1) if tried else None
        if best is not None and (share >= 1 or (candidates is None and best[0] == 1)):
            break
        if best is None and len(tried) >= max(HOPELESS, candidates or 0):
            break
        if watch is not None:
            watch(Progress(len(tried), share, left, candidate, metric, best[1] if best else None))
        start = monotonic()
        try:
            with _only_failures():
                fitted = Fitted(candidate, corpus, answers)
                dev = score(metric, gold, fitted.predict("dev"), data.labels)
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
            tried.append(Tried(candidate, None, monotonic() - start, reason))
            continue
        tried.append(Tried(candidate, dev, monotonic() - start))
        if best is None or dev > best[0]:
            best = dev, tried[-1], fitted
    if best is None:
        raise IntarsiaError(
            f"none of {len(tried)} candidates could be fitted on this data. The first one: {tried[0].problem}"
        )
    _, winner, fitted = best
    with _only_failures():
        predicted = fitted.predict("test")
    test = bootstrap(metric, answers.gold(data.test), predicted, labels=data.labels)
    return Baseline(
        kind=data.kind,
        metric=metric,
        winner=winner,
        test=test,
        test_examples=len(data.test),
        parameters=fitted.parameters(),
        tried=tuple(tried),
        seconds=monotonic() - began,
        seed=seed,
        data=data.source,
        versions={"intarsia": __version__, "scikit-learn": sklearn.__version__},
    )


@contextmanager
def _only_failures() -> Iterator[None]:
    """No warning reaches the terminal; one that says that a fit has not converged is a failure."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        # A network's epochs are an option of its candidate: to have used them up is no failure.
        warnings.filterwarnings("ignore", "Stochastic Optimizer", ConvergenceWarning)
        yield


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


class Corpus:
    """The parts as counts of n-grams, each counted once. Vocabularies come from train alone."""

    def __init__(self, data: TaskData, seed: int) -> None:
        self.data, self.seed = data, seed
        self.sides = 2 if data.pairs else 1
        self._vectorizers: dict[View, Any] = {}
        self._counts: dict[tuple[View, str], Any] = {}
        self._readings: dict[Features, Reading] = {}
        self._overlaps: dict[str, np.ndarray] = {}
        self.rarity: dict[str, float] = {}  # of words, for the overlap of pairs

    def counts(self, view: View, part: str) -> Any:
        """[sides * n, f]: the first texts, then the second ones."""
        from sklearn.feature_extraction.text import CountVectorizer

        if (view, part) not in self._counts:
            examples: list[Example] = getattr(self.data, part)
            texts = [e.text for e in examples] + [e.pair or "" for e in examples] * (self.sides - 1)
            if part == "train":
                options = {"token_pattern": WORD.pattern} if view == "word" else {"analyzer": "char_wb"}
                shortest = 1 if view == "word" else 2
                self._vectorizers[view] = CountVectorizer(
                    ngram_range=(shortest, LONGEST[view]), max_features=MOST_FEATURES, **options
                )
                self._counts[view, part] = self._vectorizers[view].fit_transform(texts)
            else:
                self.counts(view, "train")
                self._counts[view, part] = self._vectorizers[view].transform(texts)
        return self._counts[view, part]

    def columns(self, view: View, longest: int, least: int) -> np.ndarray:
        """The n-grams of at most that length, in at least so many texts of train."""
        frequency = self.counts(view, "train").getnnz(axis=0)
        names = self._vectorizers[view].get_feature_names_out()
        lengths = np.array([name.count(" ") + 1 if view == "word" else len(name) for name in names])
        return np.flatnonzero((frequency >= least) & (lengths <= longest))

    def overlap(self, part: str) -> np.ndarray:
        """[n, measures] of the pairs."""
        if not self.rarity:
            known = Counter(w for e in self.data.train for text in (e.text, e.pair) for w in set(_words(text or "")))
            texts = 2 * len(self.data.train)
            self.rarity = {w: math.log((1 + texts) / (1 + count)) + 1 for w, count in known.items()}
            self.rarity[""] = math.log(1 + texts) + 1  # of words that train does not have
        if part not in self._overlaps:
            examples: list[Example] = getattr(self.data, part)
            self._overlaps[part] = np.array([_overlap(e.text, e.pair or "", self.rarity) for e in examples])
        return self._overlaps[part]

    def reading(self, features: Features) -> Reading:
        """The fitted way of reading, kept for the next candidates that read alike."""
        if features not in self._readings:
            while len(self._readings) >= KEPT_READINGS:
                del self._readings[next(iter(self._readings))]
            self._readings[features] = Reading(features, self)
        return self._readings[features]


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _overlap(first: str, second: str, rarity: dict[str, float]) -> list[float]:
    """Lengths; shared and unshared words, counted and weighed; cosine of tf-idf; letters, word pairs and numbers."""
    a, b = Counter(_words(first)), Counter(_words(second))
    weight = {w: rarity.get(w, rarity[""]) for w in a | b}
    shared, only_a, only_b = a.keys() & b.keys(), a.keys() - b.keys(), b.keys() - a.keys()
    heavy, heavy_a, heavy_b = (sum(weight[w] for w in sorted(some)) for some in (shared, only_a, only_b))
    square_a, square_b = (sum((n * weight[w]) ** 2 for w, n in some.items()) for some in (a, b))
    dot = sum(a[w] * b[w] * weight[w] ** 2 for w in sorted(shared))
    pieces_a, pieces_b = ({text[i : i + 3] for i in range(len(text) - 2)} for text in (first.lower(), second.lower()))
    two_a, two_b = (set(zip(words, words[1:], strict=False)) for words in (_words(first), _words(second)))
    numbers_a, numbers_b = ({w for w in some if w.isdecimal()} for some in (a, b))
    length_a, length_b = a.total(), b.total()
    return [
        math.log1p(length_a),
        math.log1p(length_b),
        abs(math.log((1 + length_a) / (1 + length_b))),
        len(shared),
        len(only_a),
        len(only_b),
        len(shared) / max(1, len(a | b)),
        len(shared) / max(1, len(a)),
        len(shared) / max(1, len(b)),
        heavy / max(1e-9, heavy + heavy_a),
        heavy / max(1e-9, heavy + heavy_b),
        max((weight[w] for w in only_b), default=0.0),
        dot / max(1e-9, math.sqrt(square_a * square_b)),
        len(pieces_a & pieces_b) / max(1, len(pieces_a | pieces_b)),
        len(pieces_a & pieces_b) / max(1, len(pieces_b)),
        len(two_a & two_b) / max(1, len(two_b)),
        len(numbers_b - numbers_a),
        len(numbers_a - numbers_b),
    ]


class Reading:
    """One way of reading, fitted on train; then the matrix [n, f] of any part."""

    def __init__(self, features: Features, corpus: Corpus) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.preprocessing import StandardScaler

        self.features, self.corpus = features, corpus
        longest = features.longest or tuple(LONGEST[view] for view in features.views)
        self.columns = {
            view: corpus.columns(view, n, features.least) for view, n in zip(features.views, longest, strict=True)
        }
        plain = {} if features.weighting == "tf-idf" else {"use_idf": False, "norm": None}
        self.weights = {
            view: TfidfTransformer(sublinear_tf=True, **plain).fit(corpus.counts(view, "train")[:, columns])
            for view, columns in self.columns.items()
        }
        self.svd = self.scale = self.overlap_scale = None
        if features.components:
            grams = self._grams("train")
            self.svd = TruncatedSVD(min(features.components, *(n - 1 for n in grams.shape)), random_state=corpus.seed)
            self.scale = StandardScaler().fit(self._combined(self.svd.fit_transform(grams)))
        if features.overlap:
            self.overlap_scale = StandardScaler().fit(corpus.overlap("train"))
        self._matrices: dict[str, Any] = {}

    def matrix(self, part: str) -> Any:
        from scipy import sparse

        if part not in self._matrices:
            blocks = []
            if self.svd is not None and self.scale is not None:
                blocks.append(self.scale.transform(self._combined(self.svd.transform(self._grams(part)))))
            elif self.columns:
                blocks.append(self._combined(self._grams(part)))
            if self.overlap_scale is not None:
                blocks.append(self.overlap_scale.transform(self.corpus.overlap(part)))
            wide = sparse.issparse(blocks[0])
            self._matrices[part] = sparse.hstack(blocks, "csr") if wide else np.hstack(blocks).astype(np.float32)
        return self._matrices[part]

    def parameters(self) -> int:
        """Fitted numbers: inverse document frequencies, components, means and scales."""
        count = sum(len(w.idf_) for w in self.weights.values() if w.use_idf)
        count += len(self.corpus.rarity) if self.features.overlap else 0
        count += 0 if self.svd is None else self.svd.components_.size
        return count + sum(2 * s.mean_.size for s in (self.scale, self.overlap_scale) if s is not None)

    def _grams(self, part: str) -> Any:
        from scipy import sparse

        blocks = []
        for view, columns in self.columns.items():
            counts = self.corpus.counts(view, part)[:, columns]
            binary = self.features.weighting == "binary"
            blocks.append(counts.sign().astype(float) if binary else self.weights[view].transform(counts))
        return sparse.hstack(blocks, "csr")

    def _combined(self, grams: Any) -> Any:
        """The rows of first and second texts, [2n, f], as one row a pair."""
        from scipy import sparse

        if not self.features.pairing:
            return grams
        a, b = grams[: grams.shape[0] // 2], grams[grams.shape[0] // 2 :]
        if self.features.pairing == "sides":
            parts = [a, b]
        else:
            parts = [a.multiply(b) if sparse.issparse(a) else a * b, abs(a - b)]
        return sparse.hstack(parts, "csr") if sparse.issparse(a) else np.hstack(parts)


class Fitted:
    """A candidate, fitted on train."""

    def __init__(self, candidate: Candidate, corpus: Corpus, answers: Answers) -> None:
        self.answers = answers
        self.reading = corpus.reading(candidate.features)
        gold = answers.gold(corpus.data.train)
        if answers.kind == "score":
            gold = (gold - answers.mean) / answers.spread
        model = _model(answers.kind, len(answers.labels), candidate, corpus.seed)
        self.model = model.fit(self.reading.matrix("train"), gold)

    def predict(self, part: str) -> np.ndarray:
        """In the form of `Answers.gold`."""
        predicted = self.model.predict(self.reading.matrix(part))
        if self.answers.kind == "score":
            return np.asarray(predicted, float).reshape(-1) * self.answers.spread + self.answers.mean
        return predicted if self.answers.kind == "label" else predicted.reshape(-1, len(self.answers.labels)) > 0

    def parameters(self) -> dict[str, int]:
        features, model = self.reading.parameters(), _size(self.model)
        return {"features": features, "model": model, "total": features + model}


def _model(kind: Kind, labels: int, candidate: Candidate, seed: int) -> Any:
    """An unfitted model of scikit-learn; one-vs-rest for several labels, and where the memory asks for it."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.naive_bayes import ComplementNB, MultinomialNB
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

    makers: dict[str, Any] = {
        "logistic regression": (LogisticRegression, {"max_iter": 1000}),
        "linear SVM": (LinearSVC, {"dual": "auto", "max_iter": 5000, "random_state": seed}),
        "NB-SVM": (NaiveBayesSvm, {"seed": seed}),
        "ridge": (RidgeClassifier, {}),
        "SGD": (SGDClassifier, {"loss": "modified_huber", "average": True, "random_state": seed}),
        "multinomial NB": (MultinomialNB, {}),
        "complement NB": (ComplementNB, {}),
        "RBF SVM": (SVC, {}),
        "boosted trees": (HistGradientBoostingClassifier, {"early_stopping": False, "random_state": seed}),
        "MLP": (MLPClassifier, {"random_state": seed}),
    }
    if kind == "score":
        makers |= {
            "linear SVM": (LinearSVR, {"dual": "auto", "loss": "squared_epsilon_insensitive", "random_state": seed}),
            "ridge": (Ridge, {}),
            "RBF SVM": (SVR, {}),
            "boosted trees": (HistGradientBoostingRegressor, {"early_stopping": False, "random_state": seed}),
            "MLP": (MLPRegressor, {"random_state": seed}),
        }
    make, fixed = makers[candidate.model]
    model = make(**fixed, **dict(candidate.options))
    by_label = kind == "labels" or (candidate.model == "logistic regression" and labels > MANY_LABELS)
    return OneVsRestClassifier(model) if by_label and candidate.model not in ("MLP", "NB-SVM") else model


class NaiveBayesSvm:
    """Wang and Manning 2012: a linear SVM over n-grams scaled by how much more often a label has them than the rest."""

    def __init__(self, C: float, seed: int, class_weight: str | None = None) -> None:
        self.options = {"C": C, "class_weight": class_weight, "random_state": seed}

    def fit(self, x: Any, y: np.ndarray) -> NaiveBayesSvm:
        from sklearn.svm import LinearSVC

        self.several = y.ndim == 2
        count = y.max() + 1
        columns = y.T if self.several else [y == 1] if count == 2 else [y == label for label in range(count)]
        weights, biases = [], []
        for there in columns:
            with_label, without = (1 + np.asarray(x[rows].sum(axis=0)).reshape(-1) for rows in (there, ~there))
            ratio = np.log(with_label / with_label.sum()) - np.log(without / without.sum())
            svm = LinearSVC(dual="auto", max_iter=5000, **self.options).fit(x.multiply(ratio).tocsr(), there)
            weights.append(svm.coef_[0] * ratio)
            biases.append(svm.intercept_[0])
        self.coef_, self.intercept_ = np.array(weights), np.array(biases)
        return self

    def predict(self, x: Any) -> np.ndarray:
        values = x @ self.coef_.T + self.intercept_
        if self.several:
            return values > 0
        return (values[:, 0] > 0).astype(int) if values.shape[1] == 1 else values.argmax(axis=1)


def _size(model: Any) -> int:
    """How many numbers a fitted model holds."""
    if hasattr(model, "estimators_"):
        return sum(_size(one) for one in model.estimators_)
    if hasattr(model, "coefs_"):
        return sum(array.size for array in (*model.coefs_, *model.intercepts_))
    if hasattr(model, "_predictors"):  # a split is a feature and a threshold, a leaf is a value
        trees = [tree.nodes["is_leaf"] for step in model._predictors for tree in step]
        return sum(int(leaf.sum() + 2 * (~leaf.astype(bool)).sum()) for leaf in trees) + len(model._predictors[0])
    names = ("support_vectors_", "dual_coef_") if hasattr(model, "support_vectors_") else ("coef_",)
    names = ("feature_log_prob_", "class_log_prior_") if hasattr(model, "feature_log_prob_") else names
    return sum(np.size(getattr(model, name, ())) for name in (*names, "intercept_"))
