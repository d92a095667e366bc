"""The models of scikit-learn that read the numbers, one of our own, and how large they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.lab.no_bert.candidates import MANY_LABELS, Candidate
from intarsia.lab.no_bert.features import Corpus
from intarsia.tasks.examples import Kind

if TYPE_CHECKING:
    from intarsia.tasks.task_kind import TaskKind


class Fitted:
    """A candidate, fitted on train."""

    def __init__(self, candidate: Candidate, corpus: Corpus, answers: TaskKind) -> None:
        self.answers = answers
        self.reading = corpus.reading(candidate.features)
        gold = answers.gold(corpus.data.train)
        if answers.kind == "score":
            gold = (gold - answers.mean) / answers.spread
        model = _model(answers.kind, len(answers.labels), candidate, corpus.seed)
        self.model = model.fit(self.reading.matrix("train"), gold)

    def predict(self, part: str) -> np.ndarray:
        """In the form of `TaskKind.gold`."""
        predicted = self.model.predict(self.reading.matrix(part))
        if self.answers.kind == "score":
            return np.asarray(predicted, float).reshape(-1) * self.answers.spread + self.answers.mean
        return predicted if self.answers.kind == "label" else predicted.reshape(-1, len(self.answers.labels)) > 0

    def parameters(self) -> dict[str, int]:
        features, model = self.reading.parameters(), _size(self.model)
        return {"features": features, "model": model, "total": features + model}


def _model(kind: Kind, labels: int, candidate: Candidate, seed: int) -> Any:
    """An unfitted model of scikit-learn; one-vs-rest for several labels, and where the memory asks for it."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.naive_bayes import ComplementNB, MultinomialNB
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

    makers: dict[str, Any] = {
        "logistic regression": (LogisticRegression, {"max_iter": 1000}),
        "linear SVM": (LinearSVC, {"dual": "auto", "max_iter": 5000, "random_state": seed}),
        "NB-SVM": (NaiveBayesSvm, {"seed": seed}),
        "ridge": (RidgeClassifier, {}),
        "SGD": (SGDClassifier, {"loss": "modified_huber", "average": True, "random_state": seed}),
        "multinomial NB": (MultinomialNB, {}),
        "complement NB": (ComplementNB, {}),
        "RBF SVM": (SVC, {}),
        "boosted trees": (HistGradientBoostingClassifier, {"early_stopping": False, "random_state": seed}),
        "MLP": (MLPClassifier, {"random_state": seed}),
    }
    if kind == "score":
        makers |= {
            "linear SVM": (LinearSVR, {"dual": "auto", "loss": "squared_epsilon_insensitive", "random_state": seed}),
            "ridge": (Ridge, {}),
            "RBF SVM": (SVR, {}),
            "boosted trees": (HistGradientBoostingRegressor, {"early_stopping": False, "random_state": seed}),
            "MLP": (MLPRegressor, {"random_state": seed}),
        }
    make, fixed = makers[candidate.model]
    model = make(**fixed, **dict(candidate.options))
    by_label = kind == "labels" or (candidate.model == "logistic regression" and labels > MANY_LABELS)
    return OneVsRestClassifier(model) if by_label and candidate.model not in ("MLP", "NB-SVM") else model


class NaiveBayesSvm:
    """Wang and Manning 2012: a linear SVM over n-grams scaled by how much more often a label has them than the rest."""

    def __init__(self, C: float, seed: int, class_weight: str | None = None) -> None:
        self.options = {"C": C, "class_weight": class_weight, "random_state": seed}

    def fit(self, x: Any, y: np.ndarray) -> NaiveBayesSvm:
        from sklearn.svm import LinearSVC

        self.several = y.ndim == 2
        count = y.max() + 1
        columns = y.T if self.several else [y == 1] if count == 2 else [y == label for label in range(count)]
        weights, biases = [], []
        for there in columns:
            with_label, without = (1 + np.asarray(x[rows].sum(axis=0)).reshape(-1) for rows in (there, ~there))
            ratio = np.log(with_label / with_label.sum()) - np.log(without / without.sum())
            svm = LinearSVC(dual="auto", max_iter=5000, **self.options).fit(x.multiply(ratio).tocsr(), there)
            weights.append(svm.coef_[0] * ratio)
            biases.append(svm.intercept_[0])
        self.coef_, self.intercept_ = np.array(weights), np.array(biases)
        return self

    def predict(self, x: Any) -> np.ndarray:
        values = x @ self.coef_.T + self.intercept_
        if self.several:
            return values > 0
        return (values[:, 0] > 0).astype(int) if values.shape[1] == 1 else values.argmax(axis=1)


def _size(model: Any) -> int:
    """How many numbers a fitted model holds."""
    if hasattr(model, "estimators_"):
        return sum(_size(one) for one in model.estimators_)
    if hasattr(model, "coefs_"):
        return sum(array.size for array in (*model.coefs_, *model.intercepts_))
    if hasattr(model, "_predictors"):  # a split is a feature and a threshold, a leaf is a value
        trees = [tree.nodes["is_leaf"] for step in model._predictors for tree in step]
        return sum(int(leaf.sum() + 2 * (~leaf.astype(bool)).sum()) for leaf in trees) + len(model._predictors[0])
    names = ("support_vectors_", "dual_coef_") if hasattr(model, "support_vectors_") else ("coef_",)
    names = ("feature_log_prob_", "class_log_prior_") if hasattr(model, "feature_log_prob_") else names
    return sum(np.size(getattr(model, name, ())) for name in (*names, "intercept_"))
