"""Fetching tasks into a data folder from the hub, from their official files or from another data folder.

Rows are compared with the official sizes before a file gets its name. A split of another size is stored as a sample,
under `<suite>_partial`. Files are written atomically, and a complete task whose hashes match the manifest is not
fetched again, so an interrupted fetch continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from intarsia import files
from intarsia.errors import DataError
from intarsia.tasks.suites.folder import data_folder, status
from intarsia.tasks.suites.manifest import add_to_manifest, file_hash, read_manifest
from intarsia.tasks.suites.registry import chosen
from intarsia.tasks.suites.sources import Given, RawRow, SuiteSource, find_source
from intarsia.tasks.suites.squad import questions
from intarsia.tasks.suites.suite import PARTIAL, SuiteTask

LEVEL = 9  # of zstd compression
EVERY = 10_000  # rows between two progress reports
Outcome = Literal["whole", "partial", "kept", "absent"]
FetchWatch = Callable[["SuiteTask", str, int], None]  # task, split, rows read so far


@dataclass(frozen=True)
class Fetched:
    """The outcome for a task: fetched whole, fetched as a sample, kept (already whole), or absent in the source."""

    task: SuiteTask
    outcome: Outcome
    rows: dict[str, int] = field(default_factory=dict)
    folder: Path | None = None
    notice: str = ""

    def to_dict(self) -> dict[str, Any]:
        where = str(self.folder) if self.folder else None
        return {
            "task": self.task.full_name,
            "outcome": self.outcome,
            "rows": self.rows,
            "folder": where,
            "notice": self.notice,
        }


def fetch(
    name: str,
    source: str | Path,
    to: str | Path | None = None,
    *,
    watch: FetchWatch | None = None,
    ended: Callable[[Fetched], None] | None = None,
) -> list[Fetched]:
    """Convert a task ("glue/cola") or a suite ("glue") from "hub" or a folder into the data folder `to`.

    A task of the suite that the source does not have is reported as absent. A source with none of the tasks is an
    error.
    """
    tasks, target = chosen(name), data_folder(to)
    given = find_source(source, target)
    done = []
    for task in tasks:
        alone = len(tasks) == 1
        fetched = _kept(task, target) or _fetch(task, given.parts(task, alone=alone), given, target, watch)
        done.append(fetched)
        if ended is not None:
            ended(fetched)
    if all(fetched.outcome == "absent" for fetched in done):
        raise DataError(f"{given.name} has no files of {name}. {done[0].notice}")
    return done


def _kept(task: SuiteTask, target: Path) -> Fetched | None:
    """The outcome "kept" if the task is complete in the data folder and its hashes match, else None."""
    entries = read_manifest(target)
    try:
        found = status(task, target, entries)
    except DataError:  # a damaged file must be fetched again
        return None
    if found.state != "whole":
        return None
    for path in found.paths.values():
        if entries.get(path.relative_to(target).as_posix(), {}).get("sha256") != file_hash(path):
            return None
    rows = {part.split: part.rows or 0 for part in found.parts}
    return Fetched(task, "kept", rows, target / task.suite / task.name)


@dataclass(frozen=True)
class _Converted:
    """One split in the format of a data folder, not yet compressed."""

    content: bytes
    rows: int
    labels: dict[str, int] | None


def _fetch(
    task: SuiteTask, parts: dict[str, Given], source: SuiteSource, target: Path, watch: FetchWatch | None
) -> Fetched:
    """Convert and store the splits of a task."""
    if not parts:
        return Fetched(task, "absent", notice=source.advice(task))
    converted = {}
    for split, given in parts.items():
        if watch is not None:
            watch(task, split, 0)
        content = given.content
        converted[split] = _span(task, split, content) if task.kind == "span" else _rows(task, split, content, watch)
    different = [
        "a sample in the source" if parts[split].sample else _difference(split, part.rows, task.rows.get(split))
        for split, part in converted.items()
        if parts[split].sample or part.rows != task.rows.get(split)
    ]
    folder = target / (task.suite + (PARTIAL if different else "")) / task.name
    with files.explained(folder, ()):
        files.make_folder(folder)
    entries = {}
    for split, part in converted.items():
        path = folder / task.file(split)
        packed = _compressed(part.content)
        files.replace(path, [packed])
        entries[path.relative_to(target).as_posix()] = {
            "bytes": len(packed),
            "labels": part.labels,
            "official_match": part.rows == task.rows.get(split) and not parts[split].sample,
            "official_rows": task.rows.get(split),
            "raw_bytes": len(part.content),
            "raw_sha256": hashlib.sha256(part.content).hexdigest(),
            "rows": part.rows,
            "sha256": hashlib.sha256(packed).hexdigest(),
            "source": source.origin(task),
        }
    add_to_manifest(target, entries)
    rows = {split: part.rows for split, part in converted.items()}
    if different:
        notice = f"{'; '.join(dict.fromkeys(different))}. Stored as a sample in {folder}, not under the official name."
        return Fetched(task, "partial", rows, folder, notice)
    missing = [split for split in task.rows if split not in converted]
    notice = f"{', '.join(missing)} not found in {source.name}; the other splits are complete." if missing else ""
    return Fetched(task, "partial" if missing else "whole", rows, folder, notice)


def _rows(task: SuiteTask, split: str, rows: Iterable[RawRow], watch: FetchWatch | None) -> _Converted:
    """The rows as JSON lines, with the counts of their labels."""
    content, count, labels = bytearray(), 0, Counter[str]()
    for count, row in enumerate(rows, 1):
        content += json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if task.kind == "label":
            labels[str(row["label"]) if row["label"] is not None else "null"] += 1
        if watch is not None and count % EVERY == 0:
            watch(task, split, count)
    if not count:
        raise DataError(f"{task.full_name}: the source has no rows for {split}. Download it again.")
    return _Converted(bytes(content), count, dict(sorted(labels.items())) if labels else None)


def _span(task: SuiteTask, split: str, content: bytes) -> _Converted:
    """SQuAD's JSON, checked."""
    found = questions(Path(f"{task.full_name} ({split})"), content)
    return _Converted(content, len(found), None)


def _compressed(content: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.Codec("zstd", compression_level=LEVEL).compress(content, asbytes=True))


def _difference(split: str, rows: int, official: int | None) -> str:
    """A phrase for the notice that compares the number of rows with the official one."""
    expected = "the official number is unknown" if official is None else f"officially {official:,}"
    return f"{split} has {rows:,} rows, {expected}"
