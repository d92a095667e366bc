"""One label of n for each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from intarsia.sklearn.estimator import IntarsiaEstimator
from intarsia.sklearn.inputs import InvalidInput, check_same_length, check_texts


class IntarsiaClassifier(ClassifierMixin, IntarsiaEstimator):
    __doc__ = f"""A classifier of texts or pairs of texts: one label of n.

    {(IntarsiaEstimator.__doc__ or "").partition("frozen base.")[2].strip()}

    Attributes
    ----------
    classes_ : array of the labels
    inlay_ : what was learned; `to_bank` stores it
    """

    def fit(self, X: Any, y: Any) -> Self:
        texts = check_texts(X)
        labels = checked_labels(y)
        check_same_length(texts, labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(f"y has one class, {self.classes_.tolist()[0]!r}. Expected two or more classes.")
        names = label_names(self.classes_)
        self._learn(texts, [names[number] for number in numbers], names)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class [texts, classes], in the order of `classes_`."""
        outputs = self._outputs(X)
        return np.asarray(outputs / outputs.sum(axis=1, keepdims=True))  # from float32: the sum is exact to few digits

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each text."""
        chosen = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def _pretended(self, count: int) -> np.ndarray:
        return np.full((count, len(self.classes_)), 1 / len(self.classes_))

    def _take_labels(self, labels: Sequence[str]) -> None:
        self.classes_ = np.array(labels)


def checked_labels(y: Any) -> np.ndarray:
    """y as an array of one label for each text."""
    if y is None:
        raise InvalidInput("fit requires y to be passed, but the target y is None.")
    try:
        if hasattr(y, "isna") and np.asarray(y.isna()).any():
            raise InvalidInput("y has missing values (NaN). Give each text a label, or drop the row.")
        labels = column_or_1d(y if hasattr(y, "dtype") else np.asarray(y), warn=True)
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise InvalidInput("y contains NaN or infinity. Give each text a label, or drop the row.")
        if labels.dtype.kind == "O" and any(label is None for label in labels):
            raise InvalidInput("y has missing values (None). Give each text a label, or drop the row.")
        check_classification_targets(labels)
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"y: {error}") from error
    return np.asarray(labels)


def label_names(classes: np.ndarray) -> list[str]:
    """The classes as names of labels; their numbers where the names would not be distinct."""
    names = [str(label).strip() for label in classes.tolist()]
    return names if len(set(names)) == len(names) and all(names) else [str(i) for i in range(len(names))]
