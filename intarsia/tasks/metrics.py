"""How well predictions agree with the gold labels, with bootstrap intervals.

Every measure is computed for many weightings of the rows at once: `weights` is [r, n], how often each of n rows counts
in each of r resamples, and the result is [r]. The plain value is the case of one resample that has each row once.
Inside, labels are booleans [n, k], of which one is set in each row where a row has one label, and equal rows are one.

Where an example is a sentence or a question with counts of its own (words, entities), the score is a ratio of sums over
the examples: `bootstrap_ratio`.

Arrays given to `score` and `bootstrap`: one label, integers [n]; several, booleans [n, k]; scores, floats [n].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from intarsia.errors import DataError
from intarsia.tasks.entities import has_entities
from intarsia.tasks.examples import Kind

Array = NDArray[Any]
DRAWS_AT_ONCE = 2_000_000  # bounds the memory of a bootstrap


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    kinds: tuple[Kind, ...]
    measure: Callable[..., Array]  # (gold, predicted, weights [r, n]) -> [r]


class Interval(NamedTuple):
    """A value and the bounds of its bootstrap interval."""

    value: float
    low: float
    high: float


def accuracy(gold: Array, predicted: Array, weights: Array) -> Array:
    """The share of rows that are right; with several labels a row, of rows that are right in all of them."""
    return weights @ (gold == predicted).all(axis=1) / weights.sum(axis=1)


def f1(gold: Array, predicted: Array, weights: Array, positive: int) -> Array:
    """F1 of one label; 0 where it is neither there nor predicted."""
    return _f1_per_label(gold, predicted, weights)[0][:, positive]


def f1_macro(gold: Array, predicted: Array, weights: Array) -> Array:
    """The mean F1 of the labels that are there or predicted; 0 where there are none."""
    values, counted = _f1_per_label(gold, predicted, weights)
    return values.sum(axis=1) / np.maximum(counted.sum(axis=1), 1)


def f1_micro(gold: Array, predicted: Array, weights: Array) -> Array:
    """F1 over all decisions together; 0 where no label is there or predicted."""
    both = weights @ (gold & predicted).sum(axis=1)
    each = weights @ (gold.sum(axis=1) + predicted.sum(axis=1))
    return _ratio(2 * both, each)


def matthews(gold: Array, predicted: Array, weights: Array) -> Array:
    """Matthews' correlation, in its form for any number of labels; 0 where either side is constant."""
    rows = weights.sum(axis=1)
    right = weights @ (gold & predicted).any(axis=1)
    there, predictions = weights @ gold.astype(float), weights @ predicted.astype(float)  # [r, k]
    covariance = right * rows - (there * predictions).sum(axis=1)
    spread = (rows**2 - (there**2).sum(axis=1)) * (rows**2 - (predictions**2).sum(axis=1))
    return _ratio(covariance, np.sqrt(spread))


def pearson(gold: Array, predicted: Array, weights: Array) -> Array:
    """Pearson's correlation; 0 where either side is constant."""
    # Shifted by the median, the values lose fewer digits, and constant ones become exact zeros.
    return _correlation((gold - np.median(gold))[None], (predicted - np.median(predicted))[None], weights)


def spearman(gold: Array, predicted: Array, weights: Array) -> Array:
    """Spearman's rank correlation, ties sharing their mean rank; 0 where either side is constant."""
    return _correlation(_ranks(gold, weights), _ranks(predicted, weights), weights)


def _f1_per_label(gold: Array, predicted: Array, weights: Array) -> tuple[Array, Array]:
    both = weights @ (gold & predicted).astype(float)  # [r, k]
    each = weights @ (gold.astype(float) + predicted)
    return _ratio(2 * both, each), each > 0


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros(np.shape(below)), where=below > 0)


def _correlation(first: Array, second: Array, weights: Array) -> Array:
    """Correlation of values [r or 1, n] under weights [r, n]."""
    rows = weights.sum(axis=1)

    def mean(values: Array) -> Array:
        return np.einsum("rn,rn->r", weights, np.broadcast_to(values, weights.shape)) / rows

    def spread(values: Array) -> Array:
        square, centre = mean(values**2), mean(values)
        variance = square - centre**2
        return np.where(variance > 1e-13 * square, variance, 0.0)  # what is left by rounding is none

    covariance = mean(first * second) - mean(first) * mean(second)
    return np.clip(_ratio(covariance, np.sqrt(spread(first) * spread(second))), -1.0, 1.0)


def _ranks(values: Array, weights: Array) -> Array:
    """Mean ranks [r, n] of the values in each resample, counted from the middle one."""
    different, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(different)))
    count = np.add.reduceat(weights[:, order], starts, axis=1)  # rows of each different value
    rank = np.cumsum(count, axis=1) - (count - 1) / 2
    return (rank - (weights.sum(axis=1, keepdims=True) + 1) / 2)[:, place]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "Accuracy", ("label", "labels"), accuracy),
        Metric("f1", "F1", ("label",), f1),
        Metric("f1-macro", "Macro F1", ("label", "labels"), f1_macro),
        Metric("f1-micro", "Micro F1", ("label", "labels"), f1_micro),
        Metric("matthews", "Matthews correlation", ("label",), matthews),
        Metric("pearson", "Pearson correlation", ("score",), pearson),
        Metric("spearman", "Spearman correlation", ("score",), spearman),
    )
}


# Those that their kinds count. Of questions: all, those that have an answer, and those that have none. Of hidden words:
# the likelihood is their probabilities' geometric mean, and the perplexity 1 over it.
RATIOS: dict[Kind, tuple[str, ...]] = {
    "tags": ("accuracy", "f1-entities"),
    "span": tuple(f"{name}{part}" for part in ("", ":answered", ":unanswered") for name in ("f1", "exact-match")),
    "words": ("likelihood", "perplexity", "accuracy"),
}


def title_of(metric: str) -> str:
    """For tables and figures; without the label that F1 may be of."""
    name = metric.partition(":")[0]
    return METRICS[name].title if name in METRICS else name.replace("-", " ").capitalize()


def default_metric(kind: Kind, labels: Sequence[str]) -> str:
    """The metric for a task about which nothing else is known."""
    tags = "f1-entities" if has_entities(labels) else "accuracy"
    others = {"label": "accuracy", "labels": "f1-micro", "score": "spearman", "span": "f1", "words": "likelihood"}
    return {**others, "tags": tags}[kind]


def positive_label(labels: Sequence[str]) -> str:
    """Which of two labels F1 is about: the last one, as in no/yes, 0/1, negative/positive or ham/spam.

    A label that another one negates comes first: `equivalent` before `not_equivalent`, `acceptable` before
    `unacceptable`.
    """
    if len(labels) != 2:
        raise DataError(
            f"f1 needs two labels, there are {len(labels)}. Use f1-macro, or name one label as in f1:LABEL."
        )
    first, second = labels
    return first if second.casefold().endswith(first.casefold()) else second


def check_choosing(metric: str, kind: Kind, labels: Sequence[str]) -> None:
    """Raise unless the best model can be chosen by `metric`: more of it must be better."""
    check_metric(metric, kind, labels)
    if metric == "perplexity":
        raise DataError(
            "of perplexity, less is better, and the best model is chosen by a metric of which more is. Choose by "
            "likelihood, which is 1 / perplexity; a learned task can be evaluated by either."
        )


def check_metric(metric: str, kind: Kind, labels: Sequence[str]) -> None:
    """Raise, saying which there are, unless `metric` can score such a task."""
    if kind in RATIOS:
        if metric not in RATIOS[kind]:
            raise DataError(f"{metric} does not measure {kind}. Expected one of {', '.join(RATIOS[kind])}.")
        if metric == "f1-entities" and not has_entities(labels):
            raise DataError(
                f"f1-entities needs tags such as B-PER, I-PER and O; there are {', '.join(labels[:10])}. Use accuracy."
            )
        return
    nothing = {"label": np.zeros(1, int), "labels": np.zeros((1, len(labels)), bool), "score": np.zeros(1)}[kind]
    _measure(metric, nothing, nothing, labels)


def score(metric: str, gold: ArrayLike, predicted: ArrayLike, labels: Sequence[str] = ()) -> float:
    """The value of a metric. `f1:LABEL` is F1 of that label; plain `f1` of the positive one of two."""
    return bootstrap(metric, gold, predicted, labels=labels, resamples=0).value


def bootstrap(
    metric: str,
    gold: ArrayLike,
    predicted: ArrayLike,
    *,
    labels: Sequence[str] = (),
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """The value of a metric with its percentile bootstrap interval.

    A seed draws the same rows whatever the predictions and the metric, so intervals of different ones are comparable.
    """
    kind, measure = _measure(metric, np.asarray(gold), np.asarray(predicted), labels)
    true, predictions, row = _different_rows(kind, np.asarray(gold), np.asarray(predicted), len(labels))
    return _interval(partial(measure, true, predictions), row, len(true), resamples, seed, level)


def bootstrap_ratio(counts: Array, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """The ratio of the sums of two columns [examples, 2], 0 where the second is 0, with its interval over examples."""

    def measure(weights: Array) -> Array:
        above, below = (weights @ counts).T
        return _ratio(above, below)

    return _interval(measure, np.arange(len(counts)), len(counts), resamples, seed, level)


def _interval(
    measure: Callable[[Array], Array], row: Array, different: int, resamples: int, seed: int, level: float
) -> Interval:
    value = float(measure(_counts(row[None], different))[0])
    if not resamples:
        return Interval(value, value, value)
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWS_AT_ONCE // len(row))
    values = []
    for start in range(0, resamples, at_once):
        drawn = row[generator.integers(len(row), size=(min(at_once, resamples - start), len(row)))]
        values.append(measure(_counts(drawn, different)))
    low, high = np.quantile(np.concatenate(values), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def _counts(drawn: Array, different: int) -> Array:
    """How often each of the different rows was drawn in each resample: [r, n] of row numbers to [r, different]."""
    resamples = len(drawn)
    flat = drawn + different * np.arange(resamples)[:, None]
    return np.bincount(flat.ravel(), minlength=resamples * different).reshape(resamples, different).astype(float)


def _measure(metric: str, gold: Array, predicted: Array, labels: Sequence[str]) -> tuple[Kind, Callable[..., Array]]:
    """The kind of the arrays and the measure for them, or what does not fit."""
    name, _, chosen = metric.partition(":")
    if name not in METRICS or (chosen and name != "f1"):
        raise DataError(f"unknown metric {metric!r}. Expected one of {', '.join(METRICS)}, or f1:LABEL.")
    if gold.shape != predicted.shape or not len(gold):
        raise DataError(f"gold {gold.shape} and predicted {predicted.shape} must have one shape and at least one row.")
    kind = _kind(gold)
    if kind is None or kind != _kind(predicted) or kind not in METRICS[name].kinds:
        raise DataError(
            f"{name} measures {' or '.join(METRICS[name].kinds)}, not {gold.dtype} {gold.shape} against "
            f"{predicted.dtype}. Expected integers [n] for label, booleans [n, k] for labels, floats [n] for score."
        )
    if kind == "score" and not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        raise DataError("scores must be finite numbers: gold or predicted holds NaN or infinity.")
    if kind == "labels" and gold.shape[1] != len(labels):
        raise DataError(f"gold and predicted have {gold.shape[1]} columns, but {len(labels)} labels are given.")
    if kind == "label":
        low, high = min(gold.min(), predicted.min()), max(gold.max(), predicted.max())
        if low < 0 or high >= len(labels):
            raise DataError(f"gold and predicted number the labels {low} to {high}, but {len(labels)} are given.")
    if name != "f1":
        return kind, METRICS[name].measure
    if chosen and chosen not in labels:
        raise DataError(f"{metric}: no label {chosen!r}. Known labels: {', '.join(labels)}.")
    return kind, partial(f1, positive=list(labels).index(chosen or positive_label(labels)))


def _kind(array: Array) -> Kind | None:
    kinds: dict[tuple[str, int], Kind] = {("b", 2): "labels", ("i", 1): "label", ("u", 1): "label", ("f", 1): "score"}
    return kinds.get((array.dtype.kind, array.ndim))


def _different_rows(kind: Kind, gold: Array, predicted: Array, labels: int) -> tuple[Array, Array, Array]:
    """Gold and predicted of the different rows, and for each row which of them it is.

    There are few different rows where there are few labels, which makes a resample of any size a handful of counts.
    """
    if kind == "score":
        return gold.astype(float), predicted.astype(float), np.arange(len(gold))
    if kind == "labels":
        both, row = np.unique(np.hstack([gold, predicted]), axis=0, return_inverse=True)
        return both[:, :labels], both[:, labels:], row.reshape(-1)
    cells, row = np.unique(gold.astype(int) * labels + predicted, return_inverse=True)
    each = np.eye(labels, dtype=bool)
    return each[cells // labels], each[cells % labels], row
