"""Metrics against scikit-learn and scipy, their degenerate cases, and the bootstrap."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import DataError
from intarsia.tasks.metrics import METRICS, bootstrap, default_metric, positive_label, score

LABELS = ("a", "b", "c", "d")


@st.composite
def label_arrays(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    rows = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
    gold, predicted = np.array(rows).T
    return gold, predicted


@settings(max_examples=100, deadline=None)
@given(label_arrays())
def test_label_metrics_equal_scikit_learn(arrays: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn import metrics

    gold, predicted = arrays
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns where a label is missing; ours must not
        expected = {
            "accuracy": metrics.accuracy_score(gold, predicted),
            "f1:c": metrics.f1_score(gold, predicted, labels=[2], average="macro", zero_division=0),
            "f1-macro": metrics.f1_score(gold, predicted, average="macro", zero_division=0),
            "f1-micro": metrics.f1_score(gold, predicted, average="micro", zero_division=0),
            "matthews": metrics.matthews_corrcoef(gold, predicted),
        }
    assert {name: score(name, gold, predicted, LABELS) for name in expected} == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=25))
def test_metrics_of_several_labels_equal_scikit_learn(rows: list[list[bool]]) -> None:
    from sklearn import metrics

    both = np.array(rows)
    gold, predicted = both[:, :3], both[:, 3:]
    counted = np.flatnonzero((gold | predicted).any(axis=0))
    expected = {
        "accuracy": metrics.accuracy_score(gold, predicted),
        "f1-micro": metrics.f1_score(gold, predicted, average="micro", zero_division=0),
        "f1-macro": 0.0,
    }
    if len(counted):
        expected["f1-macro"] = metrics.f1_score(gold, predicted, labels=counted, average="macro", zero_division=0)
    assert {name: score(name, gold, predicted, "abc") for name in expected} == pytest.approx(expected)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=40))
def test_correlations_equal_scipy(rows: list[tuple[int, int]]) -> None:
    from scipy import stats

    gold, predicted = np.array(rows, dtype=float).T / 7 + 100
    if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        expected = {"pearson": 0.0, "spearman": 0.0}
    else:
        expected = {
            "pearson": stats.pearsonr(gold, predicted).statistic,
            "spearman": stats.spearmanr(gold, predicted).statistic,
        }
    assert {name: score(name, gold, predicted) for name in expected} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["accuracy", "f1:b", "f1-macro", "matthews", "pearson", "spearman"])
def test_bootstrap_equals_scoring_each_resample(metric: str) -> None:
    generator = np.random.default_rng(3)
    gold, predicted = generator.integers(4, size=(2, 50))
    if METRICS[metric.partition(":")[0]].kinds == ("score",):
        gold, predicted = gold.astype(float), predicted / 3
    draws = np.random.default_rng(7).integers(50, size=(40, 50))
    each = [score(metric, gold[rows], predicted[rows], LABELS) for rows in draws]
    interval = bootstrap(metric, gold, predicted, labels=LABELS, resamples=40, seed=7)
    assert interval.value == score(metric, gold, predicted, LABELS)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(each, [0.025, 0.975])))


def test_bootstrap_covers_and_narrows_with_the_level() -> None:
    gold = np.arange(500) % 2
    predicted = np.where(np.arange(500) % 5 == 0, 1 - gold, gold)
    wide = bootstrap("accuracy", gold, predicted, labels=("a", "b"))
    narrow = bootstrap("accuracy", gold, predicted, labels=("a", "b"), level=0.5)
    assert wide.low < narrow.low < wide.value == 0.8 < narrow.high < wide.high
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * np.sqrt(0.8 * 0.2 / 500), rel=0.1)
    assert wide == bootstrap("accuracy", gold, predicted, labels=("a", "b"))
    assert wide != bootstrap("accuracy", gold, predicted, labels=("a", "b"), seed=1)


def test_constant_sides_give_zero_without_warnings() -> None:
    ones, mixed = np.ones(6, dtype=int), np.array([0, 1, 0, 1, 1, 1])
    for gold, predicted in ((ones, mixed), (mixed, ones), (ones, ones)):
        assert bootstrap("matthews", gold, predicted, labels=("a", "b"), resamples=50) == (0, 0, 0)
        for metric in ("pearson", "spearman"):
            assert bootstrap(metric, gold / 10, predicted / 10, resamples=50) == (0, 0, 0)
    assert score("f1", np.zeros(4, int), np.zeros(4, int), ("no", "yes")) == 0
    assert score("f1-micro", np.zeros((4, 2), bool), np.zeros((4, 2), bool), "ab") == 0
    assert score("f1-macro", np.zeros((4, 2), bool), np.zeros((4, 2), bool), "ab") == 0
    assert -1 <= bootstrap("pearson", np.array([0.1, 0.3]), np.array([0.1, 0.3]), resamples=50).low <= 1


def test_positive_labels() -> None:
    assert positive_label(("ham", "spam")) == "spam"
    assert positive_label(("0", "1")) == "1"
    assert positive_label(("equivalent", "not_equivalent")) == "equivalent"
    assert positive_label(("acceptable", "unacceptable")) == "acceptable"
    gold, predicted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    names = ("equivalent", "not_equivalent")
    assert score("f1", gold, predicted, names) == score("f1:equivalent", gold, predicted, names) == pytest.approx(2 / 3)
    assert score("f1:not_equivalent", gold, predicted, names) == pytest.approx(0.8)


def test_every_kind_has_a_default_that_measures_it() -> None:
    assert default_metric("label", LABELS) == "accuracy"
    assert default_metric("labels", LABELS) == "f1-micro"
    assert default_metric("score", ()) == "spearman"
    assert all(metric.name == name and metric.title for name, metric in METRICS.items())


INTS, FLOATS, FLAGS = np.array([0, 1]), np.array([0.5, 1.0]), np.ones((2, 2), bool)


@pytest.mark.parametrize(
    ("metric", "gold", "predicted", "message"),
    [
        ("bleu", INTS, INTS, "unknown metric 'bleu'. Expected one of accuracy, "),
        ("accuracy:a", INTS, INTS, "unknown metric"),
        ("accuracy", INTS, INTS[:1], "one shape"),
        ("accuracy", INTS[:0], INTS[:0], "at least one row"),
        ("accuracy", FLOATS, FLOATS, "accuracy applies to label or labels, not to float64"),
        ("accuracy", INTS, FLOATS, "against float64"),
        ("pearson", INTS, INTS, "pearson applies to score"),
        ("pearson", FLOATS, np.array([np.nan, 1]), "finite"),
        ("accuracy", INTS, np.array([0, 5]), "have label numbers 0 to 5, but there are 3 labels"),
        ("accuracy", INTS, np.array([0, -1]), "have label numbers -1 to 1"),
        ("f1-micro", FLAGS, FLAGS, "have 2 columns, but there are 3 labels"),
        ("f1", INTS, INTS, "f1 needs two labels, but the task has 3. Use f1-macro, or name one label as in f1:LABEL"),
        ("f1:z", INTS, INTS, "no label 'z'. Known labels: a, b, c"),
    ],
)
def test_complaints(metric: str, gold: np.ndarray, predicted: np.ndarray, message: str) -> None:
    with pytest.raises(DataError) as caught:
        score(metric, gold, predicted, ("a", "b", "c"))
    assert message in str(caught.value)
