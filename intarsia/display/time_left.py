"""How much of a queue of jobs is done, and how long the rest may take."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from intarsia.formatting import seconds

if TYPE_CHECKING:
    from intarsia.train.runner import RunnerEvent

DELAY, LEAST_DELAY = 0.05, 5.0  # with which the time left follows: a share of the time so far, and seconds


class TimeLeft:
    """Counts work in the runner's costs. Work that an earlier process did takes no time of this one."""

    def __init__(self) -> None:
        self.costs: dict[str, float] = {}  # by job
        self.running: dict[str, float] = {}  # the share of a job that is done
        self.ended: set[str] = set()
        self.before = 0.0  # work that was done earlier
        self.began = self.told = time.monotonic()
        self.end: float | None = None  # when all will be done, as far as is known

    def take(self, event: RunnerEvent) -> None:
        if event.planned is not None:
            self.costs = {one.key: one.cost for one in event.planned}
            self.began = self.told = time.monotonic()  # loading data and encoder took time before
        p = event.progress
        if p is not None and p.reading is None:
            if event.key not in self.running:
                self.before += self.costs[event.key] * p.resumed_at / p.steps
            self.running[event.key] = p.step / p.steps
        if event.result is not None:
            self.before += self.costs[event.key] * event.stored
            self.running.pop(event.key, None)
            self.ended.add(event.key)

    @property
    def share(self) -> float:
        """The share of this process's work that is done."""
        total = sum(self.costs.values()) - self.before
        return min(1.0, max(0.0, self._done() / total)) if total > 0 else 1.0

    def seconds(self) -> float | None:
        """It follows what is known with a delay: where jobs end together, or diverge, it does not jump."""
        done = self._done()
        if done <= 0:
            return None
        ahead = max(0.0, sum(self.costs.values()) - self.before - done)
        now = time.monotonic()
        end = now + ahead * (now - self.began) / done
        if self.end is None or len(self.ended) == len(self.costs):
            self.end = end
        delay = max(LEAST_DELAY, (now - self.began) * DELAY)
        self.end += (1 - math.exp((self.told - now) / delay)) * (end - self.end)
        self.told = now
        return max(0.0, self.end - now)

    def __str__(self) -> str:
        left = self.seconds()
        return "time left unknown" if left is None else f"{seconds(left)} left"

    def _done(self) -> float:
        running = sum(self.costs[key] * share for key, share in self.running.items())
        return sum(self.costs[key] for key in self.ended) + running - self.before
