"""The content of a data folder: which tasks are whole, partial (some splits, or a sample) or missing.

A file is whole if it has the official name and exactly the official number of rows. The number comes from the manifest
if its entry has the file's size, and otherwise from the file itself.
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
FolderState = Literal["whole", "partial", "missing"]


@dataclass(frozen=True)
class SplitStatus:
    """One split: its official size, and what the data folder has of it."""

    split: str
    official: int | None  # rows; None if unknown, or if only the sample has this split
    rows: int | None = None  # None: not in the folder
    path: Path | None = None
    sample: bool = False  # has a sample's name
    also: tuple[Path, ...] = ()  # further files of the sample

    @property
    def whole(self) -> bool:
        return self.rows is not None and self.rows == self.official and not self.sample


@dataclass(frozen=True)
class Status:
    """What a data folder has of one task."""

    task: SuiteTask
    parts: tuple[SplitStatus, ...]

    @property
    def state(self) -> FolderState:
        if all(part.whole for part in self.parts if part.split in self.task.rows):
            return "whole"
        return "partial" if any(part.path for part in self.parts) else "missing"

    @property
    def paths(self) -> dict[str, Path]:
        return {part.split: part.path for part in self.parts if part.path is not None}

    @property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """All files of each split that the folder has."""
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
    """The given folder, else that of INTARSIA_DATA, else `data`."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()


def folder_to_read(given: str | Path | None = None) -> Path:
    """The data folder to read from. A folder that is named explicitly must exist."""
    folder = data_folder(given)
    if (given or os.environ.get(VARIABLE)) and not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"the data folder {folder} {problem}. Name a folder with --data, or with {VARIABLE}.")
    return folder


def status(task: SuiteTask, folder: Path, entries: Entries | None = None) -> Status:
    """What a data folder has of a task. `entries` is its manifest; it is read if not given."""
    entries = read_manifest(folder) if entries is None else entries
    return _status(task, folder, folder / task.suite / task.name, folder / (task.suite + PARTIAL) / task.name, entries)


def status_below(task: SuiteTask, folder: Path) -> Status:
    """The same for a folder that may also be the folder of one suite."""
    found = status(task, folder)
    return found if found.paths else _status(task, folder, folder / task.name, folder / task.name, {})


def _status(task: SuiteTask, folder: Path, official: Path, partial: Path, entries: Entries) -> Status:
    """What the folders `official` and `partial` below the data folder have of a task."""
    parts = [_part(task, split, folder, official, partial, entries) for split in task.rows]
    if list(task.rows) == ["all"] and parts[0].path is None:  # a sample may be split although the task is not
        extra = [_part(task, split, folder, official, partial, entries) for split in ("train", "dev", "test")]
        parts += [SplitStatus(part.split, None, part.rows, part.path, True) for part in extra if part.path]
    return Status(task, tuple(parts))


def _part(task: SuiteTask, split: str, folder: Path, official: Path, partial: Path, entries: Entries) -> SplitStatus:
    """One split of a task. The official file wins over samples, and among samples the largest."""
    expected = task.rows.get(split)
    path = _named(task, official, (split,))
    if path:
        return SplitStatus(split, expected, _rows(task, path, folder, entries), path)
    path = _named(task, partial, (split, *OTHER_NAMES.get(split, ())))
    candidates = [path] if path else [*_subsets(task, official, split), *_subsets(task, partial, split)]
    counted = sorted(((_rows(task, file, folder, entries), file) for file in candidates), reverse=True)
    if not counted:
        return SplitStatus(split, expected)
    if task.kind == "span":  # samples can be joined: loading removes duplicate questions
        also = tuple(file for _, file in counted[1:])
        return SplitStatus(split, expected, sum(rows for rows, _ in counted), counted[0][1], sample=True, also=also)
    return SplitStatus(split, expected, *counted[0], sample=True)


def _named(task: SuiteTask, folder: Path, splits: tuple[str, ...]) -> Path | None:
    """The first existing file of a split, under any of the names `splits`."""
    endings = SPAN_ENDINGS if task.kind == "span" else ENDINGS
    for split in splits:
        stem = task.file(split).split(endings[0])[0]
        for ending in endings:
            if (folder / f"{stem}{ending}").is_file():
                return folder / f"{stem}{ending}"
    return None


def _subsets(task: SuiteTask, folder: Path, split: str) -> Iterator[Path]:
    """Yield the files of a split that are named as subsets."""
    for ending in SPAN_ENDINGS if task.kind == "span" else ENDINGS:
        yield from sorted(folder.glob(f"{split}_subset*{ending}"))


def _rows(task: SuiteTask, path: Path, folder: Path, entries: Entries) -> int:
    """The number of rows of a file, from the manifest if its entry has the file's size."""
    entry = entries.get(path.relative_to(folder).as_posix(), {})
    if isinstance(entry.get("rows"), int) and entry.get("bytes") == path.stat().st_size:
        return int(entry["rows"])
    return len(questions(path, read_bytes(path))) if task.kind == "span" else sum(1 for _ in read_rows(path))


@dataclass(frozen=True)
class Listing:
    """The status of tasks in a data folder."""

    folder: Path
    tasks: tuple[Status, ...]


def list_data(name: str | None = None, folder: str | Path | None = None) -> Listing:
    """What a data folder has of all tasks, of a suite, or of one task. The default folder need not exist."""
    data = folder_to_read(folder)
    entries = read_manifest(data)
    return Listing(data, tuple(status(task, data, entries) for task in chosen(name)))
