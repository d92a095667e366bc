"""Metrics of predictions against gold labels, with bootstrap intervals (`intervals.py` says where those hold).

Every metric is computed for many resamples at once. `weights` [r, n] is the number of times that each of n rows counts
in each of r resamples, and the result is [r]. The plain value is one resample that has each row once. Internally labels
are booleans [n, k], and equal rows are merged into one; a task with one label per row sets one boolean per row.

If an example has counts of its own (the words of a sentence, its entities), the metric is a ratio of sums over the
examples: `bootstrap_ratio`.

`score` and `bootstrap` take integers [n] for one label, booleans [n, k] for several labels, and floats [n] for scores.
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
from intarsia.tasks.examples import KINDS, Kind
from intarsia.tasks.own_metric import KINDS as OWN_KINDS
from intarsia.tasks.own_metric import OwnMetric, named_metric
from intarsia.tasks.ranking import RANKING, RANKING_KINDS, ranked_labels, ranks

Array = NDArray[Any]
MANY_LABELS = 1000
DRAWS_AT_ONCE = 2_000_000  # limits the memory of a bootstrap


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    kinds: tuple[Kind, ...]
    measure: Callable[..., Array]  # (gold, predicted, weights [r, n]) -> [r]


class _Bounds(NamedTuple):
    value: float
    low: float
    high: float


class Interval(_Bounds):
    """A value with the bounds of its interval; three numbers to unpack."""

    few: bool = False  # whether too few rows bear on the value

    def marked(self, few: bool) -> Interval:
        """The same interval, with `few`."""
        made = Interval(*self)
        made.few = few
        return made


def accuracy(gold: Array, predicted: Array, weights: Array) -> Array:
    """The share of correct rows. With several labels, a row is correct if all of its labels are."""
    return weights @ (gold == predicted).all(axis=1) / weights.sum(axis=1)


def f1(gold: Array, predicted: Array, weights: Array, positive: int) -> Array:
    """F1 of one label; 0 if it is neither in gold nor predicted."""
    return _f1_per_label(gold, predicted, weights)[0][:, positive]


def precision(gold: Array, predicted: Array, weights: Array, positive: int) -> Array:
    """The share of right rows among those predicted as one label; 0 if there are none."""
    return _ratio(weights @ (gold & predicted)[:, positive], weights @ predicted[:, positive])


def recall(gold: Array, predicted: Array, weights: Array, positive: int) -> Array:
    """The share of right rows among those of one label; 0 if there are none."""
    return precision(predicted, gold, weights, positive)


def precision_macro(gold: Array, predicted: Array, weights: Array) -> Array:
    """The mean precision of the labels that are in gold or predicted; 0 if none is."""
    both, each = weights @ (gold & predicted).astype(float), weights @ predicted.astype(float)  # [r, k]
    counted = (weights @ (gold | predicted).astype(float) > 0).sum(axis=1)
    return _ratio(both, each).sum(axis=1) / np.maximum(counted, 1)


def recall_macro(gold: Array, predicted: Array, weights: Array) -> Array:
    """The mean recall of the labels that are in gold or predicted; 0 if none is."""
    return precision_macro(predicted, gold, weights)


def precision_micro(gold: Array, predicted: Array, weights: Array) -> Array:
    """Precision over all decisions together; 0 if no label is predicted."""
    return _ratio(weights @ (gold & predicted).sum(axis=1), weights @ predicted.sum(axis=1))


def recall_micro(gold: Array, predicted: Array, weights: Array) -> Array:
    """Recall over all decisions together; 0 if no label is in gold."""
    return precision_micro(predicted, gold, weights)


def mse(gold: Array, predicted: Array, weights: Array) -> Array:
    """The mean squared error."""
    return weights @ (gold - predicted) ** 2 / weights.sum(axis=1)


def mae(gold: Array, predicted: Array, weights: Array) -> Array:
    """The mean absolute error."""
    return weights @ np.abs(gold - predicted) / weights.sum(axis=1)


def f1_macro(gold: Array, predicted: Array, weights: Array) -> Array:
    """The mean F1 of the labels that are in gold or predicted; 0 if none is."""
    values, counted = _f1_per_label(gold, predicted, weights)
    return values.sum(axis=1) / np.maximum(counted.sum(axis=1), 1)


def f1_micro(gold: Array, predicted: Array, weights: Array) -> Array:
    """F1 over all decisions together; 0 if no label is in gold or predicted."""
    both = weights @ (gold & predicted).sum(axis=1)
    each = weights @ (gold.sum(axis=1) + predicted.sum(axis=1))
    return _ratio(2 * both, each)


def matthews(gold: Array, predicted: Array, weights: Array) -> Array:
    """Matthews' correlation for any number of labels; 0 if gold or predicted is constant."""
    rows = weights.sum(axis=1)
    right = weights @ (gold & predicted).any(axis=1)
    in_gold, in_predicted = weights @ gold.astype(float), weights @ predicted.astype(float)  # [r, k]
    covariance = right * rows - (in_gold * in_predicted).sum(axis=1)
    spread = (rows**2 - (in_gold**2).sum(axis=1)) * (rows**2 - (in_predicted**2).sum(axis=1))
    return _ratio(covariance, np.sqrt(spread))


def pearson(gold: Array, predicted: Array, weights: Array) -> Array:
    """Pearson's correlation; 0 if gold or predicted is constant."""
    # Subtracting the median keeps more digits, and makes constant values exactly zero.
    return _correlation((gold - np.median(gold))[None], (predicted - np.median(predicted))[None], weights)


def spearman(gold: Array, predicted: Array, weights: Array) -> Array:
    """Spearman's rank correlation; ties share their mean rank. 0 if gold or predicted is constant."""
    return _correlation(_ranks(gold, weights), _ranks(predicted, weights), weights)


def _f1_per_label(gold: Array, predicted: Array, weights: Array) -> tuple[Array, Array]:
    """F1 of each label [r, k], and whether it is in gold or predicted [r, k]."""
    both = weights @ (gold & predicted).astype(float)  # [r, k]
    each = weights @ (gold.astype(float) + predicted)
    return _ratio(2 * both, each), each > 0


def _ratio(numerator: Array, denominator: Array) -> Array:
    """The quotient; 0 where the denominator is not positive."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(denominator)), where=denominator > 0)


def _correlation(first: Array, second: Array, weights: Array) -> Array:
    """The correlation [r] of values [r or 1, n] under weights [r, n]."""
    rows = weights.sum(axis=1)

    def mean(values: Array) -> Array:
        return np.einsum("rn,rn->r", weights, np.broadcast_to(values, weights.shape)) / rows

    def spread(values: Array) -> Array:
        square, centre = mean(values**2), mean(values)
        variance = square - centre**2
        return np.where(variance > 1e-13 * square, variance, 0.0)  # the rest is rounding error

    covariance = mean(first * second) - mean(first) * mean(second)
    return np.clip(_ratio(covariance, np.sqrt(spread(first) * spread(second))), -1.0, 1.0)


def _ranks(values: Array, weights: Array) -> Array:
    """The mean rank of each value in each resample [r, n], minus the middle rank."""
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))
    count = np.add.reduceat(weights[:, order], starts, axis=1)  # rows of each distinct value
    rank = np.cumsum(count, axis=1) - (count - 1) / 2
    return (rank - (weights.sum(axis=1, keepdims=True) + 1) / 2)[:, place]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "Accuracy", ("label", "labels"), accuracy),
        Metric("f1", "F1", ("label",), f1),
        Metric("f1-macro", "Macro F1", ("label", "labels"), f1_macro),
        Metric("f1-micro", "Micro F1", ("label", "labels"), f1_micro),
        Metric("precision", "Precision", ("label",), precision),
        Metric("precision-macro", "Macro precision", ("label", "labels"), precision_macro),
        Metric("precision-micro", "Micro precision", ("labels",), precision_micro),
        Metric("recall", "Recall", ("label",), recall),
        Metric("recall-macro", "Macro recall", ("label", "labels"), recall_macro),
        Metric("recall-micro", "Micro recall", ("labels",), recall_micro),
        Metric("matthews", "Matthews correlation", ("label",), matthews),
        Metric("pearson", "Pearson correlation", ("score",), pearson),
        Metric("spearman", "Spearman correlation", ("score",), spearman),
        Metric("mse", "Mean squared error", ("score",), mse),
        Metric("mae", "Mean absolute error", ("score",), mae),
    )
}
OF_ONE_LABEL = ("f1", "precision", "recall")  # also as f1:LABEL
LOWER_IS_BETTER = {
    "perplexity": "likelihood, which is 1 / perplexity",
    "mse": "pearson or spearman",
    "mae": "pearson or spearman",
}  # with the metrics to choose by in their place


# Metrics that are ratios of sums, computed by the task kinds. For questions: over all, over those with an answer, and
# over those without one. For hidden words: the likelihood is the geometric mean of their probabilities, and the
# perplexity is 1 / likelihood.
RATIOS: dict[Kind, tuple[str, ...]] = {
    "tags": ("accuracy", "f1-entities"),
    "span": tuple(f"{name}{part}" for part in ("", ":answered", ":unanswered") for name in ("f1", "exact-match")),
    "words": ("likelihood", "perplexity", "accuracy"),
}


def title_of(metric: str) -> str:
    """The metric's title for tables and figures, without the label of `f1:LABEL`."""
    name = metric.partition(":")[0]
    if name == "auc":
        return "Area under the ROC curve"
    return METRICS[name].title if name in METRICS else name.replace("-", " ").capitalize()


def default_metric(kind: Kind, labels: Sequence[str]) -> str:
    """The default metric of a kind."""
    tags = "f1-entities" if has_entities(labels) else "accuracy"
    others = {"label": "accuracy", "labels": "f1-micro", "score": "spearman", "span": "f1", "words": "likelihood"}
    return {**others, "tags": tags}[kind]


def positive_label(labels: Sequence[str], metric: str = "f1") -> str:
    """The positive label of two: the second, as in no/yes, 0/1, negative/positive or ham/spam.

    If the second label negates the first, the first is positive: `equivalent` of `equivalent` and `not_equivalent`,
    `acceptable` of `acceptable` and `unacceptable`.
    """
    if len(labels) != 2:
        raise DataError(
            f"{metric} needs two labels, but the task has {len(labels)}. Use {metric}-macro, or name one label as in "
            f"{metric}:LABEL."
        )
    first, second = labels
    return first if second.casefold().endswith(first.casefold()) else second


def evaluation_metric(given: Any, stored: str | None, kind: Kind, labels: Sequence[str]) -> str:
    """The metric of an evaluation: the given name or function, else the one that the task was trained by."""
    if given is not None:
        return named_metric(given) or ""
    if stored is None:
        return default_metric(kind, labels)
    try:
        check_metric(stored, kind, labels)
    except DataError as error:
        raise DataError(
            f"the task was trained by the function {stored!r}, which is not stored with it: give the function again "
            f"(metric=…), or the name of a metric. {error}"
        ) from None
    return stored


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """The names of the metrics that apply to a kind of task."""
    if kind in RATIOS:
        return tuple(RATIOS[kind])
    ranking = tuple(RANKING) if kind in RANKING_KINDS else ()
    return (*(name for name, metric in METRICS.items() if kind in metric.kinds), *ranking)


def names_a_metric(name: str) -> bool:
    """Whether a name is a metric of any kind, with a label after a colon where it takes one."""
    of_one_label = name.partition(":")[0] in (*OF_ONE_LABEL, *RANKING)
    return of_one_label or any(name in metrics_of(kind) for kind in KINDS)


def check_choosing(metric: str, kind: Kind, labels: Sequence[str]) -> None:
    """Raise unless the best model can be selected by `metric`: higher must be better."""
    check_metric(metric, kind, labels)
    if metric in LOWER_IS_BETTER:
        raise DataError(
            f"Cannot select the best model by {metric} (lower is better). Use {LOWER_IS_BETTER[metric]}; a trained "
            "task can be evaluated by any metric."
        )


def check_metric(metric: str, kind: Kind, labels: Sequence[str]) -> None:
    """Raise, listing the possible metrics, unless `metric` applies to a task of this kind with these labels."""
    if isinstance(metric, OwnMetric):
        if kind not in OWN_KINDS:
            raise DataError(f"{metric}: a function is no metric of {kind}. Expected one of {', '.join(RATIOS[kind])}.")
        return
    if kind in RATIOS:
        if metric not in RATIOS[kind]:
            raise DataError(f"{metric} does not apply to {kind}. Expected one of {', '.join(RATIOS[kind])}.")
        if metric == "f1-entities" and not has_entities(labels):
            raise DataError(
                f"f1-entities needs tags such as B-PER, I-PER and O; found {', '.join(labels[:10])}. Use accuracy."
            )
        return
    if ranks(metric) and kind in RANKING_KINDS:
        ranked_labels(metric, labels, None)
        return
    if metric.partition(":")[0] not in metrics_of(kind):
        one = (
            " (f1:LABEL names the label; so do precision, recall, auc and average-precision)" if kind == "label" else ""
        )
        more = one or (" (auc:LABEL and average-precision:LABEL name one label)" if kind == "labels" else "")
        raise DataError(
            f"{metric} is no metric of the kind {kind}. Expected one of {', '.join(metrics_of(kind))}{more}."
        )
    sample = {"label": np.zeros(1, int), "labels": np.zeros((1, len(labels)), bool), "score": np.zeros(1)}[kind]
    _measure(metric, sample, sample, labels)


def score(metric: str, gold: ArrayLike, predicted: ArrayLike, labels: Sequence[str] = ()) -> float:
    """The value of a metric. `f1:LABEL` is F1 of that label, `f1` that of the positive label of two."""
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

    A seed draws the same rows for all predictions and metrics, so their intervals are comparable.
    """
    if isinstance(metric, OwnMetric):
        true, found = _named(np.asarray(gold), labels), _named(np.asarray(predicted), labels)
        return Interval(*metric.interval(true, found, resamples, seed, level))
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    kind, measure = _measure(metric, gold, predicted, labels)
    count = len(labels)
    if kind == "label" and count > MANY_LABELS:
        gold, predicted, measure, count = _renumbered(gold, predicted, measure)
    true, chosen, row = _distinct_rows(kind, gold, predicted, count)
    return _interval(partial(measure, true, chosen), row, len(true), resamples, seed, level)


def _renumbered(
    gold: Array, predicted: Array, measure: Callable[..., Array]
) -> tuple[Array, Array, Callable[..., Array], int]:
    """Labels renumbered without those that are in neither gold nor predicted, and how many are left. No metric changes:
    a label without rows counts nowhere. With many labels, most have no rows, and arrays by label stay small."""
    given = measure.keywords if isinstance(measure, partial) else {}
    present = np.unique(np.concatenate([gold, predicted, np.array(list(given.values()), int)]))
    if given:
        measure = partial(f1, positive=int(np.searchsorted(present, given["positive"])))
    return np.searchsorted(present, gold), np.searchsorted(present, predicted), measure, len(present)


def _named(values: Array, labels: Sequence[str]) -> Array:
    """The labels as a user's function gets them: names for one label, zeros and ones for several, or scores."""
    kind = _kind(values)
    return np.array(labels)[values] if kind == "label" else values.astype(int) if kind == "labels" else values


def bootstrap_ratio(counts: Array, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """The ratio of the sums of two columns [examples, 2], with its interval over examples; 0 if the second sum is 0."""

    def measure(weights: Array) -> Array:
        numerator, denominator = (weights @ counts).T
        return _ratio(numerator, denominator)

    return bootstrap_of(measure, len(counts), resamples, level, seed)


def bootstrap_of(
    measure: Callable[[Array], Array], rows: int, resamples: int, level: float = 0.95, seed: int = 0
) -> Interval:
    """The value and interval of a function of the rows' weights [r, n] → [r]."""
    return _interval(measure, np.arange(rows), rows, resamples, seed, level)


def _interval(
    measure: Callable[[Array], Array], row: Array, distinct: int, resamples: int, seed: int, level: float
) -> Interval:
    """The interval of `measure`; `row` has the number of each example's distinct row, of which there are `distinct`."""
    value = float(measure(_counts(row[None], distinct))[0])
    if not resamples:
        return Interval(value, value, value)
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWS_AT_ONCE // len(row))
    values = []
    for start in range(0, resamples, at_once):
        drawn = row[generator.integers(len(row), size=(min(at_once, resamples - start), len(row)))]
        values.append(measure(_counts(drawn, distinct)))
    found = np.concatenate(values)
    found = found[~np.isnan(found)]  # a resample may lack what the metric needs
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2]) if len(found) else (value, value)
    return Interval(value, float(low), float(high))


def _counts(drawn: Array, distinct: int) -> Array:
    """How often each distinct row was drawn in each resample: row numbers [r, n] → [r, distinct]."""
    resamples = len(drawn)
    flat = drawn + distinct * np.arange(resamples)[:, None]
    return np.bincount(flat.ravel(), minlength=resamples * distinct).reshape(resamples, distinct).astype(float)


def _measure(metric: str, gold: Array, predicted: Array, labels: Sequence[str]) -> tuple[Kind, Callable[..., Array]]:
    """The kind of the arrays and the function of the metric; raises if metric, arrays and labels do not fit."""
    name, _, chosen = metric.partition(":")
    if name not in METRICS or (chosen and name not in OF_ONE_LABEL):
        known = ", ".join([*METRICS, *RANKING])
        raise DataError(f"unknown metric {metric!r}. Expected one of {known}, or one label's, as in f1:LABEL.")
    if gold.shape != predicted.shape or not len(gold):
        raise DataError(f"gold {gold.shape} and predicted {predicted.shape} must have one shape and at least one row.")
    kind = _kind(gold)
    if kind is None or kind != _kind(predicted) or kind not in METRICS[name].kinds:
        raise DataError(
            f"{name} applies to {' or '.join(METRICS[name].kinds)}, not to {gold.dtype} {gold.shape} against "
            f"{predicted.dtype}. Expected integers [n] for label, booleans [n, k] for labels, floats [n] for score."
        )
    if kind == "score" and not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        raise DataError("scores must be finite, but gold or predicted contains NaN or infinity.")
    if kind == "labels" and gold.shape[1] != len(labels):
        raise DataError(f"gold and predicted have {gold.shape[1]} columns, but there are {len(labels)} labels.")
    if kind == "label":
        low, high = min(gold.min(), predicted.min()), max(gold.max(), predicted.max())
        if low < 0 or high >= len(labels):
            raise DataError(
                f"gold and predicted have label numbers {low} to {high}, but there are {len(labels)} labels."
            )
    if name not in OF_ONE_LABEL:
        return kind, METRICS[name].measure
    if chosen and chosen not in labels:
        raise DataError(f"{metric}: no label {chosen!r}. Known labels: {', '.join(labels)}.")
    return kind, partial(METRICS[name].measure, positive=list(labels).index(chosen or positive_label(labels, name)))


def _kind(array: Array) -> Kind | None:
    """The kind that an array's type and shape stand for."""
    kinds: dict[tuple[str, int], Kind] = {("b", 2): "labels", ("i", 1): "label", ("u", 1): "label", ("f", 1): "score"}
    return kinds.get((array.dtype.kind, array.ndim))


def _distinct_rows(kind: Kind, gold: Array, predicted: Array, labels: int) -> tuple[Array, Array, Array]:
    """Gold and predicted of the distinct rows, and for each row the number of its distinct row.

    With few labels there are few distinct rows, so a resample of any size is a few counts.
    """
    if kind == "score":
        return gold.astype(float), predicted.astype(float), np.arange(len(gold))
    if kind == "labels":
        both, row = np.unique(np.hstack([gold, predicted]), axis=0, return_inverse=True)
        return both[:, :labels], both[:, labels:], row.reshape(-1)
    cells, row = np.unique(gold.astype(int) * labels + predicted, return_inverse=True)
    every = np.arange(labels)
    return cells[:, None] // labels == every, cells[:, None] % labels == every, row
