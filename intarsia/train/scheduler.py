"""Where runs are admitted: which jobs may share a pass, how many of them, and what takes their steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from intarsia.encoder.encoder import Encoder
from intarsia.train.features import Reading
from intarsia.train.job import Job
from intarsia.train.run import Run, is_exclusive
from intarsia.train.step import Eager
from intarsia.train.stepper import Stepper
from intarsia.train.tokens import Tokenizer
from intarsia.train.trunk import TrunkCache, trunk_layer

MOST_ACTIVE = 64  # of a stack on a GPU, unless told otherwise
TOKENS_A_PASS = 4096.0  # on CPUs more does not pay


CHEAP = 16384  # tokens: on a GPU a pass of so many takes a few times what the smallest takes


def cheap_together(jobs: Sequence[Job], encoder: Encoder) -> bool:
    """Whether jobs on one data set cost little more together than one alone: on a GPU whose passes are recorded, while
    one pass holds them all and is not large."""
    if encoder.device.type != "cuda":
        return False
    from intarsia.train.cuda_graph import can_record

    if not all(can_record(job, encoder) for job in jobs):
        return False
    data, settings = jobs[0].data, jobs[0].settings
    letters = sum(len(e.text) + len(e.pair or "") for e in data.train) / len(data.train)
    tokens = min(settings.max_length, 2 + letters / 4)  # of an example, roughly
    return len(jobs) * settings.batch_size * tokens <= CHEAP


class Scheduler:
    """The runs of one call of `train_together`.

    On a GPU with Triton, runs of one shape take slots of one stack and their passes are recorded (`GraphStepper`); when
    they have ended, the runs of the next shape take their place. Elsewhere any runs share a pass (`Eager`).
    """

    def __init__(self, encoder: Encoder, together: int | None, trunk: TrunkCache, jobs: int = MOST_ACTIVE) -> None:
        """`jobs`: how many there will be, at most; a stack has no active_jobs that would stay empty."""
        self.encoder, self.together, self.trunk = encoder, together, trunk
        self.slots = together or max(1, min(jobs, MOST_ACTIVE))
        self.tokenizer = Tokenizer(encoder)
        self.stepper: Stepper = Eager()

    @property
    def tell_every(self) -> float:
        """Seconds between what a watcher is told of a run: the steps of many runs are too quick to tell each."""
        return 0.0 if self._recorded() is None else 0.5

    def accepts(self, active_jobs: Mapping[Run, Any]) -> Callable[[Job], bool]:
        """Which jobs may join those admitted."""
        if not active_jobs:
            return lambda _: True
        other = next(iter(active_jobs)).job
        if is_exclusive(other.method):
            return lambda _: False
        recorded = self._recorded()
        if recorded is not None:
            return lambda job: self._records(job) and recorded.accepts(job)
        return lambda job: (
            not is_exclusive(job.method)
            and job.settings.dropout == other.settings.dropout
            and job.settings.trunk_dropout == other.settings.trunk_dropout
            and self._same_dropout(job, other)
            and not self._records(job)
        )

    def _same_dropout(self, job: Job, other: Job) -> bool:
        """Whether both have dropout in the same layers, as all rows of a pass have."""
        if job.settings.trunk_dropout or not job.settings.dropout or job.method == other.method:
            return True
        return trunk_layer(job, self.encoder.shape) == trunk_layer(other, self.encoder.shape)

    def room(self, active_jobs: Mapping[Run, Any]) -> bool:
        """Whether one more job may be admitted."""
        if not active_jobs:
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

    def run(self, job: Job, active_jobs: Mapping[Run, Any], tell: Reading | None = None) -> Run:
        """ActiveJob a job. `tell` is told how far the base has read its texts, where it learns from what that gives."""
        if not active_jobs:
            self.stepper = self._stepper(job)
        recorded = self._recorded()
        slots_for = None if recorded is None else recorded.slots_for
        run = Run(
            job, self.encoder, cache=self.trunk.folder, tokenizer=self.tokenizer, slots_for=slots_for, trunk=self.trunk,
            tell=tell,
        )  # fmt: skip
        runs = (*active_jobs, run)
        self.trunk.expect([r.tokens for r in runs], {r.trunk_layer for r in runs})
        return run

    def _stepper(self, job: Job) -> Stepper:
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
        gc.collect()  # the old stack's passes know it: only so is its memory free, of which the new one takes its share
        torch.cuda.empty_cache()
        return GraphStepper(job, self.encoder, self.slots)

    def _records(self, job: Job) -> bool:
        """Whether the job's passes can be recorded."""
        if self.encoder.device.type != "cuda" or job.method.cached or trunk_layer(job, self.encoder.shape):
            return False
        from intarsia.train.cuda_graph import can_record

        return can_record(job, self.encoder)

    def _recorded(self) -> Any:
        return None if isinstance(self.stepper, Eager) else self.stepper

    def _tokens_a_pass(self) -> float:
        if self.encoder.device.type != "cuda":
            return TOKENS_A_PASS
        if (recorded := self._recorded()) is not None:
            return float(recorded.tokens)
        from intarsia.train.cuda_graph import tokens_a_pass

        return float(tokens_a_pass(self.encoder))
