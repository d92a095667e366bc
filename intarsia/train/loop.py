"""The training loop: it trains a queue of jobs, several of them in each pass through the base."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.formatting import number, score, seconds
from intarsia.memory import MemoryTrim
from intarsia.train import checkpoint
from intarsia.train.job import Job
from intarsia.train.order import epoch_batches
from intarsia.train.run import Run, Trained
from intarsia.train.scheduler import MOST_ACTIVE, Scheduler
from intarsia.train.stepper import RowPredictions
from intarsia.train.time_shares import TimeShares, tokens_in
from intarsia.train.trunk import TrunkCache


@dataclass(frozen=True)
class Progress:
    """The progress of a run, reported to the watcher after a step."""

    job: Job
    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    metric: str
    validation: float | None  # the last validation score
    tokens_per_second: float
    seconds_left: float
    resumed_at: int
    reading: float | None = None  # before the first step of feature-based jobs: the share of texts the base has read

    def __str__(self) -> str:
        """One line for a progress bar."""
        if self.reading is not None:
            return f"computing the base's states · {seconds(self.seconds_left)} left for this part"
        validation = "" if self.validation is None else f" · {self.metric} {score(self.validation)}"
        return (
            f"epoch {self.epoch}/{self.epochs} · loss {self.loss:.3f}{validation} · "
            f"{number(self.tokens_per_second)} tokens/s · {seconds(self.seconds_left)} left"
        )


Watch = Callable[[Progress], None]


BYTES_A_SECOND = 5e8  # the assumed speed of checkpoint writes, until the first write is measured

Done = Callable[[Job, Trained | IntarsiaError], None]
StateFile = Callable[[Job], Path | None]


def train(
    job: Job,
    encoder: Encoder,
    *,
    state_file: Path | None = None,
    watch: Watch | None = None,
    save_every: float = 15.0,
    trunk: TrunkCache | None = None,
) -> Trained:
    """Train one job and return its best checkpoint.

    With a `state_file`, a checkpoint is written every `save_every` seconds and at the end of each epoch. If the file
    exists, training resumes from it. On a CPU a resumed run ends with the same weights as an uninterrupted run.
    """
    results: list[Trained | IntarsiaError] = []
    train_together(
        [job],
        encoder,
        together=1,
        state_file=lambda _: state_file,
        done=lambda _, result: results.append(result),
        watch=watch,
        save_every=save_every,
        trunk=trunk or TrunkCache(encoder, None if state_file is None else state_file.parent),
    )
    (result,) = results
    if isinstance(result, IntarsiaError):
        raise result
    return result


def train_together(
    jobs: Iterable[Job],
    encoder: Encoder,
    *,
    done: Done,
    together: int | None = None,
    score_test: bool = False,
    needed: Callable[[Job], bool] = lambda _: True,
    state_file: StateFile = lambda _: None,
    watch: Watch | None = None,
    save_every: float = 15.0,
    trunk: TrunkCache | None = None,
) -> None:
    """Train jobs, up to `together` of them (None: as many as fit) in each pass through the base.

    When a job ends, stops early or diverges, `done` is called and the next job takes its slot. The other jobs are not
    affected. Jobs that change the base, or learn from stored states, run one at a time.

    `jobs` is read when slots become free, so it may be a queue that other code fills or empties. Its length hint limits
    the number of training slots. `needed` is called right before a job takes its slot and returns whether to train it;
    another process may have finished the job meanwhile. With `score_test`, the best checkpoint of each job is also
    scored on the test part; this score selects nothing.

    `trunk` caches the outputs of the lower layers for jobs without dropout there (None: in memory only). It is empty
    when all jobs have ended. Feature-based jobs store the base's states in its folder, and these files remain.
    """
    queue = _Queue(jobs, needed)
    trunk = trunk or TrunkCache(encoder)
    scheduler = Scheduler(encoder, together, trunk, length_hint(jobs, MOST_ACTIVE))
    active_jobs: dict[Run, ActiveJob] = {}
    saving, trim_memory, shares = _Saving(save_every), MemoryTrim(), TimeShares()

    def ended(job: Job, result: Trained | IntarsiaError) -> None:
        done(job, result)
        shares.skip()

    admitted = 1  # the number of active jobs at the last read of the queue, which is read again when a job has left
    with _Interrupts() as interrupts:
        while True:
            job_ended = len(active_jobs) < admitted
            while job_ended and scheduler.room(active_jobs):
                if (job := queue.next(scheduler.accepts(active_jobs))) is None:
                    break
                run = scheduler.run(job, active_jobs, _ReadingReport(job, watch, interrupts))
                active_job = ActiveJob(run, state_file(job), watch, scheduler.report_every)
                active_jobs[active_job.run] = active_job
                shares.charge({active_job.run: 1.0})
            admitted = len(active_jobs)
            if not active_jobs:
                break
            if any(active_job.epoch_over() for active_job in active_jobs.values()):
                _note(scheduler.stepper.losses(wait=True), active_jobs, ended)
                _end_epochs(active_jobs, scheduler, ended, shares, score_test=score_test)
                if saving.cheap(active_jobs.values()):
                    saving.save(active_jobs.values())
                continue
            scheduler.stepper.step([(run, active_job.next_rows()) for run, active_job in active_jobs.items()])
            shares.charge({run: active_job.tokens_a_step for run, active_job in active_jobs.items()})
            _note(scheduler.stepper.losses(), active_jobs, ended)
            if encoder.device.type == "cpu":
                trim_memory()
            if saving.due(active_jobs.values()) or interrupts.requested:
                _note(scheduler.stepper.losses(wait=True), active_jobs, ended)
                saving.save(active_jobs.values())
            interrupts.obey()
    trunk.close()
    encoder.check_frozen()


def _end_epochs(
    active_jobs: dict[Run, ActiveJob], scheduler: Scheduler, done: Done, shares: TimeShares, *, score_test: bool
) -> None:
    """Score the runs whose epoch is over; remove the runs that have ended or whose predictions are not finite."""
    ended = [active_job for active_job in active_jobs.values() if active_job.epoch_over()]
    over = []  # runs that have ended
    runs = [active_job.run for active_job in ended]
    dev_predictions = scheduler.stepper.predict(runs, "dev")
    shares.charge({run: tokens_in(run, "dev") for run in runs})
    for active_job, predictions in zip(ended, dev_predictions, strict=True):
        if not _finite(predictions):
            _leave(active_job.run, active_jobs)
            done(active_job.run.job, active_job.run.diverged(None))
        elif not active_job.end_epoch(predictions):
            over.append(active_job.run)
    tested = _test_scores(over, scheduler) if score_test else {}
    shares.charge({run: float(len(run.job.data.test)) for run in over})
    for run in over:
        _leave(run, active_jobs)
        scheduler.encoder.check_untouched()
        done(run.job, run.result(tested.get(run)))


def _leave(run: Run, active_jobs: dict[Run, ActiveJob]) -> None:
    del active_jobs[run]
    run.leave()
    run.slots_for = None  # a reference from an ended run would keep the recorded passes alive


def _finite(predictions: RowPredictions) -> bool:
    """Return whether all predictions are finite; for masked words, the probabilities of the true words."""
    if isinstance(predictions, np.ndarray):
        return bool(np.isfinite(predictions).all())
    rows = (row["log_probability"] if row.dtype.names else row for row in predictions)
    return all(np.isfinite(row).all() for row in rows)


def _test_scores(runs: list[Run], scheduler: Scheduler) -> dict[Run, dict[str, float]]:
    """Return each run's test scores by metric: the run's own metric, and those reported for its task kind."""
    tested = [run for run in runs if run.job.data.test]
    for run in tested:
        run.take_best()
    predictions = scheduler.stepper.predict(tested, "test") if tested else []
    return {
        run: {metric: run.score("test", rows, metric=metric) for metric in {run.metric, *run.task_kind.reported}}
        for run, rows in zip(tested, predictions, strict=True)
    }


def _note(losses: Iterable[tuple[Run, float]], active_jobs: dict[Run, ActiveJob], done: Done) -> None:
    """Record each active job's losses; remove the jobs whose loss is not finite."""
    for run, loss in losses:
        active_job = active_jobs.get(run)
        if active_job is None:  # the run diverged a few steps ago
            continue
        if math.isfinite(loss):
            active_job.clock.tick(active_job.epoch, loss)
        else:
            _leave(run, active_jobs)
            done(run.job, run.diverged(loss))


class _Queue:
    """The jobs in their order; jobs that cannot share a pass with the active jobs wait."""

    def __init__(self, jobs: Iterable[Job], needed: Callable[[Job], bool]) -> None:
        self.jobs, self.needed, self.waiting = iter(jobs), needed, list[Job]()

    def next(self, accepts: Callable[[Job], bool]) -> Job | None:
        """Return the next job that is accepted and needed, or None. Jobs that are not accepted now wait."""
        waiting, self.waiting = self.waiting, []
        for i, job in enumerate(waiting):
            if not accepts(job):
                self.waiting.append(job)
            elif self.needed(job):
                self.waiting += waiting[i + 1 :]
                return job
        for job in self.jobs:
            if not accepts(job):
                self.waiting.append(job)
            elif self.needed(job):
                return job
        return None


class _Saving:
    """Decides when to write checkpoints: at intervals, and only if writing takes a small share of the time."""

    def __init__(self, every: float) -> None:
        self.every, self.last = every, time.monotonic()
        self.took: float | None = None  # seconds of the last save

    def due(self, active_jobs: Iterable[ActiveJob]) -> bool:
        """Return whether the interval is over and a save is cheap."""
        return time.monotonic() - self.last > self.every and self.cheap(active_jobs)

    def cheap(self, active_jobs: Iterable[ActiveJob]) -> bool:
        """Return whether a save would take a small share of the time since the last save."""
        took = sum(active_job.bytes for active_job in active_jobs) / BYTES_A_SECOND if self.took is None else self.took
        return self.every == 0 or time.monotonic() - self.last > 20 * took

    def save(self, active_jobs: Iterable[ActiveJob]) -> None:
        """Write the checkpoints of all active jobs."""
        began = time.monotonic()
        for active_job in active_jobs:
            active_job.save()
        self.last = time.monotonic()
        self.took = self.last - began


class ActiveJob:
    """An active job: its run, its position in the epoch, and its checkpoint file."""

    def __init__(self, run: Run, state_file: Path | None, watch: Watch | None, report_every: float = 0.0) -> None:
        self.state_file, self.run = state_file, run
        if state_file is not None and (stored := checkpoint.read(state_file)) is not None:
            run.resume(*stored)
        self.clock = _Clock(run, watch, report_every)
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
        """The approximate size of a checkpoint; 0 if the job writes none."""
        return 0 if self.state_file is None else 16 * self.run.best.numel()

    def next_rows(self) -> list[int]:
        """Return the rows of the next batch."""
        return self.batches[self._step()]

    def save(self) -> None:
        self.run.state.seconds = self.clock.seconds()
        if self.state_file is not None:
            checkpoint.write(self.state_file, self.run.state, self.run.tensors())


class _Interrupts:
    """Delays Ctrl-C until the step is complete and saved, because a checkpoint must not contain half a step."""

    def __init__(self) -> None:
        self.requested = False
        self.previous: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _note(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt  # a second Ctrl-C interrupts immediately
        self.requested = True

    def obey(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.requested:
            raise KeyboardInterrupt


class _ReadingReport:
    """Reports to the watcher how many of a job's texts the base has read.

    Ctrl-C takes effect between passes; the states of completed passes are stored.
    """

    def __init__(self, job: Job, watch: Watch | None, interrupts: _Interrupts) -> None:
        self.job, self.watch, self.interrupts = job, watch, interrupts
        self.reported: float | None = None

    def __call__(self, share: float, left: float) -> None:
        self.interrupts.obey()
        now = time.monotonic()
        self.reported = self.reported or now  # a short computation is not reported
        if self.watch is not None and now - self.reported > 0.5:
            self.reported = now
            self.watch(
                Progress(
                    self.job,
                    step=0,
                    steps=1,
                    epoch=0,
                    epochs=self.job.settings.epochs,
                    loss=0.0,
                    metric="",
                    validation=None,
                    tokens_per_second=0.0,
                    seconds_left=left,
                    resumed_at=0,
                    reading=share,
                )
            )


class _Clock:
    """Measures time, collects losses and reports to the watcher."""

    def __init__(self, run: Run, watch: Watch | None, every: float) -> None:
        """`every`: the minimum seconds between two reports."""
        self.run, self.watch = run, watch
        self.every, self.reported = every, 0.0
        self.before, self.began = run.state.seconds, time.monotonic()
        self.tokens_before, self.resumed_at = run.state.tokens, run.state.step
        self.losses: list[float] = []

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def mean_loss(self) -> float | None:
        """Return the epoch's mean loss; None if the run resumed at the end of the epoch."""
        mean = float(np.mean(self.losses)) if self.losses else None
        self.losses = []
        return mean

    def tick(self, epoch: int, loss: float) -> None:
        """Record the loss of a step; report the progress if the last report is `every` seconds old."""
        self.losses.append(loss)
        now = time.monotonic()
        if self.watch is None or now - self.reported < self.every:
            return
        self.reported = now
        run, elapsed = self.run, now - self.began
        state = run.state
        step_seconds = elapsed / (state.step - self.resumed_at)
        self.watch(
            Progress(
                job=run.job,
                step=state.step,
                steps=run.steps,
                epoch=epoch + 1,
                epochs=sum(run.epochs),
                loss=float(np.mean(self.losses[-20:])),
                metric=run.metric,
                validation=state.history[-1].get(run.metric) if state.history else None,
                tokens_per_second=(state.tokens - self.tokens_before) / elapsed,
                seconds_left=step_seconds * (run.steps - state.step),
                resumed_at=self.resumed_at,
            )
        )
