"""The no-BERT baseline: a search over models that use no pretrained transformer.

Houlsby et al. 2019 compare their adapters with this kind of search, to see whether the transformer helps at all. Here
the features are n-grams of words and characters, and the models are scikit-learn's linear models, naive Bayes, boosted
trees and small networks. Every candidate is fitted on train and scored on dev; only the best candidate is scored on
test.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from intarsia.errors import IntarsiaError, check_extra, check_seed
from intarsia.formatting import score as shown
from intarsia.formatting import seconds
from intarsia.lab.no_bert.candidates import Candidate, TextFeatures, plan
from intarsia.lab.no_bert.features import Corpus, FeatureExtractor
from intarsia.lab.no_bert.models import FittedModel, NaiveBayesSvm
from intarsia.tasks.examples import Kind, TaskData
from intarsia.tasks.intervals import interval
from intarsia.tasks.metrics import Interval, check_metric, default_metric, score
from intarsia.version import __version__

MAX_FAILURES = 30  # give up after this many failures without a success: the data is the cause


@dataclass(frozen=True)
class Trial:
    """One candidate with its dev score, or with the error that prevented a score."""

    candidate: Candidate
    dev: float | None
    seconds: float
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**self.candidate.to_dict(), "dev": self.dev, "seconds": self.seconds, "problem": self.problem}


@dataclass(frozen=True)
class SearchProgress:
    """The state of a search before each candidate. `str()` gives a progress line."""

    done: int
    share: float  # the spent share of the budget
    seconds_left: float | None  # None before the first candidate if the budget is a number of candidates
    trying: Candidate
    metric: str
    best: Trial | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f"{seconds(self.seconds_left)} left · "
        best = "" if self.best is None else f"best {self.metric} {shown(self.best.dev or 0.0)} · "
        return f"{self.done} tried · {left}{best}{self.trying}"


SearchWatch = Callable[[SearchProgress], None]


@dataclass(frozen=True)
class Baseline:
    """The best candidate on dev, and its test score."""

    kind: Kind
    metric: str
    winner: Trial
    test: Interval
    test_examples: int
    parameters: dict[str, int]  # fitted numbers that prediction needs: features, model, total
    trials: tuple[Trial, ...]  # in order, with failed candidates
    seconds: float
    seed: int
    data: dict[str, Any]
    versions: dict[str, str]

    def best(self, count: int = 5) -> list[Trial]:
        """Return the best trials on dev. The earlier of two equal trials comes first; it is usually simpler."""
        return sorted((t for t in self.trials if t.dev is not None), key=lambda t: -(t.dev or 0.0))[:count]

    def summary(self) -> str:
        """Return the test score and the winner in one line."""
        value, low, high = (shown(x, self.test.value) for x in self.test)
        few = ", too few" if self.test.few else ""
        return (
            f"no pretrained transformer: {self.metric} {value} ({low}–{high}{few}) on {self.test_examples:,} "
            f"test examples; {self.winner.candidate}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values. `metrics` has the form of an inlay's header."""
        test = {**self.test._asdict(), "too_few": self.test.few, "examples": self.test_examples}
        return {
            "kind": self.kind,
            "metrics": {"metric": self.metric, "dev": self.winner.dev, "test": test},
            "winner": self.winner.to_dict(),
            "parameters": self.parameters,
            "tried": [trial.to_dict() for trial in self.trials],
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
    watch: SearchWatch | None = None,
    *,
    candidates: int | None = None,
) -> Baseline:
    """Try candidates for some minutes, or a fixed number of them, and score the best one on test.

    The order of candidates depends only on the seed and on the kind and size of the data. Therefore `candidates` gives
    the same result on every run, while `minutes` depends on the machine's speed. A started candidate always finishes,
    and at least one candidate is fitted. With `minutes`, a perfect dev score ends the search.
    """
    check_extra("lab", "sklearn")
    import sklearn

    from intarsia.tasks.task_kind import TaskKind

    if data.kind not in ("label", "labels", "score"):
        raise IntarsiaError(
            f"the search without BERT has no models for {data.kind} tasks. Expected a task with labels or scores."
        )
    metric = metric or default_metric(data.kind, data.labels)
    check_metric(metric, data.kind, data.labels)
    if not minutes >= 0 or (candidates is not None and candidates < 1):
        raise IntarsiaError(
            f"minutes={minutes}, candidates={candidates} leaves nothing to try. Expected 0 minutes or more, and "
            "at least 1 candidate."
        )
    check_seed(seed, most=2**32 - 1)  # what scikit-learn takes
    task_kind = TaskKind.learn(data.kind, data.labels, data.train)
    gold = task_kind.gold(data.dev)
    corpus = Corpus(data, seed)
    began = monotonic()
    trials: list[Trial] = []
    best: tuple[float, Trial, FittedModel] | None = None
    for candidate in plan(data, seed):
        spent = monotonic() - began
        left: float | None = max(0.0, 60 * minutes - spent)
        share = min(1.0, spent / (60 * minutes)) if minutes else 1.0
        if candidates is not None:
            share = len(trials) / candidates
            left = spent * (candidates / len(trials) - 1) if trials else None
        if best is not None and (share >= 1 or (candidates is None and best[0] == 1)):
            break
        if best is None and len(trials) >= max(MAX_FAILURES, candidates or 0):
            break
        if watch is not None:
            watch(SearchProgress(len(trials), share, left, candidate, metric, best[1] if best else None))
        start = monotonic()
        try:
            with _only_failures():
                fitted = FittedModel(candidate, corpus, task_kind)
                dev = score(metric, gold, fitted.predict("dev"), data.labels)
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
            trials.append(Trial(candidate, None, monotonic() - start, reason))
            continue
        trials.append(Trial(candidate, dev, monotonic() - start))
        if best is None or dev > best[0]:
            best = dev, trials[-1], fitted
    if best is None:
        raise IntarsiaError(
            f"none of {len(trials)} candidates could be fitted on this data. The first error: {trials[0].problem}"
        )
    _, winner, fitted = best
    with _only_failures():
        predicted = fitted.predict("test")
    test = interval(metric, task_kind.gold(data.test), predicted, labels=data.labels)
    return Baseline(
        kind=data.kind,
        metric=metric,
        winner=winner,
        test=test,
        test_examples=len(data.test),
        parameters=fitted.parameters(),
        trials=tuple(trials),
        seconds=monotonic() - began,
        seed=seed,
        data=data.source,
        versions={"intarsia": __version__, "scikit-learn": sklearn.__version__},
    )


@contextmanager
def _only_failures() -> Iterator[None]:
    """Suppress warnings, but turn a ConvergenceWarning into an error."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        # The number of epochs is an option of a network candidate, so reaching it is not a failure.
        warnings.filterwarnings("ignore", "Stochastic Optimizer", ConvergenceWarning)
        yield


__all__ = [
    "Baseline",
    "Candidate",
    "Corpus",
    "FeatureExtractor",
    "FittedModel",
    "NaiveBayesSvm",
    "Progress",
    "SearchWatch",
    "TextFeatures",
    "Trial",
    "plan",
    "search",
]  # fmt: skip
