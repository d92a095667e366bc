"""Intervals that are not empty at the edges.

The bootstrap of a perfect score on six rows has one value, so its interval would claim certainty. Shares of right rows
get Wilson's interval. Other metrics get the bootstrap; where few rows bear on the metric, or all resamples have one
value, the bounds are at least those of Wilson's interval (for correlations: Fisher's) for that many rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.tasks.metrics import Interval, bootstrap, bootstrap_of, positive_label
from intarsia.tasks.own_metric import OwnMetric
from intarsia.tasks.ranking import measure_of, ranked_labels

Array = NDArray[Any]
FEW = 30  # rows: with fewer, an interval is called "too few"
CORRELATIONS = ("matthews", "pearson", "spearman")
UNBOUNDED = ("mse", "mae")


def interval(
    metric: str,
    gold: Array,
    predicted: Array,
    *,
    labels: Sequence[str] = (),
    resamples: int = 1000,
    level: float = 0.95,
) -> Interval:
    """The value of a metric with its interval; the arrays are those of `metrics.bootstrap`."""
    found = bootstrap(metric, gold, predicted, labels=labels, resamples=resamples, level=level)
    if not resamples:
        return found
    if isinstance(metric, OwnMetric):
        return of_function(found, len(gold), level)
    if metric == "accuracy":
        low, high = wilson(found.value, len(gold), level)
        return Interval(found.value, low, high).marked(len(gold) < FEW)
    return widened(found, _evidence(metric, gold, predicted, labels), metric, level)


def ranking_interval(
    metric: str,
    gold: Array,
    probabilities: Array,
    labels: Sequence[str],
    *,
    resamples: int = 1000,
    level: float = 0.95,
) -> Interval:
    """The area under the ROC curve or the average precision, with its interval: gold [n, k] bools."""
    positive = list(labels).index(positive_label(labels)) if len(labels) == 2 else None
    counted = ranked_labels(metric, labels, positive if gold.sum() == len(gold) else None)
    found = bootstrap_of(measure_of(metric, gold, probabilities, counted), len(gold), resamples, level)
    if not resamples:
        return found
    support = gold[:, counted].sum(axis=0)
    return widened(found, _pooled(np.minimum(support, len(gold) - support)), metric, level)


def range_of(metric: str) -> tuple[float, float]:
    """The least and the largest value that a metric can have."""
    if isinstance(metric, OwnMetric) or metric in UNBOUNDED:
        return -math.inf, math.inf
    return (-1.0, 1.0) if metric in CORRELATIONS else (0.0, 1.0)


def widened(found: Interval, rows: float, metric: str = "", level: float = 0.95) -> Interval:
    """A bootstrap interval, widened where the bootstrap does not hold; `rows`: those that bear on the metric."""
    few = rows < FEW
    if (not few and found.low < found.high) or metric in UNBOUNDED:
        return found.marked(few)
    bounds = fisher if metric in CORRELATIONS else wilson
    low, high = bounds(found.value, rows, level)
    return Interval(found.value, min(low, found.low), max(high, found.high)).marked(few)


def of_function(found: Interval, rows: int, level: float = 0.95) -> Interval:
    """The bootstrap interval of a function. Its range is not known: a value between 0 and 1 is taken for a share, and
    any other empty interval is called "too few"."""
    if found.low >= 0 and found.high <= 1:
        return widened(found, rows, level=level)
    return found.marked(rows < FEW or found.low == found.high)


def wilson(share: float, rows: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share of `rows` rows."""
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows) if rows else 0.5
    half = math.sqrt(z2 * (share * (1 - share) / rows + z2 / (4 * rows**2))) / (1 + z2 / rows) if rows else 0.5
    # At the edges the bound is the value itself; rounding must not move it inside.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def fisher(correlation: float, rows: float, level: float = 0.95) -> tuple[float, float]:
    """Fisher's interval for a correlation of `rows` rows. A perfect correlation counts as one that is 1/rows less."""
    if rows <= 3:
        return -1.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2) / math.sqrt(rows - 3)
    inside = max(-1 + 1 / rows, min(1 - 1 / rows, correlation))
    low, high = math.tanh(math.atanh(inside) - z), math.tanh(math.atanh(inside) + z)
    return min(low, correlation), max(high, correlation)


def _evidence(metric: str, gold: Array, predicted: Array, labels: Sequence[str]) -> float:
    """The number of rows that bear on a metric. F1 of a rare label rests on the rows that have it, not on all."""
    if gold.dtype.kind not in "bui" or metric in CORRELATIONS:
        return len(gold)
    one_hot = np.eye(len(labels), dtype=bool)
    true, chosen = (array if array.dtype.kind == "b" else one_hot[array] for array in (gold, predicted))
    base, _, of = metric.partition(":")
    name, _, mean = base.partition("-")
    counts = {"precision": chosen, "recall": true}.get(name, true | chosen).sum(axis=0)
    if mean == "micro":
        return float(counts.sum())
    if mean == "macro":
        return _pooled(counts[(true | chosen).any(axis=0)])
    return float(counts[list(labels).index(of or positive_label(labels))])


def _pooled(counts: Array) -> float:
    """The number of rows whose share is as uncertain as the mean of shares over these numbers of rows."""
    counts = counts[counts > 0]
    return float(len(counts) ** 2 / (1 / counts).sum()) if len(counts) else 0.0
