"""The process that trains batches on one device, or on a share of a node's cores. Ray runs it as an actor.

A call of `train` yields what happens, in order: progress, checkpoints, ended jobs. After an ended job it waits until
the driver has stored the result, so that no checkpoint without the job can exist before its result does.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from intarsia.cluster.transfer import EncoderParts, encoder_of
from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import TaskData
from intarsia.train.checkpoints import Checkpoints, Snapshot, batch_checkpoints
from intarsia.train.interrupts import Interrupted
from intarsia.train.job import Job
from intarsia.train.loop import train_together
from intarsia.train.progress import Progress
from intarsia.train.run import Trained
from intarsia.train.tokens import Tokenizer
from intarsia.train.trunk import TrunkCache

REPORT = 0.5  # seconds between two reports of a job's progress


@dataclass(frozen=True)
class Assignment:
    """A batch, as it travels to an actor: jobs without their data, and references to the data."""

    jobs: Sequence[tuple[str, Job]]  # (key, job) of the jobs to train
    data: Sequence[Any]  # for each job the reference of its data in the object store
    size: int  # the number of jobs of the whole batch
    path: str | None  # the checkpoint file, if this node sees the queue's folder
    state: bytes | None  # its content otherwise
    save_every: float
    score_test: bool


@dataclass(frozen=True)
class Report:
    """What an actor tells the driver: progress, a checkpoint, or an ended job."""

    key: str = ""
    progress: Progress | None = None
    saved: bool = False
    state: bytes | None = None  # the checkpoint, if this node does not see the queue's folder
    outcome: Trained | IntarsiaError | None = None


class TrainingActor:
    """Trains one batch after another."""

    def __init__(self, parts: EncoderParts, threads: int, device: str, precision: str | None) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.threads = threads
        torch.set_num_threads(threads)
        self.encoder = encoder_of(parts, device, precision)
        self.tokenizer = Tokenizer(self.encoder)
        self.data: dict[Any, TaskData] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="intarsia-actor-"))
        self.stopped, self.stored = threading.Event(), threading.Semaphore(0)

    def sees(self, path: str, content: str) -> bool:
        """Return whether this node sees a file that the driver has written."""
        try:
            return Path(path).read_text() == content
        except OSError:
            return False

    def stop(self) -> None:
        """Store the states and end the present call of `train`."""
        self.stopped.set()

    def acknowledge(self) -> None:
        """Go on: the driver has stored the result of the job that has just ended."""
        self.stored.release()

    def train(self, assignment: Assignment) -> Iterator[Report]:
        """Train a batch and yield reports. Ends early, with a checkpoint, after `stop`."""
        self.stopped.clear()
        reports: queue.SimpleQueue[Report | BaseException | None] = queue.SimpleQueue()
        thread = threading.Thread(target=self._train, args=(assignment, reports), daemon=True)
        thread.start()
        while (report := reports.get()) is not None:
            if isinstance(report, BaseException):
                raise report
            yield report
        thread.join()

    def _train(self, assignment: Assignment, reports: queue.SimpleQueue[Report | BaseException | None]) -> None:
        torch.set_num_threads(self.threads)  # OpenMP counts threads for each thread that asks
        try:
            self._train_batch(assignment, reports)
        except Interrupted:
            pass
        except BaseException as error:
            reports.put(error)
        reports.put(None)

    def _train_batch(self, assignment: Assignment, reports: queue.SimpleQueue[Report | BaseException | None]) -> None:
        jobs = {
            key: dataclasses.replace(job, data=self._data(reference))
            for (key, job), reference in zip(assignment.jobs, assignment.data, strict=True)
        }
        keys = {id(job): key for key, job in jobs.items()}
        path = Path(assignment.path or self.folder / "state.safetensors")
        if assignment.path is None:
            path.unlink(missing_ok=True)
            if assignment.state is not None:
                path.write_bytes(assignment.state)
        stored = batch_checkpoints(path, assignment.size, lambda job: keys[id(job)])
        reported: dict[str, float] = {}

        def watch(progress: Progress) -> None:
            key, now = keys[id(progress.job)], time.monotonic()
            if now - reported.get(key, -REPORT) >= REPORT:
                reported[key] = now
                reports.put(Report(key, progress=dataclasses.replace(progress, job=None)))  # type: ignore[arg-type]

        def done(job: Job, outcome: Trained | IntarsiaError) -> None:
            reports.put(Report(keys[id(job)], outcome=outcome))
            self.stored.acquire()

        cuda = self.encoder.device.type == "cuda"
        train_together(
            list(jobs.values()),
            self.encoder,
            score_test=assignment.score_test,
            done=done,
            checkpoints=_Reporting(stored, path, assignment.path is None, reports),
            watch=watch,
            save_every=assignment.save_every,
            trunk=TrunkCache(self.encoder, self.folder),
            tokenizer=self.tokenizer,
            batch_of=None if cuda else lambda _: "",
            stop=self.stopped.is_set,
        )

    def _data(self, reference: Any) -> TaskData:
        """Return data from the object store, always as the same object, so that it is tokenized once."""
        import ray

        if reference not in self.data:
            self.data[reference] = ray.get(reference)
        return self.data[reference]


class _Reporting:
    """Checkpoints in a file; each write is reported, with the file's content if the driver cannot see it."""

    def __init__(self, inner: Checkpoints, path: Path, sends: bool, reports: Any) -> None:
        self.inner, self.path, self.sends, self.reports = inner, path, sends, reports

    def read(self, job: Job) -> Any:
        return self.inner.read(job)

    def write(self, snapshots: Sequence[Snapshot]) -> None:
        self.inner.write(snapshots)
        if snapshots:
            self.reports.put(Report(saved=True, state=self.path.read_bytes() if self.sends else None))


def share_done(costs: Mapping[str, float], done: Mapping[str, float]) -> float:
    """Return the share of a batch that is done: `costs` and the share that is done, by job."""
    total = sum(costs.values())
    return sum(cost * done.get(key, 0.0) for key, cost in costs.items()) / total if total else 0.0
