"""The scikit-learn models of the search, an NB-SVM, and the parameter count of a fitted model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.lab.no_bert.candidates import MANY_LABELS, Candidate
from intarsia.lab.no_bert.features import Corpus
from intarsia.tasks.examples import Kind

if TYPE_CHECKING:
    from intarsia.tasks.task_kind import TaskKind


class FittedModel:
    """A candidate that is fitted on train."""

    def __init__(self, candidate: Candidate, corpus: Corpus, task_kind: TaskKind) -> None:
        self.task_kind = task_kind
        self.extractor = corpus.extractor(candidate.features)
        gold = task_kind.gold(corpus.data.train)
        if task_kind.kind == "score":
            gold = (gold - task_kind.mean) / task_kind.spread
        model = _model(task_kind.kind, len(task_kind.labels), candidate, corpus.seed)
        self.model = model.fit(self.extractor.matrix("train"), gold)

    def predict(self, part: str) -> np.ndarray:
        """Return predictions in the form of `TaskKind.gold`."""
        predicted = self.model.predict(self.extractor.matrix(part))
        if self.task_kind.kind == "score":
            return np.asarray(predicted, float).reshape(-1) * self.task_kind.spread + self.task_kind.mean
        return predicted if self.task_kind.kind == "label" else predicted.reshape(-1, len(self.task_kind.labels)) > 0

    def parameters(self) -> dict[str, int]:
        """Return the numbers of fitted values: features, model, total."""
        features, model = self.extractor.parameters(), _size(self.model)
        return {"features": features, "model": model, "total": features + model}


def _model(kind: Kind, labels: int, candidate: Candidate, seed: int) -> Any:
    """Return an unfitted scikit-learn model. Multi-label tasks use one-vs-rest, and so does logistic regression with
    many labels, to save memory."""
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
    """The NB-SVM of Wang and Manning 2012: a linear SVM on n-grams scaled by their naive Bayes log-count ratios."""

    def __init__(self, C: float, seed: int, class_weight: str | None = None) -> None:
        self.options = {"C": C, "class_weight": class_weight, "random_state": seed}

    def fit(self, x: Any, y: np.ndarray) -> NaiveBayesSvm:
        from sklearn.svm import LinearSVC

        self.multi_label = y.ndim == 2
        count = y.max() + 1
        columns = y.T if self.multi_label else [y == 1] if count == 2 else [y == label for label in range(count)]
        weights, biases = [], []
        for positive in columns:
            with_label, without = (1 + np.asarray(x[rows].sum(axis=0)).reshape(-1) for rows in (positive, ~positive))
            ratio = np.log(with_label / with_label.sum()) - np.log(without / without.sum())
            svm = LinearSVC(dual="auto", max_iter=5000, **self.options).fit(x.multiply(ratio).tocsr(), positive)
            weights.append(svm.coef_[0] * ratio)
            biases.append(svm.intercept_[0])
        self.coef_, self.intercept_ = np.array(weights), np.array(biases)
        return self

    def predict(self, x: Any) -> np.ndarray:
        values = x @ self.coef_.T + self.intercept_
        if self.multi_label:
            return values > 0
        return (values[:, 0] > 0).astype(int) if values.shape[1] == 1 else values.argmax(axis=1)


def _size(model: Any) -> int:
    """Return the number of fitted values in a model."""
    if hasattr(model, "estimators_"):
        return sum(_size(estimator) for estimator in model.estimators_)
    if hasattr(model, "coefs_"):
        return sum(array.size for array in (*model.coefs_, *model.intercepts_))
    if hasattr(model, "_predictors"):  # a split has a feature and a threshold, a leaf has a value
        trees = [tree.nodes["is_leaf"] for step in model._predictors for tree in step]
        return sum(int(leaf.sum() + 2 * (~leaf.astype(bool)).sum()) for leaf in trees) + len(model._predictors[0])
    names = ("support_vectors_", "dual_coef_") if hasattr(model, "support_vectors_") else ("coef_",)
    names = ("feature_log_prob_", "class_log_prior_") if hasattr(model, "feature_log_prob_") else names
    return sum(np.size(getattr(model, name, ())) for name in (*names, "intercept_"))
