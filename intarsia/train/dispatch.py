"""Gives batches to workers: longest first, back into the queue when a worker is lost, and again for stragglers.

The dispatcher does no input or output and reads no clock, so that `benchmarks/schedule.py` simulates the same code that
directs a cluster. A batch may run twice: its results are the same, and the first to end counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from intarsia.errors import IntarsiaError
from intarsia.train.batches import Batch

MOST_LOSSES = 5  # workers that a batch may lose in a row without any progress
GAIN = 1.5  # a batch is stolen if its worker needs this many times as long as the thief


@dataclass
class Attempt:
    """A batch in the hands of a worker."""

    batch: Batch
    worker: str
    began: float
    done_before: float = 0.0  # the share of the batch that was stored when the attempt began
    done: float = 0.0  # the share that is done now
    seen: float = 0.0  # the time of the last report


@dataclass
class Speed:
    """How fast a worker is, in costs a second."""

    work: float = 0.0
    seconds: float = 0.0

    @property
    def value(self) -> float | None:
        return self.work / self.seconds if self.seconds > 0 and self.work > 0 else None


@dataclass
class Dispatcher:
    """The batches of a queue, and the workers that have them."""

    batches: Iterable[Batch]
    steals: bool = True
    waiting: list[tuple[float, int, Batch]] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)  # by worker
    ended: set[str] = field(default_factory=set)  # names of batches
    stored: dict[str, float] = field(default_factory=dict)  # the share of each batch that its checkpoint holds
    losses: dict[str, int] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batches = list(self.batches)
        self.number = {batch.name: number for number, batch in enumerate(batches)}
        self.waiting = [(-batch.cost, number, batch) for number, batch in enumerate(batches)]
        heapq.heapify(self.waiting)

    @property
    def over(self) -> bool:
        """Whether all batches have ended."""
        return len(self.ended) == len(self.number)

    def take(self, worker: str, now: float) -> Batch | None:
        """Return the next batch for an idle worker: the longest that waits, or a copy of a straggler; else None."""
        while self.waiting:
            _, _, batch = heapq.heappop(self.waiting)
            if batch.name not in self.ended:
                return self._begin(batch, worker, now)
        straggler = self._straggler(worker, now) if self.steals else None
        return None if straggler is None else self._begin(straggler.batch, worker, now)

    def progress(self, worker: str, done: float, now: float) -> None:
        """Note the share of its batch that a worker has done."""
        if (attempt := self.attempts.get(worker)) is not None:
            attempt.done, attempt.seen = done, now

    def checkpoint(self, worker: str) -> None:
        """Note that what the worker has done is stored."""
        if (attempt := self.attempts.get(worker)) is not None:
            name = attempt.batch.name
            if attempt.done > self.stored.get(name, 0.0):
                self.stored[name] = attempt.done
                self.losses[name] = 0

    def complete(self, worker: str, now: float) -> list[str]:
        """Note that a worker has ended its batch; return the other workers that have it and may stop."""
        attempt = self.attempts.pop(worker)
        speed = self.speeds.setdefault(worker, Speed())
        speed.work += attempt.batch.cost * (1 - attempt.done_before)
        speed.seconds += now - attempt.began
        self.ended.add(attempt.batch.name)
        return [other for other, its in self.attempts.items() if its.batch.name == attempt.batch.name]

    def give_up(self, worker: str) -> None:
        """Note that a worker has stopped without an end, because another one has ended its batch."""
        self.attempts.pop(worker, None)

    def lost(self, worker: str) -> None:
        """Note that a worker has died: its batch goes back into the queue."""
        self.speeds.pop(worker, None)
        attempt = self.attempts.pop(worker, None)
        if attempt is None or attempt.batch.name in self.ended:
            return
        name = attempt.batch.name
        self.losses[name] = self.losses.get(name, 0) + 1
        if self.losses[name] >= MOST_LOSSES:
            first = attempt.batch.jobs[0].job
            raise IntarsiaError(
                f"{MOST_LOSSES} workers in a row died while they trained the same {len(attempt.batch.jobs)} jobs "
                f"(first: {first.method.name} for {first.name!r}). Their memory may be too small: try --together 1 or "
                "more cores for each actor. All results and states are stored; the same command resumes."
            )
        if not any(its.batch.name == name for its in self.attempts.values()):
            heapq.heappush(self.waiting, (-attempt.batch.cost, self.number[name], attempt.batch))

    def _begin(self, batch: Batch, worker: str, now: float) -> Batch:
        stored = self.stored.get(batch.name, 0.0)
        self.attempts[worker] = Attempt(batch, worker, now, stored, stored, now)
        return batch

    def _straggler(self, thief: str, now: float) -> Attempt | None:
        """Return the attempt that ends last, if the thief would end its batch much earlier from its checkpoint."""
        copies = [its.batch.name for its in self.attempts.values()]
        alone = [its for its in self.attempts.values() if copies.count(its.batch.name) == 1]
        if not alone:
            return None
        slowest = max(alone, key=lambda its: self._left(its, now))
        speed = self._speed(thief)
        if speed is None:
            return None
        work = slowest.batch.cost * (1 - self.stored.get(slowest.batch.name, 0.0))
        return slowest if self._left(slowest, now) > GAIN * work / speed else None

    def _left(self, attempt: Attempt, now: float) -> float:
        """Return the seconds that an attempt will still take. The worker's own pace counts once it is known."""
        cost, elapsed = attempt.batch.cost, now - attempt.began
        did = (attempt.done - attempt.done_before) * cost
        known = self._speed(attempt.worker)
        pace = did / elapsed if did > 0 and elapsed > 0 else None
        if pace is None:  # nothing was reported yet: the longer that lasts, the slower the worker must be
            pace = known if known is None or elapsed <= 0 else min(known, cost / (2 * elapsed))
        return cost * (1 - attempt.done) / pace if pace else 0.0

    def _speed(self, worker: str) -> float | None:
        """Return a worker's speed; for a worker that has ended no batch, the median of the others."""
        own = self.speeds.get(worker)
        if own is not None and own.value is not None:
            return own.value
        known = sorted(speed.value for speed in self.speeds.values() if speed.value is not None)
        return known[len(known) // 2] if known else None
