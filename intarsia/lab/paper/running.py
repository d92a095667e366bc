"""Trains the runs of an experiment that have no record, all of them through one queue."""

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

TRIED_OUT = 1000  # test rows at most, where training rows are limited


@dataclasses.dataclass(frozen=True)
class LoadedTask:
    """A task's data, and further labelled rows to score it on."""

    data: TaskData
    extras: dict[str, list[Example]]

    def available(self, wanted: Sequence[str]) -> list[str]:
        return [name for name in wanted if name in ("spans", "exact-match") or name in self.extras]


def load_tasks(
    tasks: Sequence[str], config: ExperimentConfig, folder: str | Path | None
) -> tuple[dict[str, LoadedTask], dict[str, str]]:
    """The tasks that are here, and why others are left out."""
    found: dict[str, LoadedTask] = {}
    absent: dict[str, str] = {}
    place = folder_to_read(folder)
    for task in dict.fromkeys(tasks):
        here = status(find(task), place)
        if here.state == "missing":
            absent[task] = f"{names.official(task)} is not in the data folder and is left out."
        elif here.state == "partial" and not config.samples:
            absent[task] = f"{names.official(task)} is not whole here and is left out; --samples takes the sample."
        else:
            try:
                data = load(task, place, partial=config.samples, limit=config.limit)
            except DataError as error:
                if here.state == "whole":
                    raise
                absent[task] = f"{names.official(task)}: {error}"
                continue
            path = here.paths.get("dev_mismatched")
            rows = [row for _, row in read_rows(path)] if path else []
            second = [Example(r["text_a"], r["text_b"], r["label"]) for r in rows if r["label"] in data.labels]
            if config.limit is not None:
                data, second = _tried_out(data), second[:TRIED_OUT]
            found[task] = LoadedTask(data, {"mismatched": second} if second else {})
    return found, absent


def _tried_out(data: TaskData) -> TaskData:
    """With no more test rows than trying out needs; SQuAD's take minutes on a CPU."""
    test = sample(data.test, TRIED_OUT, seed=0, kind=data.kind)
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
    """Train the planned runs that have no record; `work` has a folder for the states of each group's runs."""
    results = PaperResults(planned, config, encoder, store, data)
    runner = Runner(
        results.jobs, encoder, next(iter(work.values())), results,
        cost=lambda job: job.settings.epochs * len(job.data.train),
        state_file=lambda key: work[results.planned[key].group] / key / "state.safetensors",
        watch=watch,
    )  # fmt: skip
    runner.run(together, score_test=True)


class PaperResults:
    """The records of an experiment's runs, in the store that all experiments over one encoder share."""

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
        for one in self._distinct(one for one in planned if one.task in data):
            job = self._job(one)
            self.jobs.append(job)
            self.planned[job.key(encoder.fingerprint)] = one

    def find(self, job: Job, key: str) -> Record | None:
        """The record of a run, if it is of these very rows and has all that is to be measured."""
        one = self.planned[key]
        record = self.store.find(one, self.config.pooling, self.config.max_length)
        loaded = self.data[one.task]
        if record is None or record.data["sha256"] != loaded.data.source["sha256"]:
            return None
        lacking = [name for name in loaded.available(one.extras) if name not in record.extras]
        return None if lacking and record.reason is None else record

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> Record:
        one, shape, source = self.planned[key], self.encoder.shape, job.data.source
        known: dict[str, Any] = {
            "task": one.task, "key": key, "method": to_dict(one.method), "pooling": job.pooling,
            "settings": one.settings(self.config.max_length), "data": {k: source.get(k) for k in SOURCE_FIELDS},
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
                extras=self._extras(one, job, outcome),
            )
        self.store.add(record)
        return record

    def _distinct(self, planned: Iterator[PlannedRun]) -> list[PlannedRun]:
        """Groups may share runs: each once, with all that is to be measured of it."""
        found: dict[str, PlannedRun] = {}
        for one in planned:
            key = identity(one.task, one.method, one.settings(self.config.max_length), self.config.pooling)
            extras = (*found[key].extras, *one.extras) if key in found else one.extras
            found[key] = dataclasses.replace(one, extras=tuple(dict.fromkeys(extras)))
        return list(found.values())

    def _job(self, one: PlannedRun) -> Job:
        settings = Settings.for_method(one.method, **one.settings(self.config.max_length))
        return Job(one.task, self.data[one.task].data, one.method, self.config.pooling, settings)

    def _extras(self, one: PlannedRun, job: Job, result: Trained) -> dict[str, Any]:
        loaded = self.data[one.task]
        found: dict[str, Any] = {}
        for name in loaded.available(one.extras):
            if name == "spans":
                found[name] = span_scores(job, result, self.encoder)
            elif name in result.also:
                found[name] = result.also[name]
            else:
                found[name] = score_on(job, result, loaded.extras[name], self.encoder)
        return found
