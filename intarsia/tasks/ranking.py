"""Metrics of probabilities: the area under the ROC curve and average precision, with their curves.

With two labels, the positive one counts; with more, the mean over the labels, each against the others. `auc:LABEL` and
`average-precision:LABEL` name one label. Labels without a row, or in every row, have neither metric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import DataError
from intarsia.tasks.examples import Kind

Array = NDArray[Any]
Curve = tuple[Array, Array]  # x and y


def auc(gold: Array, probabilities: Array, weights: Array) -> Array:
    """The area under the ROC curve [r]: gold [n] bools, probabilities [n], weights [r, n]. Ties count half."""
    positive, negative = _tied(gold, probabilities, weights)
    below = np.cumsum(negative, axis=1) - negative
    return _share((positive * (below + negative / 2)).sum(axis=1), positive.sum(axis=1) * negative.sum(axis=1))


def average_precision(gold: Array, probabilities: Array, weights: Array) -> Array:
    """The sum of the precisions at each threshold, weighted by the recall that it adds [r]."""
    positive, negative = (tied[:, ::-1] for tied in _tied(gold, probabilities, weights))
    found, both = np.cumsum(positive, axis=1), np.cumsum(positive + negative, axis=1)
    precision = np.divide(found, both, out=np.zeros_like(found), where=both > 0)
    return _share((positive * precision).sum(axis=1), positive.sum(axis=1))


RANKING: dict[str, Callable[[Array, Array, Array], Array]] = {"auc": auc, "average-precision": average_precision}
RANKING_KINDS: tuple[Kind, ...] = ("label", "labels")


def ranks(metric: str) -> bool:
    """Whether a metric reads probabilities in place of predicted labels."""
    return metric.partition(":")[0] in RANKING


def ranked_labels(metric: str, labels: Sequence[str], positive: int | None) -> list[int]:
    """The numbers of the labels that a metric counts. `positive`: the positive label of two."""
    chosen = metric.partition(":")[2]
    if chosen and chosen not in labels:
        raise DataError(f"{metric}: no label {chosen!r}. Known labels: {', '.join(labels)}.")
    if chosen:
        return [list(labels).index(chosen)]
    return list(range(len(labels))) if positive is None else [positive]


def measure_of(metric: str, gold: Array, probabilities: Array, counted: Sequence[int]) -> Callable[[Array], Array]:
    """The metric as a function of weights [r, n]: the mean over the labels `counted`; gold [n, k] bools."""
    with_both = [label for label in counted if 0 < gold[:, label].sum() < len(gold)]
    if not with_both:
        raise DataError(f"{metric} needs rows with the label and rows without it; these have only one of the two.")
    each = [partial(RANKING[metric.partition(":")[0]], gold[:, i], probabilities[:, i]) for i in with_both]

    def measure(weights: Array) -> Array:
        values = np.stack([one(weights) for one in each])
        known = ~np.isnan(values)  # a resample may lack a label
        total = np.where(known, values, 0.0).sum(axis=0)
        return np.divide(total, known.sum(axis=0), out=np.full(len(total), np.nan), where=known.any(axis=0))

    return measure


def precision_recall(gold: Array, probabilities: Array) -> Curve:
    """Recall and precision at each threshold, from the highest threshold to the lowest."""
    positive, negative = (tied[0, ::-1] for tied in _tied(gold, probabilities, np.ones((1, len(gold)))))
    found = np.cumsum(positive)
    return found / max(1.0, found[-1]), found / np.cumsum(positive + negative)


def _tied(gold: Array, probabilities: Array, weights: Array) -> tuple[Array, Array]:
    """The weights of positive and of negative rows at each distinct probability, ascending [r, distinct]."""
    order = np.argsort(probabilities, kind="stable")
    starts = np.flatnonzero(np.diff(probabilities[order], prepend=-np.inf))
    sorted_weights, sorted_gold = weights[:, order], gold[order]
    return (
        np.add.reduceat(sorted_weights * sorted_gold, starts, axis=1),
        np.add.reduceat(sorted_weights * ~sorted_gold, starts, axis=1),
    )


def _share(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
