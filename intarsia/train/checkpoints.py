"""Where the checkpoints of active jobs are kept: one file a job, or one file for all jobs of a batch.

The jobs of a batch share passes, and on a CPU the dropout masks and the rounding of a pass depend on all its rows. A
killed batch therefore ends with the same bits only if all its jobs resume from the same pass. One file holds them all
and is replaced in one step, so that a kill cannot leave states of two passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from torch import Tensor

from intarsia import files
from intarsia.train import checkpoint
from intarsia.train.checkpoint import State
from intarsia.train.job import Job

Snapshot = tuple[Job, State, Mapping[str, Tensor]]
Stored = tuple[State, dict[str, Tensor]]


class Checkpoints(Protocol):
    """Keeps the checkpoints of the active jobs."""

    def read(self, job: Job) -> Stored | None:
        """Return the state of a job that takes its slot, or None: it starts anew."""

    def write(self, snapshots: Sequence[Snapshot]) -> None:
        """Keep the states of all active jobs; jobs that are not among them have ended."""


class JobFiles:
    """One checkpoint file for each job."""

    def __init__(self, path_of: Callable[[Job], Path | None]) -> None:
        """`path_of` returns a job's file, or None: the job has no checkpoint."""
        self.path_of = path_of

    def read(self, job: Job) -> Stored | None:
        path = self.path_of(job)
        return None if path is None else checkpoint.read(path)

    def write(self, snapshots: Sequence[Snapshot]) -> None:
        for job, state, tensors in snapshots:
            if (path := self.path_of(job)) is not None:
                checkpoint.write(path, state, tensors)


class BatchFile:
    """One file with the checkpoints of all jobs of a batch that have not ended."""

    def __init__(self, path: Path, key_of: Callable[[Job], str]) -> None:
        self.path, self.key_of = path, key_of
        self.stored = _read(path)

    @property
    def keys(self) -> set[str]:
        """The keys of the jobs in the file."""
        return set(self.stored)

    def restart(self) -> None:
        """Remove what is stored: all jobs of the batch start anew."""
        self.path.unlink(missing_ok=True)
        self.stored = {}

    def read(self, job: Job) -> Stored | None:
        return self.stored.pop(self.key_of(job), None)

    def write(self, snapshots: Sequence[Snapshot]) -> None:
        if not snapshots:  # the batch has ended
            return
        states: dict[str, str] = {}
        tensors: dict[str, Tensor] = {}
        for job, state, named in snapshots:
            key = self.key_of(job)
            states[key] = json.dumps(asdict(state))
            tensors |= {f"{key}/{name}": tensor for name, tensor in named.items()}
        files.make_folder(self.path.parent)
        checkpoint.write_tensors(self.path, tensors, states)


def batch_checkpoints(path: Path, jobs: int, key_of: Callable[[Job], str]) -> JobFiles | BatchFile:
    """Return the checkpoints of a batch with this number of jobs."""
    return JobFiles(lambda _: path) if jobs == 1 else BatchFile(path, key_of)


class BatchFiles:
    """The files of the batches of a queue, one after another: active jobs are always of one batch."""

    def __init__(self, file_of: Callable[[Job], Checkpoints]) -> None:
        self.file_of = file_of

    def read(self, job: Job) -> Stored | None:
        return self.file_of(job).read(job)

    def write(self, snapshots: Sequence[Snapshot]) -> None:
        if snapshots:
            self.file_of(snapshots[0][0]).write(snapshots)


def _read(path: Path) -> dict[str, Stored]:
    """Return the stored checkpoints by key; empty if the file is missing or damaged."""
    found = checkpoint.read_tensors(path)
    if found is None:
        return {}
    try:
        states = {key: State(**json.loads(text)) for key, text in found[0].items()}
    except (TypeError, ValueError):
        return {}
    return {key: (state, _of(key, found[1].items())) for key, state in states.items()}


def _of(key: str, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{key}/"): tensor for name, tensor in tensors if name.startswith(f"{key}/")}
