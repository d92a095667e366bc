"""Jobs: tasks that are learned while the service runs, one at a time, each in a process of its own.

    work/jobs/<id>/job.json       the job and its state
    work/jobs/<id>/data.…         its data, until it ends
    work/jobs/<id>/events.jsonl   its progress
    work/jobs/<id>/log.txt        what its process wrote to its error stream

A job is accepted when its folder is complete on disk. After a kill of the service, the next start puts jobs that have
not ended back into the queue; training goes on from its checkpoint, as in `intarsia learn`. If several services run
over one bank, one of them has the jobs; another takes them over when it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from intarsia import files
from intarsia.errors import BankError, IntarsiaError
from intarsia.service.catalog import Listed
from intarsia.service.errors import Failure
from intarsia.service.job_process import JobProcess, Worker
from intarsia.service.options import Options
from intarsia.service.schemas import JobInfo

log = logging.getLogger("intarsia.error")

ATTEMPTS = 3  # starts of a job that die with the service and get no further than the starts before
LOOK_SECONDS = 1.0  # between two looks at whether the service that has the jobs has ended
KEPT = 200  # ended jobs
EVENTS = 20_000  # of one job in memory
ENDED = ("done", "failed", "cancelled")
Event = dict[str, Any]


class Job:
    """A job in memory. The board's lock guards it."""

    def __init__(self, folder: Path, info: JobInfo, attempts: int = 0, in_vain: int = 0) -> None:
        """`attempts`: starts of its process; `in_vain`: those since one got further than all before."""
        self.folder, self.info, self.attempts, self.in_vain = folder, info, attempts, in_vain
        self.events: list[Event] = []
        self.furthest = 0  # the last step that any start has reached
        self.process: JobProcess | None = None
        self.cancelled = False

    @property
    def data(self) -> Path | None:
        return next(self.folder.glob("data.*"), None)

    def save(self) -> None:
        stored = {**msgspec.to_builtins(self.info), "attempts": self.attempts, "in_vain": self.in_vain}
        files.replace(self.folder / "job.json", [msgspec.json.encode(stored)])

    @classmethod
    def read(cls, folder: Path) -> Job:
        stored = msgspec.json.decode((folder / "job.json").read_bytes())
        job = cls(folder, msgspec.convert(stored, JobInfo), stored["attempts"], stored.get("in_vain", 0))
        with contextlib.suppress(FileNotFoundError):
            for line in (folder / "events.jsonl").read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):  # the last line of a process that was killed
                    job.events.append(msgspec.json.decode(line))
        job.furthest = max((step_of(event) for event in job.events), default=0)
        return job


def step_of(event: Event) -> int:
    return int(event.get("step") or 0)


class JobBoard:
    """The queue and the runner. Methods may be called from any thread."""

    def __init__(self, bank: Path, worker: Worker, options: Options) -> None:
        self.folder = bank / "work" / "jobs"
        self.worker, self.options = worker, options
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._listeners: set[Callable[[], None]] = set()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._owner: FileLock | None = None  # held while this service has the jobs of the bank

    def begin(self) -> None:
        """Read the stored jobs and run those that have not ended, or wait until the service that has them ends."""
        self._take()
        self._thread = threading.Thread(target=self._run, name="intarsia-jobs", daemon=True)
        self._thread.start()

    def _take(self) -> bool:
        """Become the service that has the jobs of the bank, unless another one is."""
        files.make_folder(self.folder)
        lock = FileLock(self.folder / "owner.lock")
        try:
            lock.acquire(timeout=0)  # the system releases it when the process ends
        except Timeout:
            return False
        with self._changed:
            self._read()
            self._owner = lock
        return True

    def check_owner(self) -> None:
        """Raise if another service has the jobs."""
        if self._thread is not None and self._owner is None:
            raise Failure(403, "Another service of this bank runs its jobs; ask that one.", code="jobs_elsewhere")

    def _read(self) -> None:
        for folder in sorted(self.folder.glob("job-*")):
            try:
                job = Job.read(folder)
            except (OSError, KeyError, msgspec.MsgspecError):
                if time.time() - folder.stat().st_mtime > files.STALE_SECONDS:
                    files.remove_folder(folder)  # it was never accepted
                continue
            self._jobs[job.info.id] = job
            if job.info.state not in ENDED:
                job.info.state = "queued"
                self._waiting.append(job)

    # What clients ask for.

    def check_room(self, task: str) -> None:
        """Raise unless another job for this task can wait."""
        with self._changed:
            active = [job for job in self._jobs.values() if job.info.state not in ENDED]
            if any(job.info.task == task for job in active):
                raise Failure(409, f"A job for the task {task!r} is under way; wait, or cancel it.", code="job_exists")
            if len(self._waiting) >= self.options.job_queue:
                raise Failure(429, f"{len(self._waiting)} jobs wait already.", code="job_queue_full", retry_after=30)

    @contextlib.contextmanager
    def new_folder(self) -> Iterator[Path]:
        """A folder for the data of a new job; it is removed if the job is not added."""
        folder = self.folder / f"job-{time.time_ns():x}-{os.urandom(4).hex()}"
        try:
            files.make_folder(folder)
        except OSError as error:
            raise BankError(f"The bank cannot store jobs: {error.strerror}.") from error
        try:
            yield folder
        finally:
            if folder.name not in self._jobs:
                files.remove_folder(folder)

    def add(self, folder: Path, task: str, options: dict[str, Any], rows: int | None) -> JobInfo:
        """Put a job whose data is in its folder into the queue."""
        info = JobInfo(folder.name, task, "queued", _now(), options=options, rows=rows)
        job = Job(folder, info)
        with self._changed:
            self.check_room(task)
            job.save()
            self._jobs[info.id] = job
            self._waiting.append(job)
            self._tell(job, {"event": "state", "state": "queued"})
        return info

    def infos(self) -> list[JobInfo]:
        """All jobs, the newest first."""
        with self._changed:
            return [job.info for job in reversed(self._jobs.values())]

    def job(self, id: str) -> Job:
        with self._changed:
            if id in self._jobs:
                return self._jobs[id]
        raise Failure(404, "There is no such job.", code="unknown_job", param="id")

    def cancel(self, id: str) -> JobInfo:
        """Cancel a job that has not ended. Its process ends within seconds; its checkpoint is removed."""
        job = self.job(id)
        with self._changed:
            if job.info.state in ENDED:
                raise Failure(409, f"The job has ended: {job.info.state}.", code="job_ended")
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self._end(job, "cancelled")
            elif job.process is not None:
                job.process.cancel()
            return job.info

    def events(self, id: str, after: int) -> tuple[list[tuple[int, Event]], bool]:
        """Numbered events of a job, from number `after` on, and whether no more will follow."""
        job = self.job(id)
        with self._changed:
            found = list(enumerate(job.events[after:], after))
            return found, job.info.state in ENDED or self._closing

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, in any thread, after each event; the returned function ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def wake(self) -> None:
        """Call the listeners, although nothing has happened."""
        for listener in [*self._listeners]:
            listener()

    def close(self) -> None:
        """Stop the running process; its job goes on at the next start."""
        with self._changed:
            self._closing = True
            for job in self._jobs.values():
                if job.process is not None:
                    job.process.stop()
            self._changed.notify_all()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout=10)
        if self._owner is not None:
            self._owner.release()

    # The runner's thread.

    def _run(self) -> None:
        while self._owner is None and not self._take():
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, LOOK_SECONDS):
                    return
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                job = self._waiting.popleft()
                job.attempts += 1
                job.in_vain += 1
                job.info.state, job.info.started = "running", _now()
                self._tell(job, {"event": "state", "state": "running"})
            try:
                self._save(job)
                self._run_one(job)
            except Exception as error:  # the runner serves the next job too
                log.exception("job %s failed", job.info.id)
                with self._changed:
                    self._end(job, "failed", f"The service failed on this job: {type(error).__name__}.")

    def _run_one(self, job: Job) -> None:
        if job.in_vain > ATTEMPTS:
            with self._changed:
                self._end(job, "failed", f"The job was started {ATTEMPTS} times and got no further.")
            return
        with self._changed:
            if self._closing:
                return
            process = job.process = JobProcess(self.worker, job.folder, self.options)
            if job.cancelled:
                process.cancel()
        outcome: Event | None = None
        for event in process.events():
            if event["event"] in ("done", "failed", "cancelled"):
                outcome = event
                continue
            with self._changed:
                if event["event"] == "progress":
                    job.info.progress = {k: v for k, v in event.items() if k != "event"}
                    self._count_progress(job, step_of(event))
                self._tell(job, event)
        code = process.wait()
        with self._changed:
            job.process = None
            if job.cancelled and (outcome is None or outcome["event"] != "done"):
                self._end(job, "cancelled")
            elif outcome is not None and outcome["event"] == "done":
                job.info.version, job.info.served = outcome["version"], outcome.get("served", True)
                Listed.forget()
                self._end(job, "done")
            elif outcome is not None:
                self._end(job, "failed", outcome["message"])
            elif self._closing:  # the service ends in order: this start does not count
                job.in_vain = 0
                self._save(job)
            else:
                self._end(job, "failed", process.death(code))

    def _count_progress(self, job: Job, step: int) -> None:
        """A start that gets further than those before it shows that the job does not take the service down."""
        if step > job.furthest:
            job.furthest = step
            if job.in_vain:
                job.in_vain = 0
                self._save(job)

    def _end(self, job: Job, state: Any, error: str | None = None) -> None:
        job.info.state, job.info.ended, job.info.error = state, _now(), error
        self._save(job)
        event: Event = {"event": state}
        if error is not None:
            event["message"] = error
        if job.info.version is not None:
            event["version"], event["served"] = job.info.version, job.info.served
        self._tell(job, event)
        data = job.data
        if data is not None:
            data.unlink(missing_ok=True)
        ended = [other for other in self._jobs.values() if other.info.state in ENDED]
        for old in ended[: max(0, len(ended) - KEPT)]:
            del self._jobs[old.info.id]
            files.remove_folder(old.folder)

    def _save(self, job: Job) -> None:
        """Store the state. With a full disk the state stays in memory, and the job starts again after a restart."""
        try:
            job.save()
        except IntarsiaError as error:
            log.error("the state of job %s is not stored: %s", job.info.id, error)

    def _tell(self, job: Job, event: Event) -> None:
        if len(job.events) < EVENTS or event["event"] != "progress":
            job.events.append(event)
            with contextlib.suppress(OSError), (job.folder / "events.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(event) + b"\n")
        self._changed.notify_all()
        self.wake()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
