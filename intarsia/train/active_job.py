"""Jobs under way, and when their checkpoints are written."""

from __future__ import annotations

import time
from collections.abc import Iterable

from intarsia.train.checkpoints import Checkpoints, Snapshot
from intarsia.train.order import epoch_batches
from intarsia.train.progress import Clock, Watch
from intarsia.train.run import Run
from intarsia.train.stepper import RowPredictions
from intarsia.train.time_shares import tokens_in

BYTES_A_SECOND = 5e8  # the assumed speed of checkpoint writes, until the first write is measured


class Saving:
    """Decides when to write checkpoints: at intervals, and only if writing takes a small share of the time."""

    def __init__(self, every: float, checkpoints: Checkpoints | None) -> None:
        self.every, self.last, self.checkpoints = every, time.monotonic(), checkpoints
        self.took: float | None = None  # seconds of the last save

    def due(self, active_jobs: Iterable[ActiveJob]) -> bool:
        """Return whether the interval is over and a save is cheap."""
        return time.monotonic() - self.last > self.every and self.cheap(active_jobs)

    def cheap(self, active_jobs: Iterable[ActiveJob]) -> bool:
        """Return whether a save would take a small share of the time since the last save."""
        took = self.took
        if took is None:
            took = sum(active_job.bytes for active_job in active_jobs) / BYTES_A_SECOND
        return self.checkpoints is not None and (self.every == 0 or time.monotonic() - self.last > 20 * took)

    def save(self, active_jobs: Iterable[ActiveJob]) -> None:
        """Write the checkpoints of all active jobs."""
        began = time.monotonic()
        if self.checkpoints is not None:
            self.checkpoints.write([active_job.snapshot() for active_job in active_jobs])
        self.last = time.monotonic()
        self.took = self.last - began


class ActiveJob:
    """An active job: its run and its position in the epoch."""

    def __init__(
        self, run: Run, checkpoints: Checkpoints | None, watch: Watch | None, report_every: float = 0.0
    ) -> None:
        self.run = run
        if checkpoints is not None and (stored := checkpoints.read(run.job)) is not None:
            run.resume(*stored)
        self.clock = Clock(run, watch, report_every)
        self.epoch = len(run.state.history)
        self.batches = self._batches()
        self.tokens_a_step = tokens_in(run, "train") / run.steps_an_epoch  # on average

    def _batches(self) -> list[list[int]]:
        s = self.run.job.settings
        return epoch_batches(self.run.tokens["train"].lengths, s.batch_size, s.seed, self.epoch)

    def epoch_over(self) -> bool:
        """Return whether all batches of the epoch have been trained on."""
        # A run that resumes at the end of its last phase has `phase_done` before its first step.
        return self.run.phase_done or self._step() >= len(self.batches)

    def _step(self) -> int:
        """Return the number of steps taken in this epoch."""
        return self.run.state.step - self.epoch * self.run.steps_an_epoch

    def end_epoch(self, predictions: RowPredictions) -> bool:
        """End the epoch, and the phase if it is over; return False if the job has ended."""
        run = self.run
        if self._step() >= len(self.batches):
            run.end_epoch(self.epoch, self.clock.mean_loss(), predictions)
            self.clock.report(self.epoch)
        run.state.seconds = self.clock.seconds()
        if run.phase_done:
            if run.last_phase:
                return False
            run.next_phase()
        if self.epoch != len(run.state.history):
            self.epoch = len(run.state.history)
            self.batches = self._batches()
        return True

    @property
    def bytes(self) -> int:
        """The approximate size of a checkpoint."""
        return 16 * self.run.best.numel()

    def next_rows(self) -> list[int]:
        """Return the rows of the next batch."""
        return self.batches[self._step()]

    def snapshot(self) -> Snapshot:
        """Return what the run needs to resume; the tensors may be views that the next step changes."""
        self.run.state.seconds = self.clock.seconds()
        return self.run.job, self.run.state, self.run.tensors()
