"""Any of n labels for each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from intarsia.sklearn.classifier import label_names
from intarsia.sklearn.estimator import IntarsiaEstimator
from intarsia.sklearn.inputs import InvalidInput, check_same_length, check_texts


class IntarsiaMultiLabelClassifier(ClassifierMixin, IntarsiaEstimator):
    __doc__ = f"""A classifier of texts or pairs of texts: any of n labels.

    y is a matrix of zeros and ones [texts, labels], a DataFrame of them (its columns name the labels), or a list with
    the labels of each text. Predictions are matrices of zeros and ones, as scikit-learn's metrics take them.

    {(IntarsiaEstimator.__doc__ or "").partition("frozen base.")[2].strip()}

    Attributes
    ----------
    classes_ : array of the labels, which name the columns
    inlay_ : what was learned; `to_bank` stores it
    """

    _kind = "labels"

    def fit(self, X: Any, y: Any) -> Self:
        texts = check_texts(X)
        self.classes_, matrix = indicators(y)
        check_same_length(texts, matrix)
        names = label_names(self.classes_)
        self._learn(texts, [tuple(names[i] for i in np.flatnonzero(row)) for row in matrix], names)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each label for each text [texts, labels]."""
        return self._outputs(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return zeros and ones [texts, labels]."""
        probabilities = self._outputs(X)
        if self.inlay_ is None:
            return (probabilities >= 0.5).astype(int)
        return self.inlay_.interface.task_kind.decide(probabilities).astype(int)

    def predict_labels(self, X: Any) -> list[tuple[Any, ...]]:
        """Return the labels of each text."""
        return [tuple(self.classes_[row.astype(bool)].tolist()) for row in self.predict(X)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of texts whose labels are all right."""
        _, gold = indicators(y, self.classes_)
        return float(accuracy_score(gold, self.predict(X), sample_weight=sample_weight))

    def _pretended(self, count: int) -> np.ndarray:
        return np.zeros((count, len(self.classes_)))

    def _take_labels(self, labels: Sequence[str]) -> None:
        self.classes_ = np.array(labels)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.single_output = False
        tags.target_tags.multi_output = True
        return tags


def indicators(y: Any, classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The labels, and zeros and ones [texts, labels]. `classes`: the labels of a fitted estimator."""
    if y is None:
        raise InvalidInput("fit requires y to be passed, but the target y is None.")
    if hasattr(y, "toarray"):
        y = y.toarray()
    if getattr(y, "ndim", 1) == 2:
        matrix = np.asarray(y)
        if matrix.shape[1] == 0 or not np.isin(matrix, (0, 1)).all():
            raise InvalidInput("y: expected a matrix of zeros and ones, or a list with the labels of each text.")
        names = np.array(y.columns) if hasattr(y, "columns") else np.arange(matrix.shape[1])
        if classes is not None and len(classes) != len(names):
            raise InvalidInput(f"y has {len(names)} columns. Expected {len(classes)}, one for each label.")
        return names, matrix.astype(int)
    rows = [*y]
    if not rows or any(isinstance(row, str) or not hasattr(row, "__iter__") for row in rows):
        raise InvalidInput("y: expected a matrix of zeros and ones, or a list with the labels of each text.")
    names = np.unique([label for row in rows for label in row]) if classes is None else classes
    column = {label: place for place, label in enumerate(names.tolist())}
    if not column:
        raise InvalidInput("y: no text has a label. Expected at least one.")
    matrix = np.zeros((len(rows), len(column)), int)
    for place, row in enumerate(rows):
        for label in row:
            if label not in column:
                raise InvalidInput(f"y, row {place + 1}: the label {label!r} did not occur when this was fitted.")
            matrix[place, column[label]] = 1
    return names, matrix
