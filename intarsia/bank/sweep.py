"""Sweeps: one queue trains every point of a grid for one or many tasks; the best job of each task becomes its inlay.

The validation part alone selects the best job. The test part is scored once, for the selected job, when the task is
stored. The results of finished jobs and the checkpoints of active jobs stay on disk, so that a killed sweep resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.bank import family, succession
from intarsia.bank.entry import Entry
from intarsia.bank.inlay_of import inlay_of
from intarsia.bank.store import Store
from intarsia.bank.work import clear, run_id, stored_by_run, working_folder
from intarsia.encoder.encoder import Encoder
from intarsia.errors import DamagedInlay, IntarsiaError
from intarsia.tasks.examples import TaskData
from intarsia.tasks.heads import Pooling
from intarsia.tasks.kind_registry import kind_for
from intarsia.tasks.learned import Learned
from intarsia.tasks.metrics import default_metric
from intarsia.train.checkpoint import State, read_tensors, write_tensors
from intarsia.train.grid import SMALL, Grid
from intarsia.train.job import Job
from intarsia.train.run import Trained, best_kind, check_job
from intarsia.train.runner import JobResult, Runner, RunnerEvent, RunnerWatch, characters_read


def run_sweep(
    store: Store,
    encoder: Encoder,
    tasks: Mapping[str, TaskData],
    grid: Grid | None = None,
    *,
    pooling: Pooling = "mean",
    together: int | None = None,
    score_all: bool = False,
    serve_anyway: bool = False,
    watch: RunnerWatch | None = None,
    **settings: Any,
) -> dict[str, Entry]:
    """Train every point of the grid for each task, store the best job of each task, and return the stored entries."""
    metric = settings.pop("metric", None)
    jobs: list[Job] = []
    for name, task in tasks.items():
        task_metric = metric.get(name) if isinstance(metric, Mapping) else metric
        jobs += (grid or SMALL).jobs(name, task, pooling=pooling, metric=task_metric, **settings)
    jobs = [family.with_parents(store, job, encoder) for job in jobs]
    jobs.sort(key=characters_read, reverse=True)
    for job in jobs:
        check_job(job, encoder.shape)
    work = store.folder / "work" / sweep_name(jobs, encoder)
    outcome = "The results so far are stored; the same command resumes the sweep."
    with files.explained(store.folder, doing="use", outcome=outcome), working_folder(work) as folder:
        # An earlier process may have been killed while it stored the inlays, or before it could clear the folder.
        before = {name: entry for name in tasks if (entry := stored_by_run(store, name, folder)) is not None}
        entries = dict(before)
        if entries.keys() != tasks.keys():
            results = SweepResults(jobs, encoder, folder)
            Runner(jobs, encoder, folder, results, watch=watch).run(together, score_test=score_all)
        for name in (name for name in tasks if name not in entries):
            job, trained = results.best(name)
            inlay = inlay_of(job, trained, encoder)
            inlay.training.update(grid=results.grid(name), run=run_id(folder))
            entry = entries[name] = succession.add(store, inlay, encoder=encoder, serve_anyway=serve_anyway)
            if watch is not None:
                watch(RunnerEvent(job=job, key=job.key(encoder.fingerprint), learned=entry.to_dict()))
        clear(folder)
    return {name: entries[name] for name in tasks}


def sweep_name(jobs: Sequence[Job], encoder: Encoder) -> str:
    """Return the name of a sweep's working folder; it depends on the jobs but not on their order."""
    keys = sorted(job.key(encoder.fingerprint) for job in jobs)
    return f"sweep-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}"


class SweepResults:
    """A sweep's results on disk: one JSON file per job, and the tensors of each task's best job."""

    def __init__(self, jobs: Sequence[Job], encoder: Encoder, folder: Path) -> None:
        self.folder = folder
        self.jobs = {job.key(encoder.fingerprint): job for job in jobs}
        self.found: dict[str, JobResult] = {}
        for key in self.jobs:
            with suppress(FileNotFoundError, KeyError, TypeError, ValueError):  # a damaged result: its job runs again
                self.found[key] = JobResult(**files.read_checked(self._result_file(key)))
            tensors = self._tensor_file(key)
            if tensors.is_file() and read_tensors(tensors) is None:
                tensors.unlink()
                self.found.pop(key, None)

    def find(self, job: Job, key: str) -> JobResult | None:
        return self.found.get(key)

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> JobResult:
        result = JobResult.of(job, key, outcome)
        before = self._best(job.name)
        better = result.dev is not None and (before is None or result.dev > (before.dev or 0.0))
        if better and not isinstance(outcome, IntarsiaError):
            self._store_tensors(key, outcome)
        files.replace_checked(self._result_file(key), asdict(result))
        self.found[key] = result
        if better and before is not None:  # only now: a kill at any time leaves the tensors of one best job
            self._tensor_file(before.key).unlink(missing_ok=True)
        return result

    def best(self, task: str) -> tuple[Job, Trained]:
        """Return the job with the best validation score, and its checkpoint."""
        result = self._best(task)
        if result is None:
            reasons = sorted({r.reason or "" for r in self.found.values() if r.task == task})
            raise IntarsiaError(f"Every job of the sweep for {task!r} failed: {' '.join(reasons)}")
        job = self.jobs[result.key]
        return job, self._trained(job, result.key)

    def grid(self, task: str) -> list[dict[str, Any]]:
        """Return the results of a task in the form that its inlay stores."""
        return [_summary(result) for result in self.found.values() if result.task == task]

    def _best(self, task: str) -> JobResult | None:
        """Return the task's best result; among equal scores, the first to end, because its tensors were stored."""
        ended = [r for r in self.found.values() if r.task == task and r.dev is not None]
        kept = [r for r in ended if self._tensor_file(r.key).is_file()]
        return max(kept, key=lambda r: r.dev or 0.0, default=None)

    def _store_tensors(self, key: str, trained: Trained) -> None:
        metadata = {"state": json.dumps(asdict(trained.state)), "left_out": str(trained.left_out)}
        write_tensors(self._tensor_file(key), trained.tensors, metadata)

    def _trained(self, job: Job, key: str) -> Trained:
        found = read_tensors(self._tensor_file(key))
        if found is None:
            raise DamagedInlay(
                f"{self._tensor_file(key)} is missing or damaged. Repeat the command: it trains this job again."
            )
        metadata, tensors = found
        state = State(**json.loads(metadata["state"]))
        task_kind = best_kind(kind_for(job.data), state)
        metric = job.settings.metric or default_metric(job.data.kind, job.data.labels)
        learned = Learned(job.method, task_kind.head(job.pooling, job.hidden), task_kind, tensors, job.parents)
        return Trained(learned, metric, state, left_out=int(metadata.get("left_out", 0)))

    def _result_file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _tensor_file(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def _summary(result: JobResult) -> dict[str, Any]:
    settings = {k: result.settings[k] for k in ("learning_rate", "epochs", "batch_size", "seed")}
    test = {} if result.test is None else {"test": result.test}
    return {
        "method": result.method, **settings, "dev": result.dev, **test, "seconds": result.seconds,
        "reason": result.reason,
    }  # fmt: skip
