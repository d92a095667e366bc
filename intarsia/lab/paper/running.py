"""Loads the tasks of an experiment, and trains its runs that have no record, in one queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import provenance
from intarsia.errors import DataError, IntarsiaError
from intarsia.lab.paper import names
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun, identity
from intarsia.lab.paper.runs import SOURCE_FIELDS, Record, RunStore
from intarsia.lab.paper.scoring import score_on, span_scores
from intarsia.methods import to_dict
from intarsia.tasks.data import content_hash
from intarsia.tasks.examples import Example, TaskData
from intarsia.tasks.reading import read_rows
from intarsia.tasks.splits import sample
from intarsia.tasks.suites import find, load, status
from intarsia.tasks.suites.folder import folder_to_read
from intarsia.train.job import Job, Settings
from intarsia.train.runner import Runner, RunnerWatch

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.train.run import Trained

TRIAL_ROWS = 1000  # the maximum number of test rows if the training rows are limited


@dataclasses.dataclass(frozen=True)
class LoadedTask:
    """A task's data, and further labelled rows for additional scores."""

    data: TaskData
    extras: dict[str, list[Example]]

    def available(self, requested: Sequence[str]) -> list[str]:
        """Return the requested additional scores that can be computed for this task."""
        return [name for name in requested if name in ("spans", "exact-match") or name in self.extras]


def load_tasks(
    tasks: Sequence[str], config: ExperimentConfig, folder: str | Path | None
) -> tuple[dict[str, LoadedTask], dict[str, str]]:
    """Return the tasks that are in the data folder, and the reason for each task that is left out."""
    loaded: dict[str, LoadedTask] = {}
    left_out: dict[str, str] = {}
    data_folder = folder_to_read(folder)
    for task in dict.fromkeys(tasks):
        local = status(find(task), data_folder)
        if local.state == "missing":
            left_out[task] = f"{names.official(task)} is not in the data folder and is left out."
        elif local.state == "partial" and not config.samples:
            left_out[task] = f"{names.official(task)} is incomplete here and is left out; --samples uses the sample."
        else:
            try:
                data = load(task, data_folder, partial=config.samples, limit=config.limit)
            except DataError as error:
                if local.state == "whole":
                    raise
                left_out[task] = f"{names.official(task)}: {error}"
                continue
            path = local.paths.get("dev_mismatched")
            rows = [row for _, row in read_rows(path)] if path else []
            mismatched = [Example(r["text_a"], r["text_b"], r["label"]) for r in rows if r["label"] in data.labels]
            if config.limit is not None:
                data, mismatched = _for_trial(data), mismatched[:TRIAL_ROWS]
            loaded[task] = LoadedTask(data, {"mismatched": mismatched} if mismatched else {})
    return loaded, left_out


def _for_trial(data: TaskData) -> TaskData:
    """Return the data with at most `TRIAL_ROWS` test rows, because all test rows of SQuAD take minutes on a CPU."""
    test = sample(data.test, TRIAL_ROWS, seed=0, kind=data.kind)
    if len(test) == len(data.test):
        return data
    parts = {"train": data.train, "dev": data.dev, "test": test}
    source = {**data.source, "rows": {name: len(part) for name, part in parts.items()}, "sha256": content_hash(parts)}
    return dataclasses.replace(data, test=test, source=source)


def train_missing(
    planned: Sequence[PlannedRun],
    config: ExperimentConfig,
    encoder: Encoder,
    store: RunStore,
    data: dict[str, LoadedTask],
    work: Mapping[str, Path],
    together: int | None = None,
    *,
    watch: RunnerWatch | None = None,
) -> None:
    """Train the planned runs that have no record. `work` maps each group to the folder for its runs' checkpoints."""
    results = PaperResults(planned, config, encoder, store, data)
    runner = Runner(
        results.jobs, encoder, next(iter(work.values())), results,
        cost=lambda job: job.settings.epochs * len(job.data.train),
        state_file=lambda key: work[results.planned[key].group] / key / "state.safetensors",
        watch=watch,
    )  # fmt: skip
    runner.run(together, score_test=True)


class PaperResults:
    """The result store of an experiment: its records lie in the store that all experiments over one encoder share."""

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        config: ExperimentConfig,
        encoder: Encoder,
        store: RunStore,
        data: dict[str, LoadedTask],
    ) -> None:
        self.config, self.encoder, self.store, self.data = config, encoder, store, data
        self.jobs: list[Job] = []
        self.planned: dict[str, PlannedRun] = {}  # by the job's key
        for run in self._distinct(run for run in planned if run.task in data):
            job = self._job(run)
            self.jobs.append(job)
            self.planned[job.key(encoder.fingerprint)] = run

    def find(self, job: Job, key: str) -> Record | None:
        """Return the record of a run, if it was trained on the same rows and has all requested scores."""
        run = self.planned[key]
        record = self.store.find(run, self.config.pooling, self.config.max_length)
        loaded = self.data[run.task]
        if record is None or record.data["sha256"] != loaded.data.source["sha256"]:
            return None
        missing = [name for name in loaded.available(run.extras) if name not in record.extras]
        return None if missing and record.reason is None else record

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> Record:
        run, shape, source = self.planned[key], self.encoder.shape, job.data.source
        known: dict[str, Any] = {
            "task": run.task, "key": key, "method": to_dict(run.method), "pooling": job.pooling,
            "settings": run.settings(self.config.max_length), "data": {k: source.get(k) for k in SOURCE_FIELDS},
            "machine": {**provenance.machine(str(self.encoder.device)), "precision": str(self.encoder.dtype)[6:]},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        if isinstance(outcome, IntarsiaError):
            record = Record(**known, parameters={"base": shape.parameters}, reason=str(outcome))
        else:
            head = outcome.learned.head.count(shape, job.method.row_width(shape))
            record = Record(
                **known,
                parameters={"method": job.method.count(shape), "head": head, "base": shape.parameters},
                dev=outcome.state.best,
                test=outcome.test,
                best_epoch=outcome.state.best_epoch,
                steps=outcome.state.step,
                seconds=round(outcome.state.seconds, 1),
                extras=self._extras(run, job, outcome),
            )
        self.store.add(record)
        return record

    def _distinct(self, planned: Iterator[PlannedRun]) -> list[PlannedRun]:
        """Return each run once, with all its requested scores; groups may share runs."""
        distinct: dict[str, PlannedRun] = {}
        for run in planned:
            key = identity(run.task, run.method, run.settings(self.config.max_length), self.config.pooling)
            extras = (*distinct[key].extras, *run.extras) if key in distinct else run.extras
            distinct[key] = dataclasses.replace(run, extras=tuple(dict.fromkeys(extras)))
        return list(distinct.values())

    def _job(self, run: PlannedRun) -> Job:
        settings = Settings.for_method(run.method, **run.settings(self.config.max_length))
        return Job(run.task, self.data[run.task].data, run.method, self.config.pooling, settings)

    def _extras(self, run: PlannedRun, job: Job, result: Trained) -> dict[str, Any]:
        """Return the additional scores of a run, by name."""
        loaded = self.data[run.task]
        scores: dict[str, Any] = {}
        for name in loaded.available(run.extras):
            if name == "spans":
                scores[name] = span_scores(job, result, self.encoder)
            elif name in result.also:
                scores[name] = result.also[name]
            else:
                scores[name] = score_on(job, result, loaded.extras[name], self.encoder)
        return scores
