"""The no-BERT baseline: a search over models that use no pretrained transformer.

Houlsby et al. 2019 set such a search beside their adapters, to know whether the transformer helped at all. Here it is
n-grams of words and characters, read by linear models, naive Bayes, boosted trees and small networks of scikit-learn.
Every candidate is fitted on train and scored on dev; only the best of them is ever shown test.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from intarsia.errors import IntarsiaError, check_extra
from intarsia.formatting import seconds
from intarsia.lab.no_bert.candidates import Candidate, Features, plan
from intarsia.lab.no_bert.features import Corpus, Reading
from intarsia.lab.no_bert.models import Fitted, NaiveBayesSvm
from intarsia.tasks.examples import Kind, TaskData
from intarsia.tasks.metrics import Interval, bootstrap, check_metric, default_metric, score
from intarsia.version import __version__

HOPELESS = 30  # so many failures and no success: it is the data


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


SearchWatch = Callable[[Progress], None]


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
    watch: SearchWatch | None = None,
    *,
    candidates: int | None = None,
) -> Baseline:
    """Try candidates until the minutes are spent, or the first `candidates` of them, and score the best on test.

    The order depends on the seed and on the kind and size of the data alone, so a number of candidates gives the same
    result on every run; minutes give as many as the machine is fast. A candidate that has begun is not cut short, at
    least one is fitted, and with minutes a perfect score on dev ends the search.
    """
    check_extra("lab", "sklearn")
    import sklearn

    from intarsia.tasks.task_kind import TaskKind

    if data.kind not in ("label", "labels", "score"):
        raise IntarsiaError(f"the search without BERT is for labels and scores; it has no models for {data.kind}.")
    metric = metric or default_metric(data.kind, data.labels)
    check_metric(metric, data.kind, data.labels)
    if not minutes >= 0 or (candidates is not None and candidates < 1):
        raise IntarsiaError(f"minutes={minutes}, candidates={candidates} leave nothing to try. Expected more than 0.")
    answers = TaskKind.learn(data.kind, data.labels, data.train)
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


__all__ = [
    "Baseline",
    "Candidate",
    "Corpus",
    "Features",
    "Fitted",
    "NaiveBayesSvm",
    "Progress",
    "Reading",
    "SearchWatch",
    "Tried",
    "plan",
    "search",
]  # fmt: skip
