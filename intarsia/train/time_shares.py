"""Divides the wall time of a queue among its training runs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from intarsia.train.run import Run


class TimeShares:
    """Adds to each run's `own_seconds` its share of the elapsed time; runs in one pass share it by their tokens."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def charge(self, weights: Mapping[Run, float]) -> None:
        """Divide the time since the last call among these runs, in proportion to their weights."""
        now = time.monotonic()
        elapsed, self.last = now - self.last, now
        total = sum(weights.values()) or 1.0
        for run, weight in weights.items():
            run.state.own_seconds += elapsed * weight / total

    def skip(self) -> None:
        """Charge the time since the last call to no run, because it was spent on storing a result."""
        self.last = time.monotonic()


def tokens_in(run: Run, part: str) -> float:
    """Return the number of tokens in a part of the run's data."""
    return float(run.tokens[part].lengths.sum())
