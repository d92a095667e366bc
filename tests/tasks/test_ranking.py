"""Metrics of probabilities agree with scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from intarsia.errors import DataError
from intarsia.tasks import metrics as own
from intarsia.tasks.ranking import auc, average_precision, measure_of, precision_recall, ranked_labels

RANDOM = np.random.default_rng(3)
GOLD = RANDOM.random(200) < 0.3
SCORES = np.round(np.clip(0.4 * GOLD + RANDOM.random(200) * 0.8, 0, 1), 2)  # with ties
ONE = np.ones((1, 200))


def test_auc_and_average_precision() -> None:
    assert auc(GOLD, SCORES, ONE)[0] == pytest.approx(sk.roc_auc_score(GOLD, SCORES), abs=1e-12)
    assert average_precision(GOLD, SCORES, ONE)[0] == pytest.approx(sk.average_precision_score(GOLD, SCORES), abs=1e-12)
    weights = RANDOM.integers(0, 3, (1, 200)).astype(float)
    assert auc(GOLD, SCORES, weights)[0] == pytest.approx(sk.roc_auc_score(GOLD, SCORES, sample_weight=weights[0]))
    assert np.isnan(auc(np.ones(200, bool), SCORES, ONE)[0])


def test_the_mean_over_labels() -> None:
    gold = np.eye(3, dtype=bool)[RANDOM.integers(0, 3, 200)]
    p = RANDOM.dirichlet(np.ones(3), 200)
    value = measure_of("auc", gold, p, ranked_labels("auc", "abc", None))(ONE)[0]
    assert value == pytest.approx(sk.roc_auc_score(gold.argmax(1), p, multi_class="ovr"), abs=1e-12)
    assert ranked_labels("auc:b", "abc", None) == [1]
    with pytest.raises(DataError, match="no label 'z'"):
        ranked_labels("auc:z", "abc", None)
    with pytest.raises(DataError, match="only one of the two"):
        measure_of("auc", np.ones((4, 1), bool), np.ones((4, 1)), [0])


def test_the_precision_recall_curve() -> None:
    recall, precision = precision_recall(GOLD, SCORES)
    sk_precision, sk_recall, _ = sk.precision_recall_curve(GOLD, SCORES)
    assert recall == pytest.approx(sk_recall[:-1][::-1]) and precision == pytest.approx(sk_precision[:-1][::-1])


def test_precision_recall_mse_and_mae() -> None:
    labels, random = ("a", "b", "c"), np.random.default_rng(5)
    gold, predicted = random.integers(0, 3, 90), random.integers(0, 3, 90)
    for name, function in (("precision", sk.precision_score), ("recall", sk.recall_score)):
        assert own.score(f"{name}-macro", gold, predicted, labels) == pytest.approx(
            function(gold, predicted, average="macro")
        )
        assert own.score(f"{name}:b", gold, predicted, labels) == pytest.approx(function(gold == 1, predicted == 1))
        flags, chosen = random.random((50, 3)) < 0.4, random.random((50, 3)) < 0.4
        assert own.score(f"{name}-micro", flags, chosen, labels) == pytest.approx(
            function(flags, chosen, average="micro")
        )
    scores, found = random.random(30), random.random(30)
    assert own.score("mse", scores, found) == pytest.approx(sk.mean_squared_error(scores, found))
    assert own.score("mae", scores, found) == pytest.approx(sk.mean_absolute_error(scores, found))
    for metric in ("mse", "mae"):
        with pytest.raises(DataError, match="lower is better"):
            own.check_choosing(metric, "score", ())
    own.check_choosing("auc", "label", labels)
    own.check_choosing("average-precision:b", "labels", labels)
    with pytest.raises(DataError, match="auc is no metric of the kind score"):
        own.check_metric("auc", "score", ())
