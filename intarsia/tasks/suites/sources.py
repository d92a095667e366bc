"""Sources to fetch a task from: the hub, a folder with the official files, or another data folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from intarsia.errors import DataError
from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites import squad, tagging
from intarsia.tasks.suites.folder import status_below
from intarsia.tasks.suites.layouts import canonical, find_official, official_rows
from intarsia.tasks.suites.suite import SuiteTask

RawRow = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """One split of a source."""

    content: Any  # an iterator of rows in our columns; for SQuAD the bytes of the official JSON
    sample: bool = False  # the source marks it as a sample, so a matching number of rows does not make it whole


class SuiteSource(Protocol):
    """A source of tasks."""

    name: str

    def parts(self, task: SuiteTask, *, alone: bool) -> dict[str, Given]:
        """The splits of a task; empty if the source does not have it. `alone`: only this task is fetched."""

    def origin(self, task: SuiteTask) -> dict[str, Any]:
        """Provenance, for the manifest."""

    def advice(self, task: SuiteTask) -> str:
        """What to do if the source does not have the task."""


def find_source(given: str | Path, target: Path) -> SuiteSource:
    """The source for "hub" or a folder other than the data folder `target`."""
    if given == "hub":
        return HubSource()
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Expected hub, a folder with the official files, or a data folder.")
    if target.is_dir() and folder.resolve() == target.resolve():
        raise DataError(f"{folder} is the data folder itself. Name another folder with --from or --to.")
    return FolderSource(folder)


class HubSource:
    """The Hugging Face hub."""

    name = "the hub"

    def parts(self, task: SuiteTask, *, alone: bool) -> dict[str, Given]:
        from intarsia.tasks.hub import download

        if task.hub is None:
            return {}
        advice = f"Or get the official files ({task.source}) and fetch with --from FOLDER."
        splits = download(task.hub.name, task.hub.config, revision=task.hub.revision, also="", advice=advice)
        found = {ours: splits[theirs] for ours, theirs in task.hub.splits.items() if theirs in splits}
        if not found:
            raise DataError(f"the hub's {task.hub} has only unknown splits: {', '.join(splits)}. {advice}")
        if task.kind == "span":
            version = task.name.removeprefix("v")
            return {split: Given(squad.from_rows(_rows(data), version)) for split, data in found.items()}
        return {split: Given(_hub_rows(task, split, data)) for split, data in found.items()}

    def origin(self, task: SuiteTask) -> dict[str, Any]:
        return {"hub": str(task.hub)}

    def advice(self, task: SuiteTask) -> str:
        return (
            f"{task.full_name} is not on the hub in its official form. Download it from {task.source} and fetch with "
            f"--from FOLDER."
        )


def _rows(data: Any) -> Iterator[RawRow]:
    """Yield the rows of a hub split, with class names in place of class numbers."""
    from intarsia.tasks.hub import class_names, named

    names = {column: class_names(feature) for column, feature in data.features.items()}
    for batch in data.iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            row = dict(zip(batch, values, strict=True))
            yield {column: named(value, own) if (own := names[column]) else value for column, value in row.items()}


def _hub_rows(task: SuiteTask, split: str, data: Any) -> Iterator[RawRow]:
    """Yield the checked rows of a hub split in our columns."""
    assert task.hub is not None
    missing = [theirs for theirs in task.hub.columns.values() if theirs not in data.features]
    if missing:
        raise DataError(
            f"the hub's {task.hub} has the columns {', '.join(data.features)}, but not {', '.join(missing)}."
        )
    for number, raw in enumerate(_rows(data), 1):
        row = {ours: raw[theirs] for ours, theirs in task.hub.columns.items()}
        yield _checked(task, split, row, f"{task.hub} ({split}), row {number}")


def _checked(task: SuiteTask, split: str, row: RawRow, where: str) -> RawRow:
    if task.kind != "tags":
        checked = canonical(task, split, row, where)
        assert checked is not None, "only official files have rows that are skipped"
        return checked
    tagging.check(tagging.TaggedSentence(tuple(row["tokens"]), tuple(row["tags"])), where, task.labels)
    return row


class FolderSource:
    """A folder with official files, or another data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)

    def parts(self, task: SuiteTask, *, alone: bool) -> dict[str, Given]:
        official = {split: find_official(task, split, self.folder, alone=alone) for split in task.rows}
        official = {split: paths for split, paths in official.items() if paths}
        if official and task.kind == "span":
            return {split: Given(squad.read_bytes(paths[0])) for split, paths in official.items()}
        if official:
            return {split: Given(official_rows(task, split, paths)) for split, paths in official.items()}
        ours = {}
        for part in status_below(task, self.folder).parts:
            if part.path is not None:
                span = task.kind == "span"
                content = squad.read_bytes(part.path) if span else _our_rows(task, part.path, part.sample)
                ours[part.split] = Given(content, part.sample)
        return ours

    def origin(self, task: SuiteTask) -> dict[str, Any]:
        return {"folder": str(self.folder)}

    def advice(self, task: SuiteTask) -> str:
        names = ", ".join(patterns[0] for patterns in task.layout.files.values())
        return f"For {task.full_name}, expected {names} (from {task.source}) or a data folder's {task.full_name}."


def _our_rows(task: SuiteTask, path: Path, sample: bool) -> Iterator[RawRow]:
    """Yield the checked rows of a data folder's file. The labels of a sample are not checked: it may have its own."""
    needed = ("tokens", "tags") if task.kind == "tags" else (*task.texts, "label")
    for number, row in read_rows(path):
        missing = [column for column in needed if column not in row]
        if missing:
            raise DataError(
                f"{path}, line {number}: no {' and '.join(missing)}. Expected the columns {', '.join(needed)}."
            )
        if task.kind == "tags":
            sentence = tagging.TaggedSentence(tuple(row["tokens"]), tuple(row["tags"]))
            tagging.check(sentence, f"{path}, line {number}", task.labels)
        elif task.kind == "label" and row["label"] is not None and not sample:
            task.label(str(row["label"]), f"{path}, line {number}")
        yield row
