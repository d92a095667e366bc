"""Estimators for scikit-learn: texts in, a frozen base below, and fits of a search in shared passes."""

from intarsia.errors import check_extra

check_extra("sklearn", "sklearn")

from intarsia.sklearn.classifier import IntarsiaClassifier  # noqa: E402 (the check comes first)
from intarsia.sklearn.inputs import InvalidInput  # noqa: E402
from intarsia.sklearn.multi_label import IntarsiaMultiLabelClassifier  # noqa: E402
from intarsia.sklearn.regressor import IntarsiaRegressor  # noqa: E402
from intarsia.sklearn.search import IntarsiaGridSearchCV, IntarsiaRandomizedSearchCV  # noqa: E402
from intarsia.sklearn.sharing import shared_fits  # noqa: E402
from intarsia.sklearn.vectorizer import IntarsiaVectorizer  # noqa: E402

__all__ = [
    "IntarsiaClassifier",
    "IntarsiaGridSearchCV",
    "IntarsiaMultiLabelClassifier",
    "IntarsiaRandomizedSearchCV",
    "IntarsiaRegressor",
    "IntarsiaVectorizer",
    "InvalidInput",
    "shared_fits",
]
