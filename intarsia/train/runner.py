"""The runner: it trains the jobs that have no stored result, in shared passes, and stores each result when a job ends.

Sweeps, comparisons and the paper's experiments use the same runner with different result stores. A store decides where
results are stored, what is measured when a job ends, and whether a job already has a result. The runner keeps the
checkpoints of the active jobs, so that a killed queue resumes when it is run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from intarsia import files
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import to_dict
from intarsia.train.batches import Batch, Plan, PlannedJob, make_batches, sort_key, tokens_a_step
from intarsia.train.checkpoints import BatchFile, BatchFiles, Checkpoints, batch_checkpoints
from intarsia.train.job import Job
from intarsia.train.loop import train_together
from intarsia.train.progress import Progress, Watch
from intarsia.train.run import Trained, check_job
from intarsia.train.tokens import Tokenizer
from intarsia.train.trunk import TrunkCache


class RunnerResult(Protocol):
    """The values that every store holds for an ended job."""

    @property
    def dev(self) -> float | None: ...  # the best validation score; None if the job failed
    @property
    def reason(self) -> str | None: ...  # the reason of the failure
    @property
    def seconds(self) -> float: ...


class ResultStore(Protocol):
    """Stores the results of a queue."""

    def find(self, job: Job, key: str) -> RunnerResult | None:
        """Return the stored result of a job, or None.

        The runner calls this at the start and again before the job takes a slot, because another process may have
        stored the result meanwhile.
        """

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> RunnerResult:
        """Measure a job that has just ended, store its result in one atomic write, and return it."""


@dataclass(frozen=True)
class JobResult:
    """The result of one job, in the form that a sweep stores."""

    task: str
    key: str
    method: dict[str, Any]
    settings: dict[str, Any]
    dev: float | None  # None if the job diverged
    reason: str | None  # the reason of the failure
    best_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    test: float | None = None  # only if every job is scored on the test part; the selection ignores it

    @classmethod
    def of(cls, job: Job, key: str, outcome: Trained | IntarsiaError) -> JobResult:
        settings = {k: v for k, v in job.describe().items() if k != "method"}
        known: dict[str, Any] = {"task": job.name, "key": key, "method": to_dict(job.method), "settings": settings}
        if isinstance(outcome, IntarsiaError):
            return cls(**known, dev=None, reason=str(outcome))
        state = outcome.state
        return cls(
            **known, dev=state.best, reason=None, best_epoch=state.best_epoch, steps=state.step,
            seconds=round(state.seconds, 1), test=outcome.test,
        )  # fmt: skip


@dataclass(frozen=True)
class RunnerEvent:
    """An event for the watcher: first all jobs (`planned`), then steps of a job (`progress`) and its `result`.

    Results that were already `stored` follow the plan immediately, or come later if another process stores them. When
    the bank has stored a task's new version, an event of its job has `learned`: the fields of `intarsia show --json`.
    """

    planned: Sequence[PlannedJob] | None = None
    job: Job | None = None
    key: str = ""
    progress: Progress | None = None
    result: RunnerResult | None = None
    stored: bool = False
    place: str = ""  # the machine that trains the job, if it is another one
    learned: Mapping[str, Any] | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of jobs of each task."""
        return Counter(planned.job.name for planned in self.planned or ())


RunnerWatch = Callable[[RunnerEvent], None]
StateFileOf = Callable[[str], Path]  # maps a job's key to its checkpoint file


def characters_read(job: Job) -> float:
    """Return the cost of a job, estimated from its data and epochs: the number of characters that it reads."""
    return job.settings.epochs * sum(len(e.text) + len(e.pair or "") for e in job.data.train)


def join_watchers(watch: Watch | None, *events: RunnerWatch | None) -> RunnerWatch | None:
    """Join watchers of the runner: `watch` gets the progress of training steps only, `events` get every event."""
    watchers = [each for each in events if each is not None]
    if watch is None and len(watchers) < 2:
        return watchers[0] if watchers else None

    def notify(event: RunnerEvent) -> None:
        if event.progress is not None and watch is not None:
            watch(event.progress)
        for each in watchers:
            each(event)

    return notify


class Workers(Protocol):
    """Trains the batches of a queue elsewhere: on other devices or machines."""

    def train(self, batches: Sequence[Batch], runner: Runner, *, score_test: bool) -> None:
        """Train the batches; call `runner.done` for each job that ends and `runner.step` for each progress."""


_workers: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def using(workers: Workers | None) -> Iterator[None]:
    """Let these workers train all queues of the block; None: this process."""
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)


class Runner:
    """One queue of jobs over one encoder."""

    def __init__(
        self,
        jobs: Iterable[Job],
        encoder: Encoder,
        folder: Path,
        results: ResultStore,
        *,
        cost: Callable[[Job], float] = characters_read,
        state_file: StateFileOf | None = None,
        watch: RunnerWatch | None = None,
    ) -> None:
        """`folder` holds the trunk's cached states, and one subfolder per active batch with its checkpoint, named after
        the batch's first job. `state_file` gives another path for it. Jobs with equal keys would end with equal weights
        and run once. In a block of `using`, the workers train the batches."""
        self.encoder, self.folder, self.results = encoder, folder, results
        self.state_file = state_file or (lambda key: folder / key / "state.safetensors")
        self.watched, self.watch = watch is not None, watch or (lambda _: None)
        distinct = {job.key(encoder.fingerprint): job for job in jobs}
        self.planned = sorted((PlannedJob(key, job, cost(job)) for key, job in distinct.items()), key=sort_key)
        self.keys = {id(planned.job): planned.key for planned in self.planned}  # the loop returns the same objects
        self.ended: dict[str, RunnerResult] = {}
        self.batch_of: dict[str, Batch] = {}  # by the key of each job
        self.opened: dict[str, tuple[Checkpoints, Collection[str]]] = {}  # by batch: its checkpoint, and whom to train

    def run(self, together: int | None = None, *, score_test: bool = False) -> dict[str, RunnerResult]:
        """Train the jobs that have no result; return the results of all jobs by key.

        `together`: the number of jobs that share a pass (None: as many as fit). `score_test`: also score each job on
        the test part.
        """
        self.watch(RunnerEvent(planned=self.planned))
        missing = [planned for planned in self.planned if not self._is_stored(planned) and self._is_valid(planned)]
        tokenizer, plan = Tokenizer(self.encoder), Plan(self.folder, together)
        workers = _workers.get()
        recorded = self.encoder.device.type == "cuda" and workers is None

        def make(jobs: Sequence[PlannedJob]) -> list[Batch]:
            if recorded:  # the scheduler joins jobs, whose results do not depend on their neighbours
                return [Batch((planned,)) for planned in jobs]
            return make_batches(jobs, self.encoder.shape, lambda job: tokens_a_step(job, tokenizer), together)

        batches = plan.batches(
            {planned.key for planned in missing}, self.planned, make, lambda batch: self.state_of(batch).is_file()
        )
        self.batch_of = {key: batch for batch in batches for key in batch.keys}
        if workers is not None:
            workers.train(batches, self, score_test=score_test)
        else:
            train_together(
                [planned.job for batch in batches for planned in batch.jobs],
                self.encoder,
                together=together,
                score_test=score_test,
                done=self.done,
                needed=self._needed,
                checkpoints=BatchFiles(lambda job: self.open(self._batch(job))[0]),
                watch=self.step if self.watched else None,
                trunk=TrunkCache(self.encoder, self.folder),
                tokenizer=tokenizer,
                batch_of=None if recorded else lambda job: self._batch(job).name,
            )
        for planned in self.planned:  # a process that was killed between a result and its removal left the state
            self._remove_state(planned.key)
        plan.remove()
        return self.ended

    def open(self, batch: Batch) -> tuple[Checkpoints, Collection[str]]:
        """Return the checkpoint of a batch that begins or resumes, and the keys of the jobs to train.

        If any job has to be trained from its start, all have: their passes are the same only together.
        """
        if batch.name not in self.opened:
            path = self.state_of(batch)
            missing = {planned.key for planned in batch.jobs if not self._is_stored(planned)}
            keys: Collection[str] = missing
            checkpoints = batch_checkpoints(path, len(batch.jobs), lambda job: self.keys[id(job)])
            if isinstance(checkpoints, BatchFile) and missing:
                if not missing <= checkpoints.keys <= set(batch.keys):
                    checkpoints.restart()
                keys = checkpoints.keys or batch.keys
            self.opened[batch.name] = checkpoints, keys
        return self.opened[batch.name]

    def reopen(self, batch: Batch) -> Collection[str]:
        """Return the keys of the jobs to train of a batch that another process begins or resumes."""
        self.opened.pop(batch.name, None)
        _, keys = self.open(batch)
        self.opened.pop(batch.name)
        return keys

    def state_of(self, batch: Batch) -> Path:
        """Return the checkpoint file of a batch."""
        return self.state_file(batch.name)

    def step(self, progress: Progress, place: str = "") -> None:
        """Report the progress of a job."""
        self.watch(RunnerEvent(job=progress.job, key=self.keys[id(progress.job)], progress=progress, place=place))

    def done(self, job: Job, outcome: Trained | IntarsiaError) -> None:
        """Store the result of a job. A job that was trained again for its neighbours' sake has one already."""
        key = self.keys[id(job)]
        again = key in self.ended
        if not again:
            self.ended[key] = self.results.add(job, key, outcome)
        batch = self.batch_of.get(key)
        if batch is not None and all(other in self.ended for other in batch.keys):
            self._remove_state(batch.name)  # only now: if the process is killed while it measures, the job can resume
        if not again:
            self._report(job, key, self.ended[key])

    def _batch(self, job: Job) -> Batch:
        return self.batch_of[self.keys[id(job)]]

    def _is_stored(self, planned: PlannedJob) -> bool:
        """Return whether the job has a stored result, and report this result to the watcher."""
        if planned.key in self.ended:
            return True
        if (result := self.results.find(planned.job, planned.key)) is None:
            return False
        self._report(planned.job, planned.key, result, stored=True)
        return True

    def _is_valid(self, planned: PlannedJob) -> bool:
        """Return whether the settings of a job are valid; if not, that is its result."""
        try:
            check_job(planned.job, self.encoder.shape)
        except IntarsiaError as error:
            self.done(planned.job, error)
            return False
        return True

    def _needed(self, job: Job) -> bool:
        """Return whether to train a job that may take a slot now."""
        batch = self._batch(job)
        _, keys = self.open(batch)
        if keys:
            files.make_folder(self.state_of(batch).parent)
        return self.keys[id(job)] in keys

    def _report(self, job: Job, key: str, result: RunnerResult, *, stored: bool = False) -> None:
        self.ended[key] = result
        self.watch(RunnerEvent(job=job, key=key, result=result, stored=stored))

    def _remove_state(self, name: str) -> None:
        path = self.state_file(name)
        if path.parent.name == name:  # the folder belongs to this batch only
            files.remove_folder(path.parent)
        else:
            with suppress(OSError):  # the result is stored: what follows must not make it look lost
                path.unlink(missing_ok=True)
