"""What a part of the campaign counted, and how each case gets its seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MOST_SHOWN = 20  # failures that are described; all are counted


@dataclass
class Tally:
    """The counts of one part, and its failures with their seeds."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, case: str, seed: int, reason: str) -> None:
        self.counts["failures"] += 1
        if len(self.failures) < MOST_SHOWN:
            self.failures.append({"case": case, "seed": seed, "reason": reason[:2000]})

    def take(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.failures += other.failures[: MOST_SHOWN - len(self.failures)]


@dataclass(frozen=True)
class Budget:
    """The time of a slice, and the seeds of its cases."""

    seed: int  # of the run
    first: int  # the first case of the slice: no case is repeated in a run
    ends: float  # monotonic
    most: int = 10**9  # cases

    @classmethod
    def of(cls, seed: int, first: int, seconds: float, most: int = 10**9) -> Budget:
        return cls(seed, first, time.monotonic() + seconds, most)

    def case_seeds(self) -> Any:
        """Yield the seeds of the cases until the time is over."""
        for number in range(self.first, self.first + self.most):
            if time.monotonic() > self.ends:
                return
            yield self.seed * 10**9 + number


def draw_for(seed: int) -> random.Random:
    return random.Random(seed)
