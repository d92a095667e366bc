"""The training loop: it trains a queue of jobs, several of them in each pass through the base."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from operator import length_hint
from pathlib import Path

import numpy as np

from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.memory import MemoryTrim
from intarsia.train.active_job import ActiveJob, Saving
from intarsia.train.checkpoints import Checkpoints, JobFiles
from intarsia.train.interrupts import Interrupts
from intarsia.train.job import Job
from intarsia.train.progress import ReadingReport, Watch
from intarsia.train.run import Run, Trained
from intarsia.train.scheduler import MOST_ACTIVE, Scheduler
from intarsia.train.stepper import RowPredictions
from intarsia.train.time_shares import TimeShares, tokens_in
from intarsia.train.tokens import Tokenizer
from intarsia.train.trunk import TrunkCache

Done = Callable[[Job, Trained | IntarsiaError], None]


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
        checkpoints=None if state_file is None else JobFiles(lambda _: state_file),
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
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
    save_every: float = 15.0,
    trunk: TrunkCache | None = None,
    tokenizer: Tokenizer | None = None,
    batch_of: Callable[[Job], Hashable] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train jobs, up to `together` of them (None: as many as fit) in each pass through the base.

    When a job ends, stops early or diverges, `done` is called and the next job takes its slot. The other jobs are not
    affected. Jobs that change the base, or learn from stored states, run one at a time.

    `jobs` is read when slots become free, so it may be a queue that other code fills or empties. Its length hint limits
    the number of training slots. `needed` is called right before a job takes its slot and returns whether to train it;
    another process may have finished the job meanwhile. With `score_test`, the best checkpoint of each job is also
    scored on the test part; this score selects nothing.

    `batch_of` names the batch of a job: the jobs of a batch begin together, and no other job joins their passes, so
    that `together` has no effect. `tokenizer` holds tokens that other code uses too.

    `trunk` caches the outputs of the lower layers for jobs without dropout there (None: in memory only). It is empty
    when all jobs have ended. Feature-based jobs store the base's states in its folder, and these files remain.

    `stop` is asked after each step. If it returns True, the checkpoints are written and `Interrupted` is raised, as
    after Ctrl-C: a thread that is not the main thread gets no signals.
    """
    queue = _Queue(jobs, needed)
    trunk = trunk or TrunkCache(encoder)
    scheduler = Scheduler(encoder, together, trunk, length_hint(jobs, MOST_ACTIVE), tokenizer, batch_of)
    active_jobs: dict[Run, ActiveJob] = {}
    saving, trim_memory, shares = Saving(save_every, checkpoints), MemoryTrim(), TimeShares()

    def ended(job: Job, result: Trained | IntarsiaError) -> None:
        done(job, result)
        shares.skip()

    admitted = 1  # the number of active jobs at the last read of the queue, which is read again when a job has left
    with Interrupts(stop) as interrupts:
        while True:
            job_ended = len(active_jobs) < admitted
            while job_ended and scheduler.room(active_jobs):
                if (job := queue.next(scheduler.accepts(active_jobs))) is None:
                    break
                run = scheduler.run(job, active_jobs, ReadingReport(job, watch, interrupts))
                active_job = ActiveJob(run, checkpoints, watch, scheduler.report_every)
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
