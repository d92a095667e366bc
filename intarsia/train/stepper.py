"""The interface of steppers, which take optimizer steps: eager (`step.py`) or by CUDA graphs (`cuda_graph.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

RowPredictions = Sequence[np.ndarray] | np.ndarray  # one array per row, or [rows, outputs]


class Stepper(Protocol):
    def step(self, pairs: Any) -> None:
        """Take one optimizer step of each run on its rows; `pairs` holds (run, rows)."""

    def losses(self, *, wait: bool = False) -> Any:
        """Yield (run, loss) once for each step whose loss is known; `wait`: wait for the losses of all steps."""

    def predict(self, runs: Any, part: str) -> Sequence[RowPredictions]:
        """Return each run's predictions for all rows of a part of its data."""
        ...
