"""A metric that is a function of the user, such as those of scikit-learn: `function(gold, predicted) -> float`.

The function gets the true and the predicted labels of all examples:

- label: arrays [n] of label names
- labels: arrays [n, k] of zeros and ones; column i stands for the i-th label in alphabetical order
- score: arrays [n] of numbers
- tags: lists of lists of tags

Larger values must be better, because the best epoch is chosen by them. An inlay stores the function's name, not the
function.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from intarsia.errors import IntarsiaError

OWN_RESAMPLES = 200  # a function is called once for each resample, and may be slow
KINDS = ("label", "labels", "score", "tags")


class OwnMetric(str):
    """The name of a metric, with its function."""

    function: Callable[[Any, Any], float]

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnMetric:
        return self

    def value(self, gold: Any, predicted: Any) -> float:
        """The metric; raises if the function fails or returns no finite number."""
        try:
            value = self.function(gold, predicted)
            number = float(value)
        except IntarsiaError:
            raise
        except Exception as error:
            raise IntarsiaError(f"the metric {self} failed: {type(error).__name__}: {error}") from error
        if not math.isfinite(number):
            raise IntarsiaError(f"the metric {self} returned {value!r}. Expected a finite number.")
        return number

    def interval(
        self, gold: Any, predicted: Any, resamples: int, seed: int, level: float
    ) -> tuple[float, float, float]:
        """The metric with its percentile bootstrap interval, from at most `OWN_RESAMPLES` resamples. Those for which
        the function has no value, such as a correlation of rows with one label, do not count."""
        import numpy as np

        value = self.value(gold, predicted)
        if not resamples:
            return value, value, value
        generator = np.random.default_rng(seed)
        values = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries warn of resamples without a value
            for _ in range(min(resamples, OWN_RESAMPLES)):
                rows = generator.integers(len(gold), size=len(gold))
                with contextlib.suppress(IntarsiaError):
                    values.append(self.value(_taken(gold, rows), _taken(predicted, rows)))
        low, high = np.quantile(values or [value], [(1 - level) / 2, (1 + level) / 2])
        return value, float(low), float(high)


def named_metric(metric: Any) -> str | None:
    """The metric as a name: a function becomes an `OwnMetric`."""
    if metric is None or isinstance(metric, str):
        return metric
    if not callable(metric):
        raise IntarsiaError(
            f"metric: expected a name such as 'f1-macro', or a function of the true and the predicted labels; found "
            f"{metric!r:.60} ({type(metric).__name__})."
        )
    function = getattr(metric, "func", metric)  # of functools.partial
    own = OwnMetric(getattr(function, "__name__", type(metric).__name__))
    own.function = metric
    return own


def _taken(values: Sequence[Any], rows: Any) -> Any:
    return values[rows] if hasattr(values, "dtype") else [values[row] for row in rows]
