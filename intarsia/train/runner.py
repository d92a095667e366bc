"""The runner: it trains the jobs that have no stored result, in shared passes, and stores each result when a job ends.

Sweeps, comparisons and the paper's experiments use the same runner with different result stores. A store decides where
results are stored, what is measured when a job ends, and whether a job already has a result. The runner keeps the
checkpoints of the active jobs, so that a killed queue resumes when it is run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from intarsia import files
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import to_dict
from intarsia.train.job import Job
from intarsia.train.loop import train_together
from intarsia.train.progress import Progress, Watch
from intarsia.train.run import Trained, check_job, is_exclusive
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
class PlannedJob:
    """A job of the queue, and its cost relative to the other jobs."""

    key: str
    job: Job
    cost: float


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
        """`folder` holds the trunk's cached states, and one subfolder per active job with its checkpoint. `state_file`
        gives another path for a job's checkpoint. Jobs with equal keys would end with equal weights and run once."""
        self.encoder, self.folder, self.results = encoder, folder, results
        self.state_file = state_file or (lambda key: folder / key / "state.safetensors")
        self.watched, self.watch = watch is not None, watch or (lambda _: None)
        distinct = {job.key(encoder.fingerprint): job for job in jobs}
        self.planned = sorted((PlannedJob(key, job, cost(job)) for key, job in distinct.items()), key=_sort_key)
        self.keys = {id(planned.job): planned.key for planned in self.planned}  # the loop returns the same objects
        self.ended: dict[str, RunnerResult] = {}

    def run(self, together: int | None = None, *, score_test: bool = False) -> dict[str, RunnerResult]:
        """Train the jobs that have no result; return the results of all jobs by key.

        `together`: the number of jobs that share a pass (None: as many as fit). `score_test`: also score each job on
        the test part.
        """
        self.watch(RunnerEvent(planned=self.planned))
        missing = [planned.job for planned in self.planned if not self._is_stored(planned.job)]
        train_together(
            missing,
            self.encoder,
            together=together,
            score_test=score_test,
            done=self._done,
            needed=self._needed,
            state_file=self._state_file,
            watch=self._step if self.watched else None,
            trunk=TrunkCache(self.encoder, self.folder),
        )
        return self.ended

    def _is_stored(self, job: Job) -> bool:
        """Return whether the job has a stored result, and report this result to the watcher."""
        key = self.keys[id(job)]
        if (result := self.results.find(job, key)) is None:
            return False
        self._report(job, key, result, stored=True)
        return True

    def _needed(self, job: Job) -> bool:
        """Return whether to train a job that may take a slot now: it has no result, and its settings are valid."""
        if self._is_stored(job):
            return False
        try:
            check_job(job, self.encoder.shape)
        except IntarsiaError as error:
            self._done(job, error)
            return False
        return True

    def _step(self, progress: Progress) -> None:
        self.watch(RunnerEvent(job=progress.job, key=self.keys[id(progress.job)], progress=progress))

    def _done(self, job: Job, outcome: Trained | IntarsiaError) -> None:
        key = self.keys[id(job)]
        result = self.results.add(job, key, outcome)
        self._remove_state(key)  # only now: if the process is killed while it measures, the job can still resume
        self._report(job, key, result)

    def _report(self, job: Job, key: str, result: RunnerResult, *, stored: bool = False) -> None:
        self.ended[key] = result
        self.watch(RunnerEvent(job=job, key=key, result=result, stored=stored))

    def _state_file(self, job: Job) -> Path:
        path = self.state_file(self.keys[id(job)])
        files.make_folder(path.parent)
        return path

    def _remove_state(self, key: str) -> None:
        path = self.state_file(key)
        if path.parent.name == key:  # the folder belongs to this job only
            files.remove_folder(path.parent)
        else:
            with suppress(OSError):  # the result is stored: what follows must not make it look lost
                path.unlink(missing_ok=True)


def _sort_key(planned: PlannedJob) -> tuple[bool, str, float]:
    """Return the sort key of the queue.

    The longest jobs come first, so that the last pass is not left with one long job. Jobs that cannot share a pass
    come last and are grouped by method, because all tasks reuse the recorded passes of a method.
    """
    exclusive = is_exclusive(planned.job.method)
    return exclusive, str(planned.job.method) if exclusive else "", -planned.cost
