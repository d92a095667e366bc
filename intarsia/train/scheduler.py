"""The scheduler: it decides which jobs share a pass, how many of them, and which stepper takes their steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.shape import Shape
from intarsia.train.features import ReadingProgress
from intarsia.train.frozen_parents import FrozenParents
from intarsia.train.job import Job
from intarsia.train.run import Run, is_exclusive
from intarsia.train.step import Eager
from intarsia.train.stepper import Stepper
from intarsia.train.tokens import Tokenizer
from intarsia.train.trunk import TrunkCache, trunk_layer

MOST_ACTIVE = 64  # the default number of training slots on a GPU
TOKENS_A_PASS = 4096.0  # on a CPU, larger passes are not faster per token


CHEAP = 16384  # tokens; on a GPU a pass of this size takes only a few times as long as the smallest pass


def cheap_together(jobs: Sequence[Job], encoder: Encoder) -> bool:
    """Return whether several jobs on one data set cost little more than one job.

    This holds on a GPU with recorded passes, if one pass of at most `CHEAP` tokens holds all jobs.
    """
    if encoder.device.type != "cuda":
        return False
    from intarsia.train.cuda_graph import can_record

    if not all(can_record(job, encoder) for job in jobs):
        return False
    data, settings = jobs[0].data, jobs[0].settings
    characters = sum(len(e.text) + len(e.pair or "") for e in data.train) / len(data.train)
    tokens = min(settings.max_length, 2 + characters / 4)  # a rough estimate for one example
    return len(jobs) * settings.batch_size * tokens <= CHEAP


def may_share_passes(job: Job, other: Job, shape: Shape) -> bool:
    """Return whether two jobs may share passes: all rows of a pass must have dropout in the same layers."""
    if is_exclusive(job.method) or is_exclusive(other.method):
        return False
    ours, theirs = job.settings, other.settings
    if (ours.dropout, ours.trunk_dropout) != (theirs.dropout, theirs.trunk_dropout):
        return False
    if ours.trunk_dropout or not ours.dropout or job.method == other.method:
        return True
    return trunk_layer(job, shape) == trunk_layer(other, shape)


class Scheduler:
    """Schedules the runs of one call of `train_together`.

    On a GPU with Triton, runs of one shape share training slots, and their passes are recorded (`GraphStepper`). When
    these runs have ended, the runs of the next shape follow. Elsewhere, runs of any shape share a pass (`Eager`).
    """

    def __init__(
        self,
        encoder: Encoder,
        together: int | None,
        trunk: TrunkCache,
        jobs: int = MOST_ACTIVE,
        tokenizer: Tokenizer | None = None,
        batch_of: Callable[[Job], Hashable] | None = None,
    ) -> None:
        """`jobs`: the maximum number of jobs, which limits the number of training slots. `batch_of`: only the jobs of
        one batch share passes, and all of them do."""
        self.encoder, self.together, self.trunk, self.batch_of = encoder, together, trunk, batch_of
        self.slots = together or max(1, min(jobs, MOST_ACTIVE))
        self.tokenizer, self.parents = tokenizer or Tokenizer(encoder), FrozenParents(encoder)
        self.stepper: Stepper = Eager()

    @property
    def report_every(self) -> float:
        """Seconds between two progress reports of a run. Recorded steps are too fast to report each of them."""
        return 0.0 if self._recorded() is None else 0.5

    def accepts(self, active_jobs: Mapping[Run, Any]) -> Callable[[Job], bool]:
        """Return a predicate: whether a job may join the active jobs."""
        if not active_jobs:
            return lambda _: True
        other = next(iter(active_jobs)).job
        if is_exclusive(other.method):
            return lambda _: False
        if (batch_of := self.batch_of) is not None:
            batch = batch_of(other)
            return lambda job: batch_of(job) == batch
        recorded = self._recorded()
        if recorded is not None:
            return lambda job: self._records(job) and recorded.accepts(job)
        return lambda job: may_share_passes(job, other, self.encoder.shape) and not self._records(job)

    def room(self, active_jobs: Mapping[Run, Any]) -> bool:
        """Return whether one more job may become active."""
        if not active_jobs or self.batch_of is not None:
            return True
        if self.together is not None and len(active_jobs) >= self.together:
            return False
        recorded = self._recorded()
        if recorded is not None and not recorded.training_slots.free:
            return False
        if self.together is not None:
            return True
        tokens = sum(run.tokens["train"].lengths.sum() / run.steps_an_epoch for run in active_jobs)
        return bool(tokens * (len(active_jobs) + 1) / len(active_jobs) <= self._tokens_a_pass())

    def run(self, job: Job, active_jobs: Mapping[Run, Any], report: ReadingProgress | None = None) -> Run:
        """Start and return a run for a job. `report` is called while the base computes a feature-based job's states."""
        if not active_jobs:
            self.stepper = self._stepper(job)
        recorded = self._recorded()
        slots_for = None if recorded is None else recorded.slots_for
        run = Run(
            job, self.encoder, cache=self.trunk.folder, tokenizer=self.tokenizer, slots_for=slots_for, trunk=self.trunk,
            parents=self.parents, report=report,
        )  # fmt: skip
        runs = (*active_jobs, run)
        self.trunk.expect([r.tokens for r in runs], {r.trunk_layer for r in runs})
        return run

    def _stepper(self, job: Job) -> Stepper:
        """Return the stepper for a job; the last stepper is reused if the job fits into its slots."""
        recorded = self._recorded()
        if recorded is not None and self._records(job) and recorded.accepts(job):
            return recorded
        if not self._records(job):
            return Eager()
        from intarsia.train.cuda_graph import GraphStepper

        self.stepper = Eager()
        if recorded is not None:
            recorded.passes.clear()
        del recorded
        # The old stepper and its recorded passes refer to each other. Only garbage collection frees their GPU memory,
        # and the new stepper sizes its slots by the free memory.
        gc.collect()
        torch.cuda.empty_cache()
        return GraphStepper(job, self.encoder, self.slots, self.parents)

    def _records(self, job: Job) -> bool:
        """Return whether the job's passes can be recorded."""
        if self.encoder.device.type != "cuda" or job.method.cached or trunk_layer(job, self.encoder.shape):
            return False
        from intarsia.train.cuda_graph import can_record

        return can_record(job, self.encoder)

    def _recorded(self) -> Any:
        """Return the stepper if it records passes, else None."""
        return None if isinstance(self.stepper, Eager) else self.stepper

    def _tokens_a_pass(self) -> float:
        """Return the target size of a pass, in tokens."""
        if self.encoder.device.type != "cuda":
            return TOKENS_A_PASS
        if (recorded := self._recorded()) is not None:
            return float(recorded.tokens)
        from intarsia.train.cuda_graph import tokens_a_pass

        return float(tokens_a_pass(self.encoder))
