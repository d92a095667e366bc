"""Thresholds for several labels of n, found on the dev part.

A label is given to a text if its probability reaches the label's threshold. One threshold for all labels comes first:
the one with the best micro F1. A label with enough rows on both sides then gets its own: the one with the best F1 of
that label for the metric f1-macro, else the one with the best micro F1 over all labels. Rare labels keep the common
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
USUAL = 0.5
ENOUGH = 5  # rows with a label, and rows without it, for a threshold of its own
ROUNDS = 2  # over the labels; each threshold depends on the others'


def find_thresholds(probabilities: Array, gold: Array, metric: str) -> tuple[float, ...]:
    """A threshold for each label: probabilities [n, k], gold [n, k] bools."""
    common = _best(probabilities.ravel(), gold.ravel(), 0, 0)
    found = [common] * gold.shape[1]
    own = [i for i, rows in enumerate(gold.sum(axis=0)) if min(rows, len(gold) - rows) >= ENOUGH]
    for _ in range(ROUNDS):
        chosen = probabilities >= np.array(found)
        both, each = (chosen & gold).sum(axis=0), chosen.sum(axis=0) + gold.sum(axis=0)
        for label in own:
            others = (0, 0) if metric == "f1-macro" else (both.sum() - both[label], each.sum() - each[label])
            found[label] = _best(probabilities[:, label], gold[:, label], *others)
            chosen = probabilities[:, label] >= found[label]
            both[label], each[label] = (chosen & gold[:, label]).sum(), chosen.sum() + gold[:, label].sum()
    return tuple(found)


def _best(probabilities: Array, gold: Array, both: int, each: int) -> float:
    """The threshold with the best F1 over these decisions and others: `both` are the others' hits, `each` the sum of
    their true and chosen labels. Among equals, the one nearest to 0.5."""
    if not gold.any():
        return USUAL
    order = np.argsort(-probabilities, kind="stable")
    sorted_probabilities = probabilities[order].astype(np.float64)
    hits = both + np.cumsum(gold[order])
    f1 = 2 * hits / (each + gold.sum() + np.arange(1, len(order) + 1))
    # A threshold lies between two neighbours, halfway, so that rounding does not move a row across it.
    following = np.append(sorted_probabilities[1:], 0.0)
    f1[sorted_probabilities == following] = -1.0
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    low, high = following[best], sorted_probabilities[best]
    middle = np.where((low < USUAL) & (high >= USUAL), USUAL, (low + high) / 2)
    return float(middle[np.argmin(np.abs(middle - USUAL))])
