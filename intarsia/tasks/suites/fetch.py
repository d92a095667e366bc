"""Tasks brought into a data folder, from the hub, from their official files or from another data folder.

Rows are counted against the official sizes before a name is given: what differs is stored as a sample, under
`<suite>_partial`. A file is either wholly there or not at all, and a task that is there whole, with the hash that the
manifest has for it, is not fetched again; so an interrupted fetch goes on where it was.
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
from intarsia.tasks.suites.sources import Given, Row, Source, find_source
from intarsia.tasks.suites.squad import questions
from intarsia.tasks.suites.suite import PARTIAL, SuiteTask

LEVEL = 9  # of zstd
EVERY = 10_000  # rows between two reports
Outcome = Literal["whole", "partial", "kept", "absent"]
FetchWatch = Callable[["SuiteTask", str, int], None]  # task, split, rows read so far


@dataclass(frozen=True)
class Fetched:
    """What became of a task: fetched whole, fetched as a sample, kept because it was whole, or absent in the source."""

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
    """Converts a task ("glue/cola") or a suite ("glue") from "hub" or a folder into the data folder `to`.

    Tasks of a suite that the source does not have are reported as absent; a source that has none of them is an error.
    """
    tasks, target = chosen(name), data_folder(to)
    given = find_source(source, target)
    done = []
    for task in tasks:
        one = _kept(task, target) or _fetch(task, given.parts(task, alone=len(tasks) == 1), given, target, watch)
        done.append(one)
        if ended is not None:
            ended(one)
    if all(one.outcome == "absent" for one in done):
        raise DataError(f"{given.name} has nothing of {name}. {done[0].notice}")
    return done


def _kept(task: SuiteTask, target: Path) -> Fetched | None:
    known = read_manifest(target)
    try:
        found = status(task, target, known)
    except DataError:  # a damaged file, which is to be fetched again
        return None
    if found.state != "whole":
        return None
    for path in found.paths.values():
        if known.get(path.relative_to(target).as_posix(), {}).get("sha256") != file_hash(path):
            return None
    rows = {part.split: part.rows or 0 for part in found.parts}
    return Fetched(task, "kept", rows, target / task.suite / task.name)


@dataclass(frozen=True)
class _Converted:
    content: bytes
    rows: int
    labels: dict[str, int] | None


def _fetch(task: SuiteTask, parts: dict[str, Given], source: Source, target: Path, watch: FetchWatch | None) -> Fetched:
    if not parts:
        return Fetched(task, "absent", notice=source.advice(task))
    made = {}
    for split, given in parts.items():
        if watch is not None:
            watch(task, split, 0)
        content = given.content
        made[split] = _span(task, split, content) if task.kind == "span" else _rows(task, split, content, watch)
    different = [
        "a sample in the source" if parts[split].sample else _difference(split, one.rows, task.rows.get(split))
        for split, one in made.items()
        if parts[split].sample or one.rows != task.rows.get(split)
    ]
    folder = target / (task.suite + (PARTIAL if different else "")) / task.name
    with files.explained(folder, ()):
        files.make_folder(folder)
    entries = {}
    for split, one in made.items():
        path = folder / task.file(split)
        packed = _packed(one.content)
        files.replace(path, [packed])
        entries[path.relative_to(target).as_posix()] = {
            "bytes": len(packed),
            "labels": one.labels,
            "official_match": one.rows == task.rows.get(split) and not parts[split].sample,
            "official_rows": task.rows.get(split),
            "raw_bytes": len(one.content),
            "raw_sha256": hashlib.sha256(one.content).hexdigest(),
            "rows": one.rows,
            "sha256": hashlib.sha256(packed).hexdigest(),
            "source": source.origin(task),
        }
    add_to_manifest(target, entries)
    rows = {split: one.rows for split, one in made.items()}
    if different:
        notice = f"{'; '.join(dict.fromkeys(different))}. Stored as a sample in {folder}, not under the official name."
        return Fetched(task, "partial", rows, folder, notice)
    lacking = [split for split in task.rows if split not in made]
    notice = f"{', '.join(lacking)} not found in {source.name}; the rest is whole." if lacking else ""
    return Fetched(task, "partial" if lacking else "whole", rows, folder, notice)


def _rows(task: SuiteTask, split: str, rows: Iterable[Row], watch: FetchWatch | None) -> _Converted:
    content, count, labels = bytearray(), 0, Counter[str]()
    for count, row in enumerate(rows, 1):
        content += json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if task.kind == "label":
            labels[str(row["label"]) if row["label"] is not None else "null"] += 1
        if watch is not None and count % EVERY == 0:
            watch(task, split, count)
    if not count:
        raise DataError(f"{task.full_name}: the source has no rows for {split}. Get it again.")
    return _Converted(bytes(content), count, dict(sorted(labels.items())) if labels else None)


def _span(task: SuiteTask, split: str, content: bytes) -> _Converted:
    asked = questions(Path(f"{task.full_name} ({split})"), content)
    return _Converted(content, len(asked), None)


def _packed(content: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.Codec("zstd", compression_level=LEVEL).compress(content, asbytes=True))


def _difference(split: str, rows: int, official: int | None) -> str:
    known = "the official number is not known" if official is None else f"officially {official:,}"
    return f"{split} has {rows:,} rows, {known}"
