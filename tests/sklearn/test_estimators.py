"""The estimators among scikit-learn's tools."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import intarsia
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.sklearn import (
    IntarsiaClassifier,
    IntarsiaGridSearchCV,
    IntarsiaMultiLabelClassifier,
    IntarsiaRandomizedSearchCV,
    IntarsiaRegressor,
    IntarsiaVectorizer,
    InvalidInput,
    shared_fits,
)
from tests.support.families import opinions, save_tiny, tiny_with_words

pd = pytest.importorskip("pandas")
ROWS = opinions(60)
X = [row["text"] for row in ROWS]
Y = [row["label"] for row in ROWS]
QUICK: dict[str, Any] = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 16, "dropout": False}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture
def classifier(encoder: Encoder) -> IntarsiaClassifier:
    return IntarsiaClassifier("houlsby-4", encoder=encoder, **QUICK)


def test_every_form_of_x_and_y_gives_the_same(classifier: IntarsiaClassifier) -> None:
    expected = classifier.fit(X, Y).predict_proba(X[:5])
    np.testing.assert_allclose(expected.sum(axis=1), 1)
    frame = pd.DataFrame({"text": X, "label": Y})
    for x, y in ((np.array(X), np.array(Y)), (frame["text"], frame["label"]), (frame[["text"]], frame["label"])):
        np.testing.assert_array_equal(clone(classifier).fit(x, y).predict_proba(x[:5]), expected)
    numbers = clone(classifier).fit(X, [10 if label == "yes" else 2 for label in Y])
    assert numbers.classes_.tolist() == [2, 10] and set(numbers.predict(X)) <= {2, 10}


def test_pairs_of_texts(classifier: IntarsiaClassifier) -> None:
    pairs = [(text, "it was so") for text in X]
    assert classifier.fit(pairs, Y).predict(pairs[:3]).shape == (3,)
    with pytest.raises(InvalidInput, match="fitted on pairs"):
        classifier.predict(X)


def test_pickled_and_cloned(classifier: IntarsiaClassifier, tmp_path: Path) -> None:
    classifier.set_params(encoder=save_tiny(tmp_path / "base")).fit(X, Y)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert not hasattr(clone(classifier), "inlay_")
    other = again.set_params(encoder=tiny_with_words(seed=1))
    with pytest.raises(IntarsiaError, match="was fitted on the base"):
        other.predict(X)


def test_the_base_is_shared_not_copied(classifier: IntarsiaClassifier, encoder: Encoder) -> None:
    assert clone(classifier).encoder is encoder
    assert isinstance(pickle.loads(pickle.dumps(classifier)).encoder, str)


def test_into_a_bank_and_back(classifier: IntarsiaClassifier, encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = classifier.fit(X, Y).to_bank(bank, "opinion")
    assert (entry.name, entry.version) == ("opinion", 1)
    np.testing.assert_allclose(bank.predict_proba("opinion", X).values, classifier.predict_proba(X), atol=1e-5)
    again = IntarsiaClassifier.from_bank(bank, "opinion")
    assert again.predict(X).tolist() == classifier.predict(X).tolist() and again.method == "houlsby-4"
    with pytest.raises(IntarsiaError, match="is for the kind 'score'"):
        IntarsiaRegressor.from_bank(bank, "opinion")


def test_regressor(encoder: Encoder) -> None:
    scores = [len(text) / 3 for text in X]
    regressor = IntarsiaRegressor("houlsby-4", encoder=encoder, **QUICK).fit(X, scores)
    assert regressor.predict(X).dtype == np.float64 and regressor.score(X, scores) < 1
    assert regressor.inlay_.metrics["metric"] == "negative_mean_squared_error"


def test_several_labels(encoder: Encoder) -> None:
    lists = [["kind"] if label == "yes" else ["rude", "short"] for label in Y]
    model = IntarsiaMultiLabelClassifier("houlsby-4", encoder=encoder, **QUICK).fit(X, lists)
    assert model.classes_.tolist() == ["kind", "rude", "short"]
    predicted = model.predict(X)
    assert predicted.shape == (60, 3) and set(np.unique(predicted)) <= {0, 1} and 0 <= model.score(X, lists) <= 1
    assert model.predict_labels(X)[0] == tuple(model.classes_[predicted[0] == 1])
    matrix = np.array([["kind" in row, "rude" in row, "short" in row] for row in lists], int)
    named = clone(model).fit(X, pd.DataFrame(matrix, columns=model.classes_))
    np.testing.assert_array_equal(named.predict(X), predicted)
    assert clone(model).fit(X, matrix).classes_.tolist() == [0, 1, 2]
    assert len(cross_val_score(model, X, matrix, cv=2)) == 2


def test_vectors_and_pipelines(encoder: Encoder, classifier: IntarsiaClassifier) -> None:
    vectors = IntarsiaVectorizer(encoder, normalize=True)
    out = vectors.fit_transform(pd.Series(X))
    assert out.shape == (60, 32) and out.dtype == np.float32 and len(vectors.get_feature_names_out()) == 32
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, rtol=1e-5)
    plain = IntarsiaVectorizer(encoder).transform(X)
    np.testing.assert_allclose(plain, intarsia.open("no-such-bank", encoder).embed(X), atol=1e-5)
    assert make_pipeline(vectors, LogisticRegression()).fit(X, Y).score(X, Y) > 0.6
    frame = clone(vectors).set_output(transform="pandas").fit_transform(pd.Series(X, index=range(100, 160)))
    assert frame.index[0] == 100 and frame.columns[0] == "intarsiavectorizer0"
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    assert 0 <= make_pipeline(lower, classifier).fit(X, Y).score(X, Y) <= 1


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X, None, "requires y"),
        (X[:-1], Y, "59 texts and y has 60"),
        ([], [], "0 texts"),
        ("one", ["a"], "expected a list of texts"),
        ([*X[:-1], None], Y, "text 60: expected a text"),
        ([*X[:-1], "  "], Y, "text 60"),
        (np.zeros((60, 2)), Y, "X: expected"),
        (X, ["a"] * 60, "one class"),
        (X, [*Y[:-1], None], "missing values"),
        (X, pd.Series([*Y[:-1], None]), "missing values"),
        (X, np.linspace(0, 1, 60), "Unknown label type"),
    ],
)
def test_wrong_input_is_both_kinds_of_error(classifier: IntarsiaClassifier, x: Any, y: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        classifier.fit(x, y)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, IntarsiaError)


# Fits that share passes.

GRID = {"learning_rate": [1e-3, 3e-3], "method": ["houlsby-2", "houlsby-4"]}


@pytest.mark.parametrize(
    ("parameters", "words"), [({"epochs": "x"}, "epochs must be"), ({"method": "lra"}, "Did you mean 'lora'")]
)
def test_wrong_parameters_are_both_kinds_of_error(
    classifier: IntarsiaClassifier, parameters: dict[str, Any], words: str
) -> None:
    wrong = clone(classifier).set_params(**parameters)
    with pytest.raises(IntarsiaError, match=words) as caught:
        wrong.fit(["good", "bad"] * 10, ["yes", "no"] * 10)
    assert isinstance(caught.value, ValueError)


def test_a_search_that_shares_passes_finds_what_sklearn_finds(classifier: IntarsiaClassifier) -> None:
    alone = GridSearchCV(classifier, GRID, cv=2).fit(X, Y)
    shared = IntarsiaGridSearchCV(classifier, GRID, cv=2).fit(X, Y)
    assert shared.n_shared_fits_ == 8 and shared.cv == 2
    assert shared.cv_results_["params"] == alone.cv_results_["params"]
    np.testing.assert_allclose(shared.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], atol=0.04)
    assert set(shared.predict(X)) <= {"no", "yes"} and clone(shared).estimator is not classifier


def test_a_search_inside_a_pipeline_and_at_random(classifier: IntarsiaClassifier) -> None:
    strip = FunctionTransformer(lambda texts: [text.strip() for text in texts])
    pipeline = make_pipeline(strip, classifier)
    grid = {"intarsiaclassifier__learning_rate": [1e-3, 3e-3]}
    assert IntarsiaGridSearchCV(pipeline, grid, cv=2, refit=False).fit(X, Y).n_shared_fits_ == 4
    search = IntarsiaRandomizedSearchCV(classifier, {"learning_rate": [1e-3, 2e-3, 3e-3]}, n_iter=2, cv=2)
    assert search.fit(X, Y).n_shared_fits_ == 4


def test_any_function_can_share_passes(classifier: IntarsiaClassifier) -> None:
    alone = cross_val_score(classifier, X, Y, cv=3)
    np.testing.assert_allclose(shared_fits(cross_val_score, classifier, X, Y, cv=3), alone, atol=0.06)
    voting = VotingClassifier([("a", classifier), ("b", clone(classifier).set_params(method="houlsby-2"))])
    assert shared_fits(voting.fit, X, Y).predict(X).shape == (60,)


def test_what_is_not_found_again_trains_alone_and_says_so(classifier: IntarsiaClassifier) -> None:
    with pytest.warns(IntarsiaWarning, match="none of the 2 fits shared passes"):
        found = shared_fits(cross_val_score, classifier, X, Y, cv=KFold(2, shuffle=True))
    assert len(found) == 2


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_a_candidate_that_fails_fails_alone(classifier: IntarsiaClassifier) -> None:
    search = IntarsiaGridSearchCV(classifier, {"method": ["houlsby-4", "lorra-4"]}, cv=2)
    with pytest.warns(Warning, match="2 fits failed out of a total of 4"):
        search.fit(X, Y)
    assert search.best_params_ == {"method": "houlsby-4"} and np.isnan(search.cv_results_["mean_test_score"][1])
