"""What takes the optimizer steps of the active runs: eagerly (`step.py`), or by recorded passes (`cuda_graph.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

RowPredictions = Sequence[np.ndarray] | np.ndarray  # what is said of each row


class Stepper(Protocol):
    def step(self, pairs: Any) -> None: ...
    def losses(self, *, wait: bool = False) -> Any: ...
    def predict(self, runs: Any, part: str) -> Sequence[RowPredictions]: ...
