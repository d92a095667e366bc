"""Training what is missing of an experiment, all of it through one queue."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import provenance
from intarsia.bank.sweep import Moment, Point, Watch
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
from intarsia.train.loop import train_together
from intarsia.train.run import is_exclusive
from intarsia.train.trunk import TrunkCache

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


class ExperimentRunner:
    """An experiment's runs over one encoder."""

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        config: ExperimentConfig,
        encoder: Encoder,
        store: RunStore,
        data: dict[str, LoadedTask],
    ) -> None:
        self.config, self.encoder, self.store, self.data = config, encoder, store, data
        self.planned = self._distinct(one for one in planned if one.task in data)

    def run(self, work: Mapping[str, Path], together: int | None = None, *, watch: Watch | None = None) -> None:
        """Train what is missing; `work` has a folder for the states of each group's runs."""
        self.watch, self.work = watch or (lambda _: None), work
        self.watch(Moment(planned=Counter(one.task for one in self.planned)))
        left = [one for one in self.planned if self._known(one) is None]
        self._tell_stored()
        self.waiting = {self._job(one).key(self.encoder.fingerprint): one for one in left}
        train_together(
            _Jobs(self._jobs(sorted(left, key=self._place)), len(left)),
            self.encoder,
            together=together,
            score_test=True,
            done=self._done,
            state_file=self._state_file,
            watch=lambda progress: self.watch(Moment(progress=progress)),
            trunk=TrunkCache(self.encoder, next(iter(work.values()))),
        )

    def _distinct(self, planned: Iterator[PlannedRun]) -> list[PlannedRun]:
        """Groups may share runs: each once, with all that is to be measured of it."""
        found: dict[str, PlannedRun] = {}
        for one in planned:
            key = identity(one.task, one.method, one.settings(self.config.max_length), self.config.pooling)
            extras = (*found[key].extras, *one.extras) if key in found else one.extras
            found[key] = dataclasses.replace(one, extras=tuple(dict.fromkeys(extras)))
        return list(found.values())

    def _known(self, one: PlannedRun) -> Record | None:
        """Its record, if it is of these very rows and has all that is to be measured."""
        record = self.store.find(one, self.config.pooling, self.config.max_length)
        loaded = self.data[one.task]
        if record is None or record.data["sha256"] != loaded.data.source["sha256"]:
            return None
        lacking = [name for name in loaded.available(one.extras) if name not in record.extras]
        return None if lacking and record.reason is None else record

    def _tell_stored(self) -> None:
        for one in self.planned:
            if (record := self._known(one)) is not None:
                self.watch(Moment(point=_point(record), stored=True))

    def _jobs(self, left: Sequence[PlannedRun]) -> Iterator[Job]:
        """As slots become free; what another process has finished meanwhile is not trained again."""
        for one in left:
            if (record := self._known(one)) is not None:
                self.watch(Moment(point=_point(record), stored=True))
                continue
            job = self._job(one)
            try:
                job.method.check(self.encoder.shape)
            except IntarsiaError as error:
                self._done(job, error)
                continue
            yield job

    def _job(self, one: PlannedRun) -> Job:
        settings = Settings.for_method(one.method, **one.settings(self.config.max_length))
        return Job(one.task, self.data[one.task].data, one.method, self.config.pooling, settings)

    def _place(self, one: PlannedRun) -> tuple[bool, str, float]:
        """In the queue: the longest first, so that no seat is left waiting for it; those that run alone last, method by
        method, whose recorded passes serve several tasks."""
        exclusive = is_exclusive(one.method)
        cost = one.settings(self.config.max_length)["epochs"] * len(self.data[one.task].data.train)
        return exclusive, str(one.method) if exclusive else "", -cost

    def _state_file(self, job: Job) -> Path:
        folder = self._folder(job.key(self.encoder.fingerprint))
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "state.safetensors"

    def _folder(self, key: str) -> Path:
        return self.work[self.waiting[key].group] / key

    def _done(self, job: Job, result: Trained | IntarsiaError) -> None:
        key = job.key(self.encoder.fingerprint)
        one, shape, source = self.waiting[key], self.encoder.shape, job.data.source
        known: dict[str, Any] = {
            "task": one.task, "key": key, "method": to_dict(one.method), "pooling": job.pooling,
            "settings": one.settings(self.config.max_length), "data": {k: source.get(k) for k in SOURCE_FIELDS},
            "machine": {**provenance.machine(str(self.encoder.device)), "precision": str(self.encoder.dtype)[6:]},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        if isinstance(result, IntarsiaError):
            record = Record(**known, parameters={"base": shape.parameters}, reason=str(result))
        else:
            head = result.learned.head.count(shape, job.method.row_width(shape))
            record = Record(
                **known,
                parameters={"method": job.method.count(shape), "head": head, "base": shape.parameters},
                dev=result.state.best,
                test=result.test,
                best_epoch=result.state.best_epoch,
                steps=result.state.step,
                seconds=round(result.state.seconds, 1),
                extras=self._extras(one, job, result),
            )
        self.store.add(record)
        shutil.rmtree(self._folder(key), ignore_errors=True)
        self.watch(Moment(point=_point(record)))

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


class _Jobs:
    """As slots become free, and how many there are at most."""

    def __init__(self, jobs: Iterator[Job], most: int) -> None:
        self.jobs, self.most = jobs, most

    def __iter__(self) -> Iterator[Job]:
        return self.jobs

    def __length_hint__(self) -> int:
        return self.most


def _point(record: Record) -> Point:
    """As the live table takes it."""
    return Point(
        record.task, record.key, record.method, record.settings, record.dev, record.reason, record.best_epoch,
        record.steps, record.seconds, record.test,
    )  # fmt: skip
