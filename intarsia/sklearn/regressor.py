"""A number for each text."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from intarsia.sklearn.estimator import IntarsiaEstimator
from intarsia.sklearn.inputs import InvalidInput, check_same_length, check_texts


def negative_mean_squared_error(gold: np.ndarray, predicted: np.ndarray) -> float:
    """The default metric of a regressor: larger is better."""
    return -float(np.mean((gold - predicted) ** 2))


class IntarsiaRegressor(RegressorMixin, IntarsiaEstimator):
    __doc__ = f"""A regressor of texts or pairs of texts. The best epoch has the smallest squared error.

    {(IntarsiaEstimator.__doc__ or "").partition("frozen base.")[2].strip()}

    Attributes
    ----------
    inlay_ : what was learned; `to_bank` stores it
    """

    _kind = "score"

    def fit(self, X: Any, y: Any) -> Self:
        texts = check_texts(X)
        if y is None:
            raise InvalidInput("fit requires y to be passed, but the target y is None.")
        try:
            scores = column_or_1d(y if hasattr(y, "dtype") else np.asarray(y), warn=True).astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"y: expected a number for each text ({error}).") from error
        check_same_length(texts, scores)
        if not np.isfinite(scores).all():
            raise InvalidInput("y contains NaN or infinity. Expected a finite number for each text.")
        self._learn(texts, scores.tolist(), ())
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return a number for each text."""
        return self._outputs(X)[:, 0]

    def _metric(self) -> Any:
        return self.metric or negative_mean_squared_error
