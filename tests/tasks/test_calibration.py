"""Temperatures and thresholds that are found on the dev part."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.tasks.calibration import find_temperature, reliability, tempered
from intarsia.tasks.kind_registry import stored_kind
from intarsia.tasks.metrics import score
from intarsia.tasks.task_kind import TaskKind
from intarsia.tasks.thresholds import find_thresholds

RANDOM = np.random.default_rng(0)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def overconfident(rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities whose logits are three times too large, and labels drawn from the right ones."""
    logits = RANDOM.normal(size=(rows, 4))
    right = softmax(logits)
    gold = (right.cumsum(1) > RANDOM.random((rows, 1))).argmax(1)
    return softmax(3 * logits), gold


def test_the_temperature_of_overconfident_probabilities_is_found() -> None:
    p, gold = overconfident()
    temperature = find_temperature("label", p, gold)
    assert temperature == pytest.approx(3.0, rel=0.07)
    calibrated = tempered("label", p, temperature)
    before, after = reliability("label", p, gold), reliability("label", calibrated, gold)
    assert after.ece < 0.03 < 0.2 < before.ece
    assert sum(b.rows for b in before.bins) == len(gold)
    assert (calibrated.argmax(1) == p.argmax(1)).all()
    assert tempered("label", calibrated, 1 / temperature) == pytest.approx(p, abs=1e-9)


def test_several_labels_are_calibrated_too() -> None:
    logits = RANDOM.normal(size=(3000, 3))
    gold = RANDOM.random((3000, 3)) < 1 / (1 + np.exp(-logits))
    p = 1 / (1 + np.exp(-2.5 * logits))
    temperature = find_temperature("labels", p, gold)
    assert temperature == pytest.approx(2.5, rel=0.07)
    assert reliability("labels", tempered("labels", p, temperature), gold).ece < 0.03
    assert tempered("labels", tempered("labels", p, 4.0), 0.25) == pytest.approx(p, abs=1e-9)


def test_perfect_and_few_rows_do_not_make_a_model_certain() -> None:
    p = np.array([[0.6, 0.4], [0.4, 0.6]] * 15)
    gold = np.array([0, 1] * 15)
    calibrated = tempered("label", p, find_temperature("label", p, gold))
    assert 0.9 < calibrated.max() < 0.98, "thirty right answers of thirty"
    assert find_temperature("label", p[:10], gold[:10]) == 1.0
    hard = np.array([[1.0, 0.0], [0.0, 1.0]] * 15)
    assert np.isfinite(tempered("label", hard, find_temperature("label", hard, 1 - gold))).all()


def test_thresholds_find_labels_that_a_half_misses() -> None:
    gold = RANDOM.random((400, 3)) < (0.5, 0.1, 0.01)
    p = np.clip(0.2 * gold + 0.25 * RANDOM.random(gold.shape), 0, 1)
    labels = ("often", "seldom", "rare")
    thresholds = find_thresholds(p, gold, "f1-micro")
    assert score("f1-micro", gold, p >= 0.5, labels) == 0.0
    assert score("f1-micro", gold, p >= np.array(thresholds), labels) > 0.9
    macro = find_thresholds(p, gold, "f1-macro")
    assert score("f1-macro", gold, p >= np.array(macro), labels) > 0.85
    common = find_thresholds(p[:, 2:], gold[:, 2:], "f1-micro")[0]
    assert 0.15 < common < 0.5
    assert find_thresholds(p, np.zeros_like(gold), "f1-micro") == (0.5, 0.5, 0.5)


def test_a_threshold_of_a_half_stays_if_nothing_is_better() -> None:
    gold = RANDOM.random((100, 2)) < 0.5
    assert find_thresholds(np.where(gold, 0.9, 0.1), gold, "f1-micro") == (0.5, 0.5)


def test_a_task_kind_stores_and_applies_them() -> None:
    kind = TaskKind("labels", ("a", "b")).tuned({"temperature": 2.0, "thresholds": [0.3, 0.8]})
    stored = stored_kind("labels", ("a", "b"), {"outputs": 2, "pooling": "mean", **kind.to_dict()})
    assert stored == kind and stored.thresholds == (0.3, 0.8)
    assert stored.describe(np.array([0.4, 0.7]))["labels"] == ["a"]
    assert stored.decide(np.array([[0.2, 0.9]])).tolist() == [[False, True]]
    import torch

    (row,) = stored.probabilities(torch.tensor([[2.0, -2.0]]))
    assert row == pytest.approx(1 / (1 + np.exp(np.array([-1.0, 1.0]))))
    plain = stored_kind("labels", ("a", "b"), {"outputs": 2, "pooling": "mean"})
    assert plain.describe(np.array([0.4, 0.7]))["labels"] == ["b"] and plain.to_dict() == {}
