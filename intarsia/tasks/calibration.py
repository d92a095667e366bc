"""Calibration: probabilities that mean what they say.

One temperature a task divides its logits. It is found on the dev part, where it makes the true labels most likely
(Guo et al., 2017, https://arxiv.org/abs/1706.04599). As in Platt's scaling, the true labels are smoothed by what so few
rows can show: a perfect score on ten rows does not make the model certain. The temperature changes no label of the kind
`label`, since it keeps the order of the probabilities.

The expected calibration error (ECE) compares confidence with accuracy in ten bins of equal width, weighted by rows.
For the kind `labels`, each decision (row and label) counts, with the probability that the label applies.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.tasks.examples import Kind

Array = NDArray[Any]
LEAST_ROWS = 20  # fewer dev rows give no temperature
HOTTEST = 20.0  # temperatures are between 1/HOTTEST and HOTTEST
BINS = 10
SMALLEST = 1e-30  # of a probability; float32 rounds smaller ones to 0


@dataclass(frozen=True)
class Bin:
    """The rows (or decisions) of one range of confidence."""

    rows: int
    confidence: float  # their mean
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """How well confidence and accuracy agree."""

    ece: float
    bins: tuple[Bin, ...]  # those with rows, by confidence

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_temperature(kind: Kind, probabilities: Array, gold: Array) -> float:
    """The temperature that fits probabilities [n, k] to labels ([n] ints or [n, k] bools); 1 if there are few rows."""
    rows, labels = probabilities.shape
    if rows < LEAST_ROWS:
        return 1.0
    scores = _scores(kind, probabilities)
    if kind == "label":
        targets = np.full(scores.shape, 1 / (rows + labels))
        targets[np.arange(rows), gold] = (rows + 1) / (rows + labels)
    else:
        targets = np.where(gold, (rows + 1) / (rows + 2), 1 / (rows + 2))
    inverse = 1.0  # the inverse temperature: the loss is convex in it
    for _ in range(50):
        slope, curvature = _derivatives(kind, inverse * scores, scores, targets)
        step = slope / max(curvature, 1e-12)
        following = float(np.clip(inverse - step, max(1 / HOTTEST, inverse / 2), min(HOTTEST, inverse * 2)))
        if abs(following - inverse) < 1e-6 * inverse:
            break
        inverse = following
    return 1 / inverse


def tempered(kind: Kind, probabilities: Array, temperature: float) -> Array:
    """The probabilities [n, k] with their logits divided by a temperature."""
    if temperature == 1.0:
        return probabilities
    scores = _scores(kind, probabilities) / temperature
    return _softmax(scores) if kind == "label" else _sigmoid(scores)


def reliability(kind: Kind, probabilities: Array, gold: Array) -> Reliability:
    """The expected calibration error and its bins: probabilities [n, k], labels [n] ints or [n, k] bools."""
    if kind == "label":
        confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == gold
    else:
        confidence, right = probabilities.ravel(), gold.ravel()
    number = np.minimum((confidence * BINS).astype(int), BINS - 1)
    found = [number == i for i in range(BINS)]
    bins = tuple(
        Bin(int(inside.sum()), float(confidence[inside].mean()), float(right[inside].mean()))
        for inside in found
        if inside.any()
    )
    ece = sum(b.rows * abs(b.confidence - b.accuracy) for b in bins) / max(1, len(confidence))
    return Reliability(ece, bins)


def _derivatives(kind: Kind, scaled: Array, scores: Array, targets: Array) -> tuple[float, float]:
    """The first and second derivative of the loss with respect to the inverse temperature."""
    if kind == "label":
        p = _softmax(scaled)
        mean = (p * scores).sum(axis=1)
        variance = (p * scores**2).sum(axis=1) - mean**2
        return float((mean - (targets * scores).sum(axis=1)).mean()), float(variance.mean())
    p = _sigmoid(scaled)
    return float(((p - targets) * scores).mean()), float((p * (1 - p) * scores**2).mean())


def _scores(kind: Kind, probabilities: Array) -> Array:
    """Logits of the probabilities, up to a constant a row."""
    p = np.clip(probabilities.astype(np.float64), SMALLEST, 1.0)
    if kind == "label":
        return np.log(p)
    return np.log(p) - np.log(np.clip(1.0 - probabilities.astype(np.float64), 1e-7, 1.0))


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _sigmoid(scores: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
