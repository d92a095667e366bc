"""The runner: trains the jobs that have no stored result, in shared passes, and stores each result when its job ends.

Sweeps, comparisons and the paper's experiments are the same runner with different result stores. A store decides where
a result lies, what is measured when a job ends, and whether a job has a result already. The runner keeps the state of
the jobs under way: a queue that was killed goes on when it is run again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from intarsia import files
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import to_dict
from intarsia.train.job import Job
from intarsia.train.loop import Progress, Watch, train_together
from intarsia.train.run import Trained, check_job, is_exclusive
from intarsia.train.trunk import TrunkCache


class RunnerResult(Protocol):
    """What every store knows of a job that ended."""

    @property
    def dev(self) -> float | None: ...  # the best validation score; None: the job failed …
    @property
    def reason(self) -> str | None: ...  # … and why
    @property
    def seconds(self) -> float: ...


class ResultStore(Protocol):
    """Where the results of a queue lie."""

    def find(self, job: Job, key: str) -> RunnerResult | None:
        """The stored result of a job. It is asked for at the start, and again before the job takes a slot: another
        process may have stored it meanwhile."""

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> RunnerResult:
        """Measure a job that has just ended, and store its result in one atomic write."""


@dataclass(frozen=True)
class JobResult:
    """The result of one job, in the form that a sweep stores."""

    task: str
    key: str
    method: dict[str, Any]
    settings: dict[str, Any]
    dev: float | None  # None: the job diverged …
    reason: str | None  # … and why
    best_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    test: float | None = None  # where every job is scored on the test part; the selection ignores it

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
    """A job of the queue, and what it costs relative to the others."""

    key: str
    job: Job
    cost: float


@dataclass(frozen=True)
class RunnerEvent:
    """What a watcher is told: first all jobs (`planned`), then a step of a job (`progress`) or its `result`.

    Results that were `stored` before come right after the plan, or later where another process has stored them.
    """

    planned: Sequence[PlannedJob] | None = None
    job: Job | None = None
    key: str = ""
    progress: Progress | None = None
    result: RunnerResult | None = None
    stored: bool = False

    @property
    def counts(self) -> Mapping[str, int]:
        """How many jobs each task has."""
        return Counter(one.job.name for one in self.planned or ())


RunnerWatch = Callable[[RunnerEvent], None]
StateFileOf = Callable[[str], Path]  # by the job's key


def letters_read(job: Job) -> float:
    """The cost of a job as far as its data and epochs decide it."""
    return job.settings.epochs * sum(len(e.text) + len(e.pair or "") for e in job.data.train)


def both(watch: Watch | None, events: RunnerWatch | None) -> RunnerWatch | None:
    """One watcher of the runner: `watch` is told the training steps alone, `events` everything."""
    if watch is None:
        return events

    def told(event: RunnerEvent) -> None:
        if event.progress is not None:
            watch(event.progress)
        if events is not None:
            events(event)

    return told


class Runner:
    """One queue of jobs over one encoder."""

    def __init__(
        self,
        jobs: Iterable[Job],
        encoder: Encoder,
        folder: Path,
        results: ResultStore,
        *,
        cost: Callable[[Job], float] = letters_read,
        state_file: StateFileOf | None = None,
        watch: RunnerWatch | None = None,
    ) -> None:
        """`folder` holds the cached states of the trunk and, in a folder a job, the state of the jobs under way;
        `state_file` names another place for a job's state. Jobs that would end with the same weights run once."""
        self.encoder, self.folder, self.results = encoder, folder, results
        self.state_file = state_file or (lambda key: folder / key / "state.safetensors")
        self.watched, self.watch = watch is not None, watch or (lambda _: None)
        found = {job.key(encoder.fingerprint): job for job in jobs}
        self.planned = sorted((PlannedJob(key, job, cost(job)) for key, job in found.items()), key=_place)
        self.keys = {id(one.job): one.key for one in self.planned}  # the loop hands the same objects back
        self.ended: dict[str, RunnerResult] = {}

    def run(self, together: int | None = None, *, score_test: bool = False) -> dict[str, RunnerResult]:
        """Train the jobs that have no result; return the results of all jobs, by key.

        `together`: how many jobs share a pass (None: as many as fit). `score_test`: score each job on the test part.
        """
        self.watch(RunnerEvent(planned=self.planned))
        left = [one.job for one in self.planned if not self._is_stored(one.job)]
        train_together(
            left,
            self.encoder,
            together=together,
            score_test=score_test,
            done=self._done,
            wanted=self._wanted,
            state_file=self._state_file,
            watch=self._step if self.watched else None,
            trunk=TrunkCache(self.encoder, self.folder),
        )
        return self.ended

    def _is_stored(self, job: Job) -> bool:
        """Whether the job has a stored result; if so, tell the watcher."""
        key = self.keys[id(job)]
        if (result := self.results.find(job, key)) is None:
            return False
        self._tell(job, key, result, stored=True)
        return True

    def _wanted(self, job: Job) -> bool:
        """Whether a job that may take a slot now is to be trained."""
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
        self._remove_state(key)  # only now: after a kill while the result is measured, the state is still there
        self._tell(job, key, result)

    def _tell(self, job: Job, key: str, result: RunnerResult, *, stored: bool = False) -> None:
        self.ended[key] = result
        self.watch(RunnerEvent(job=job, key=key, result=result, stored=stored))

    def _state_file(self, job: Job) -> Path:
        path = self.state_file(self.keys[id(job)])
        files.make_folder(path.parent)
        return path

    def _remove_state(self, key: str) -> None:
        path = self.state_file(key)
        if path.parent.name == key:  # a folder of this job alone
            shutil.rmtree(path.parent, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _place(one: PlannedJob) -> tuple[bool, str, float]:
    """The longest jobs come first, so that no slot waits for a long job at the end. Jobs that cannot share a pass come
    last, method by method: the recorded passes of a method serve several tasks."""
    exclusive = is_exclusive(one.job.method)
    return exclusive, str(one.job.method) if exclusive else "", -one.cost
