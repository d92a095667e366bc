"""scikit-learn's own checks.

`check_estimator` gives matrices of numbers, and skips estimators that take texts. The estimators are therefore also
tested with a wrapper that writes each row of numbers as words. All checks pass; the wrappers say `poor_score`, because
a random base learns little from such words.
"""

from __future__ import annotations

import atexit
import tempfile
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from sklearn.utils.validation import validate_data

from intarsia.sklearn import (
    IntarsiaClassifier,
    IntarsiaMultiLabelClassifier,
    IntarsiaRegressor,
    IntarsiaVectorizer,
)
from tests.support.families import WORDS, save_tiny

_folder = tempfile.TemporaryDirectory()
atexit.register(_folder.cleanup)
LEVELS = WORDS[4:34]


@cache
def base() -> str:
    return save_tiny(_folder.name)


class OfNumbers:
    """Each number as a word: 30 words, from small to large."""

    def _written(self, X: Any, reset: bool) -> list[str]:
        X = validate_data(self, X, reset=reset)
        levels = np.clip((X * 3 + 15).astype(int), 0, len(LEVELS) - 1)
        return [" ".join(LEVELS[level] for level in row[:20]) for row in levels]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        return tags


class Learner(OfNumbers):
    def __init__(self, epochs: int = 1, learning_rate: float = 3e-3, random_state: Any = 0) -> None:
        super().__init__(  # type: ignore[call-arg]
            "houlsby-4", encoder=base(), epochs=epochs, learning_rate=learning_rate, batch_size=32,
            random_state=random_state, max_length=24,
        )  # fmt: skip

    def fit(self, X: Any, y: Any) -> Any:
        return super().fit(self._written(X, True), y)  # type: ignore[misc]

    def _outputs(self, X: Any) -> np.ndarray:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "inlay_")
        return super()._outputs(self._written(X, False))  # type: ignore[misc]


class NumberClassifier(Learner, IntarsiaClassifier):
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # words of a random base
        return tags


class NumberRegressor(Learner, IntarsiaRegressor):
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class NumberVectorizer(OfNumbers, IntarsiaVectorizer):
    def __init__(self) -> None:
        super().__init__(base(), max_length=24)

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(self._written(X, True))

    def transform(self, X: Any) -> np.ndarray:
        return super().transform(self._written(X, False))


ESTIMATORS = (NumberClassifier(), NumberRegressor(), NumberVectorizer())
CHECKS = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{getattr(check, 'func', check).__name__}")
    for estimator in ESTIMATORS
    for estimator, check in estimator_checks_generator(estimator)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "estimator", [IntarsiaClassifier(), IntarsiaRegressor(), IntarsiaMultiLabelClassifier(), IntarsiaVectorizer()]
)
def test_the_checks_for_texts(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        check_estimator(estimator)
