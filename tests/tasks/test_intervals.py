"""Intervals: none is empty at the edges, and few rows are called few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intarsia.tasks.intervals import FEW, fisher, interval, ranking_interval, widened, wilson
from intarsia.tasks.metrics import Interval, bootstrap
from intarsia.tasks.own_metric import named_metric

ABC = ("a", "b", "c")


def test_wilson_is_that_of_the_literature() -> None:
    assert wilson(1.0, 6) == pytest.approx((0.6097, 1.0), abs=1e-4)
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 0) == (0.0, 1.0)
    for share, rows in ((0.0, 5), (1.0, 7), (1.0, 1e6)):
        low, high = wilson(share, rows)
        assert low <= share <= high and low < high


def test_a_perfect_accuracy_on_six_rows_is_not_certain() -> None:
    gold = np.array([0, 1, 2, 0, 1, 2])
    found = interval("accuracy", gold, gold, labels=ABC)
    assert tuple(found) == pytest.approx((1.0, 0.6097, 1.0), abs=1e-4) and found.few
    assert interval("accuracy", gold, gold, labels=ABC, resamples=0) == (1.0, 1.0, 1.0)
    many = interval("accuracy", np.tile(gold, 100), np.tile(gold, 100), labels=ABC)
    assert 0.99 < many.low < many.high == 1.0 and not many.few


def test_the_bootstrap_stays_where_it_holds() -> None:
    random = np.random.default_rng(0)
    gold, predicted = random.integers(0, 3, 300), random.integers(0, 3, 300)
    for metric in ("f1-macro", "matthews", "f1:a"):
        found = interval(metric, gold, predicted, labels=ABC)
        assert found == bootstrap(metric, gold, predicted, labels=ABC) and not found.few


def test_f1_of_a_rare_label_rests_on_its_own_rows() -> None:
    gold = np.array([0] * 998 + [1] * 2)
    found = interval("f1:b", gold, gold, labels=("a", "b"))
    assert found.few and found.low < 0.4 and found.high == 1.0
    assert interval("f1-macro", gold, gold, labels=("a", "b")).low < 0.75
    flags = np.tile([True, False], (40, 1))
    assert interval("f1-micro", flags, flags, labels=("a", "b")).low == pytest.approx(wilson(1.0, 40)[0])
    assert interval("recall-macro", gold, gold, labels=("a", "b")).low < 0.75


def test_perfect_correlations_are_not_certain() -> None:
    values = np.arange(50.0)
    for metric in ("pearson", "spearman"):
        found = interval(metric, values, 2 * values)
        assert found.low < 0.99 and found.high == 1.0 and not found.few
    constant = interval("pearson", values, np.zeros(50))
    assert constant.low < -0.2 and constant.high > 0.2
    assert fisher(0.9, 3) == (-1.0, 1.0)
    assert interval("mae", values, values + 1) == (1.0, 1.0, 1.0)


def test_ratios_are_widened_as_shares_of_their_rows() -> None:
    assert widened(Interval(0.9, 0.8, 0.95), FEW) == (0.9, 0.8, 0.95)
    low = widened(Interval(0.9, 0.89, 0.91), 10)
    assert low.few and low.low == wilson(0.9, 10)[0] and low.high == wilson(0.9, 10)[1]


def test_ranking_metrics_have_intervals_too() -> None:
    random = np.random.default_rng(1)
    gold = np.eye(2, dtype=bool)[random.integers(0, 2, 200)]
    p = np.clip(gold[:, 1] * 0.3 + random.random(200) * 0.7, 0, 1)
    found = ranking_interval("auc", gold, np.stack([1 - p, p], 1), ("no", "yes"))
    assert 0.5 < found.low < found.value < found.high < 1 and not found.few
    perfect = ranking_interval("auc", gold[:12], gold[:12].astype(float), ("no", "yes"))
    assert perfect.value == 1.0 and perfect.low < 0.8 and perfect.few


def test_the_interval_of_a_function_is_not_empty() -> None:
    def agreement(gold: Any, predicted: Any) -> float:
        """Has no value for rows of one label, as Cohen's kappa."""
        return float(np.mean(gold == predicted)) if len(set(gold)) > 1 else float("nan")

    metric = named_metric(agreement)
    assert metric is not None
    gold = np.array([0, 1, 1, 0, 1, 1])
    few = interval(metric, gold, gold, labels=("a", "b"))
    assert few.value == few.high == 1.0 and few.low == pytest.approx(wilson(1.0, 6)[0]) and few.few
    many = interval(metric, np.tile(gold, 20), np.tile(gold, 20), labels=("a", "b"))
    assert 0.9 < many.low < many.high == 1.0 and not many.few
    error = named_metric(lambda gold, predicted: -float(np.mean(np.asarray(gold) != predicted)) - 1)
    assert error is not None and interval(error, np.tile(gold, 20), np.tile(gold, 20), labels=("a", "b")).few
