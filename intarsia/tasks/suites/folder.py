"""What lies in a data folder: which tasks are whole, of which there is a part or a sample, and which are missing.

A file counts as whole if it lies under the official name and has exactly the official number of rows. The number comes
from the manifest where it tells of a file of this size, and otherwise from the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from intarsia.errors import DataError
from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites.manifest import Entries, read_manifest
from intarsia.tasks.suites.registry import chosen
from intarsia.tasks.suites.squad import questions, read_bytes
from intarsia.tasks.suites.suite import PARTIAL, SuiteTask

VARIABLE = "INTARSIA_DATA"
ENDINGS = (".jsonl.zst", ".jsonl.gz", ".jsonl")
SPAN_ENDINGS = (".json.zst", ".json.gz", ".json")
OTHER_NAMES = {"dev": ("valid", "validation")}
State = Literal["whole", "partial", "missing"]


@dataclass(frozen=True)
class Part:
    """One split: what the task officially has, and what is here."""

    split: str
    official: int | None  # rows; None where they are not known, or where only the sample has such a split
    rows: int | None = None  # None: not here
    path: Path | None = None
    sample: bool = False  # lies under a name for samples
    also: tuple[Path, ...] = ()  # further files of the sample

    @property
    def whole(self) -> bool:
        return self.rows is not None and self.rows == self.official and not self.sample


@dataclass(frozen=True)
class Status:
    task: SuiteTask
    parts: tuple[Part, ...]

    @property
    def state(self) -> State:
        if all(part.whole for part in self.parts if part.split in self.task.rows):
            return "whole"
        return "partial" if any(part.path for part in self.parts) else "missing"

    @property
    def paths(self) -> dict[str, Path]:
        return {part.split: part.path for part in self.parts if part.path is not None}

    @property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """All files of each split that is here."""
        return {part.split: (part.path, *part.also) for part in self.parts if part.path is not None}

    def to_dict(self) -> dict[str, Any]:
        task = self.task
        parts = {
            part.split: {"rows": part.rows, "official": part.official, "path": str(part.path) if part.path else None}
            for part in self.parts
        }
        return {
            "suite": task.suite,
            "task": task.name,
            "title": task.title,
            "kind": task.kind,
            "metrics": list(task.metrics),
            "labels": list(task.labels),
            "state": self.state,
            "parts": parts,
            "paper": list(task.paper) if task.paper else None,
            "source": task.source,
            "hub": str(task.hub) if task.hub else None,
            "note": task.note,
        }


def data_folder(given: str | Path | None = None) -> Path:
    """The folder that was named, else that of the environment variable, else `data`."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()


def folder_to_read(given: str | Path | None = None) -> Path:
    """The same, to read from: one that was named must be there."""
    place = data_folder(given)
    if (given or os.environ.get(VARIABLE)) and not place.is_dir():
        what = "is a file" if place.exists() else "is not there"
        raise DataError(f"the data folder {place} {what}. Name a folder with --data, or with {VARIABLE}.")
    return place


def status(task: SuiteTask, folder: Path, entries: Entries | None = None) -> Status:
    """What a data folder has of a task. `entries` is its manifest, read here if it is not given."""
    known = read_manifest(folder) if entries is None else entries
    return _status(task, folder, folder / task.suite / task.name, folder / (task.suite + PARTIAL) / task.name, known)


def status_below(task: SuiteTask, folder: Path) -> Status:
    """As `status`, for a folder that may also be that of one suite."""
    found = status(task, folder)
    return found if found.paths else _status(task, folder, folder / task.name, folder / task.name, {})


def _status(task: SuiteTask, folder: Path, official: Path, partial: Path, known: Entries) -> Status:
    parts = [_part(task, split, folder, official, partial, known) for split in task.rows]
    if list(task.rows) == ["all"] and parts[0].path is None:  # a sample may come with a split of its own
        extra = [_part(task, split, folder, official, partial, known) for split in ("train", "dev", "test")]
        parts += [Part(one.split, None, one.rows, one.path, True) for one in extra if one.path]
    return Status(task, tuple(parts))


def _part(task: SuiteTask, split: str, folder: Path, official: Path, partial: Path, known: Entries) -> Part:
    wanted = task.rows.get(split)
    path = _named(task, official, (split,))
    if path:
        return Part(split, wanted, _rows(task, path, folder, known), path)
    path = _named(task, partial, (split, *OTHER_NAMES.get(split, ())))
    candidates = [path] if path else [*_subsets(task, official, split), *_subsets(task, partial, split)]
    counted = sorted(((_rows(task, one, folder, known), one) for one in candidates), reverse=True)
    if not counted:
        return Part(split, wanted)
    if task.kind == "span":  # questions that several samples have can be told
        also = tuple(one for _, one in counted[1:])
        return Part(split, wanted, sum(rows for rows, _ in counted), counted[0][1], sample=True, also=also)
    return Part(split, wanted, *counted[0], sample=True)


def _named(task: SuiteTask, folder: Path, splits: tuple[str, ...]) -> Path | None:
    endings = SPAN_ENDINGS if task.kind == "span" else ENDINGS
    for split in splits:
        stem = task.file(split).split(endings[0])[0]
        for ending in endings:
            if (folder / f"{stem}{ending}").is_file():
                return folder / f"{stem}{ending}"
    return None


def _subsets(task: SuiteTask, folder: Path, split: str) -> Iterator[Path]:
    for ending in SPAN_ENDINGS if task.kind == "span" else ENDINGS:
        yield from sorted(folder.glob(f"{split}_subset*{ending}"))


def _rows(task: SuiteTask, path: Path, folder: Path, known: Entries) -> int:
    entry = known.get(path.relative_to(folder).as_posix(), {})
    if isinstance(entry.get("rows"), int) and entry.get("bytes") == path.stat().st_size:
        return int(entry["rows"])
    return len(questions(path, read_bytes(path))) if task.kind == "span" else sum(1 for _ in read_rows(path))


@dataclass(frozen=True)
class Listing:
    folder: Path
    tasks: tuple[Status, ...]


def list_data(name: str | None = None, folder: str | Path | None = None) -> Listing:
    """What a data folder has of all tasks, of a suite, or of one task. The usual one may not be there."""
    place = folder_to_read(folder)
    entries = read_manifest(place)
    return Listing(place, tuple(status(task, place, entries) for task in chosen(name)))
