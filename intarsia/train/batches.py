"""Batches: which jobs of a queue train together, decided before training and stored with the queue.

On a CPU the dropout masks and the rounding of a pass depend on all its rows. The jobs of a batch begin together and no
other job joins their passes, so a job's result depends on its batch alone: not on the machine, on the other batches, or
on what was killed. The plan of a queue is stored, so that the same command continues with the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.encoder.shape import Shape
from intarsia.train.job import Job
from intarsia.train.run import is_exclusive
from intarsia.train.scheduler import TOKENS_A_PASS, may_share_passes
from intarsia.train.tokens import Tokenizer

PLAN = "plan.json"


@dataclass(frozen=True)
class PlannedJob:
    """A job of the queue, and its cost relative to the other jobs."""

    key: str
    job: Job
    cost: float


@dataclass(frozen=True)
class Batch:
    """Jobs that train together, from their first step to the end of the last of them."""

    jobs: tuple[PlannedJob, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(planned.key for planned in self.jobs)

    @property
    def name(self) -> str:
        """The key of the first job: no two batches of a queue have a job in common."""
        return self.jobs[0].key

    @property
    def cost(self) -> float:
        return sum(planned.cost for planned in self.jobs)


def sort_key(planned: PlannedJob) -> tuple[bool, str, float]:
    """Return the sort key of the queue.

    The longest jobs come first, so that the last pass is not left with one long job. Jobs that cannot share a pass
    come last and are grouped by method, because all tasks reuse the recorded passes of a method.
    """
    exclusive = is_exclusive(planned.job.method)
    return exclusive, str(planned.job.method) if exclusive else "", -planned.cost


def tokens_a_step(job: Job, tokenizer: Tokenizer) -> float:
    """Return the mean number of tokens in a training step."""
    lengths = tokenizer(job.data, job.settings.max_length)["train"].lengths
    return float(lengths.sum()) / math.ceil(len(lengths) / job.settings.batch_size)


def make_batches(
    jobs: Sequence[PlannedJob], shape: Shape, tokens: Callable[[Job], float], together: int | None = None
) -> list[Batch]:
    """Divide jobs, which are in the order of the queue, into batches.

    A batch begins with the first job that is left. The next jobs join it if they may share passes and the passes stay
    within `TOKENS_A_PASS`, or within `together` jobs. `tokens` returns the tokens in a step of a job.
    """
    batches = []
    left = list(jobs)
    while left:
        first, *rest = left
        members, left = [first], []
        size = 0.0 if together or is_exclusive(first.job.method) else tokens(first.job)
        full = is_exclusive(first.job.method) or together == 1
        for position, planned in enumerate(rest):
            if full:
                left += rest[position:]
                break
            more = 0.0 if together or is_exclusive(planned.job.method) else tokens(planned.job)
            if size + more > TOKENS_A_PASS or not may_share_passes(planned.job, first.job, shape):
                left.append(planned)
                continue
            members.append(planned)
            size += more
            full = len(members) == together
        batches.append(Batch(tuple(members)))
    return batches


class Plan:
    """The batches of a queue, stored in its folder until all jobs have ended."""

    def __init__(self, folder: Path, together: int | None) -> None:
        self.path, self.together = folder / PLAN, together

    def batches(
        self,
        missing: Collection[str],
        planned: Sequence[PlannedJob],
        make: Callable[[Sequence[PlannedJob]], list[Batch]],
        begun: Callable[[Batch], bool],
    ) -> list[Batch]:
        """Return the batches that hold the jobs without a result, and store them.

        Batches of an earlier process stay as they are if a job of them has no result. After a change of `together`,
        only those stay that have begun. `make` divides the other jobs.
        """
        by_key = {one.key: one for one in planned}
        kept = []
        stored: dict[str, Any] = self._read()
        for keys in stored.get("batches", []):
            if all(key in by_key for key in keys) and any(key in missing for key in keys):
                batch = Batch(tuple(by_key[key] for key in keys))
                if stored.get("together") == self.together or begun(batch):
                    kept.append(batch)
        known = {key for batch in kept for key in batch.keys}
        batches = kept + make([one for one in planned if one.key in missing and one.key not in known])
        batches.sort(key=lambda batch: sort_key(batch.jobs[0]))
        if any(len(batch.jobs) > 1 for batch in batches):
            files.make_folder(self.path.parent)
            content = {"together": self.together, "batches": [batch.keys for batch in batches]}
            files.replace_checked(self.path, content)
        return batches

    def remove(self) -> None:
        """Remove the plan of a queue that has ended."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = files.read_checked(self.path)
            if isinstance(found, dict) and isinstance(found.get("batches"), list):
                return found
        return {}
