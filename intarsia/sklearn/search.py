"""Grid and random search whose fits share passes through the frozen base.

They are scikit-learn's own searches: candidates, folds, scores, ranks and the refit are theirs. Only the training of
the candidates on the folds happens before, in one queue (sharing.py).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, check_cv

from intarsia.sklearn.sharing import Plan, sharing


class _SharedFits:
    """Trains the fits of a search together before the search runs."""

    estimator: Any
    cv: Any
    n_jobs: Any
    together: int | None
    progress: bool | None

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        given = {"cv": self.cv, "n_jobs": self.n_jobs}
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        # Both calls must see the same folds, and fits in other processes would not find what was trained here.
        splits = [*splitter.split(X, y, params.get("groups"))]
        rehearsal = clone(self).set_params(cv=splits, n_jobs=None, refit=False, verbose=0, **self._fixed())
        fit = super().fit  # type: ignore[misc]
        try:
            self.cv, self.n_jobs = splits, None
            with sharing(
                lambda: super(_SharedFits, rehearsal).fit(X, y, **params),  # type: ignore[misc]
                together=self.together,
                progress=self.progress,
            ) as plan:
                fit(X, y, **params)
        finally:
            for name, value in given.items():
                setattr(self, name, value)
        self._note(plan)
        return self

    def _fixed(self) -> dict[str, Any]:
        return {}

    def _note(self, plan: Plan) -> None:
        self.n_shared_fits_ = plan.found


class IntarsiaGridSearchCV(_SharedFits, GridSearchCV):
    """`GridSearchCV` whose fits share passes.

    All parameters but two are those of `GridSearchCV`. `together` is the number of fits that share a pass (None: as
    many as fit into memory). `progress` shows a table on a terminal or in a notebook (None), anywhere (True) or nowhere
    (False). The fits run in this process, so `n_jobs` has no effect.

    The training happens before the folds are scored, so `cv_results_["mean_fit_time"]` is the time to look a result
    up. `n_shared_fits_` is the number of fits that shared passes. The final refit trains alone.
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        scoring: Any = None,
        n_jobs: Any = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        error_score: Any = np.nan,
        return_train_score: bool = False,
        together: int | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(
            estimator, param_grid, scoring=scoring, n_jobs=n_jobs, refit=refit, cv=cv, verbose=verbose,
            pre_dispatch=pre_dispatch, error_score=error_score, return_train_score=return_train_score,
        )  # fmt: skip
        self.together = together
        self.progress = progress


class IntarsiaRandomizedSearchCV(_SharedFits, RandomizedSearchCV):
    """`RandomizedSearchCV` whose fits share passes; see `IntarsiaGridSearchCV`. `random_state` is a number."""

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_iter: int = 10,
        scoring: Any = None,
        n_jobs: Any = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        random_state: int = 0,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        together: int | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(
            estimator, param_distributions, n_iter=n_iter, scoring=scoring, n_jobs=n_jobs, refit=refit, cv=cv,
            verbose=verbose, pre_dispatch=pre_dispatch, random_state=random_state, error_score=error_score,
            return_train_score=return_train_score,
        )  # fmt: skip
        self.together = together
        self.progress = progress
