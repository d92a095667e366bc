"""Reading official downloads: their rows, in our columns.

GLUE's files are tab-separated without quoting. CrowdFlower's are CSV with several encodings. CoNLL's have one token per
line. The newsgroups have one folder per group. An incomplete row raises an error that names file and line. Rows are
dropped only if the task's entry says so.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.labels import as_number
from intarsia.tasks.suites import tagging
from intarsia.tasks.suites.mending import mend
from intarsia.tasks.suites.suite import SuiteTask

RawRow = dict[str, Any]


def find_official(task: SuiteTask, split: str, folder: Path, *, alone: bool) -> list[Path]:
    """The files of a split. `alone`: only this task is fetched, so `folder` may also be the task's own folder."""
    for pattern in task.layout.files.get(split, ()):
        for name in (pattern, pattern.rpartition("/")[2]) if alone else (pattern,):
            found = sorted(folder.glob(name))
            if found:
                return found if task.layout.format == "conllu" else found[:1]
    return []


def official_rows(task: SuiteTask, split: str, paths: list[Path]) -> Iterator[RawRow]:
    """Yield the rows of a split in our columns."""
    if task.layout.format in ("conll", "conllu"):
        read = tagging.read_conll if task.layout.format == "conll" else tagging.read_conllu
        for path in paths:
            for sentence in read(path):
                yield {"tokens": list(sentence.tokens), "tags": list(sentence.tags)}
        return
    read_file: Callable[..., Iterator[tuple[str, RawRow]]] = {
        "tsv": _tab_separated,
        "csv": _comma_separated,
        "folders": _folders,
    }[task.layout.format]
    for path in paths:
        for where, raw in read_file(task, split, path):
            columns = task.layout.columns or {name: name for name in raw}
            given = {ours: raw[theirs] for ours, theirs in columns.items() if theirs in raw}
            row = canonical(task, split, given, where)
            if row is not None:
                yield row


def canonical(task: SuiteTask, split: str, given: RawRow, where: str) -> RawRow | None:
    """A checked row with our label names; None if the task's entry says that it is skipped."""
    row: RawRow = {}
    for column in task.texts:
        if not str(given.get(column) or "").strip():
            if task.empty == "skipped":
                return None
            if task.empty == "refused":
                raise DataError(f"{where}: the {column} is empty. Expected a text; download the file again.")
    for column, value in given.items():
        if column == "label":
            row["label"] = _label(task, split, value, where)
        elif column in task.texts:
            text = (value or "").strip() if task.strip else value or ""
            row[column] = mend(text) if task.mend else text
            if row[column] != text:
                row[f"{column}_raw"] = text
        else:
            row[column] = as_number(value) if column == "confidence" else value
    if row.setdefault("label", None) is None and None not in task.drop and not _may_be_hidden(task, split):
        raise DataError(f"{where}: no label. Every row of {task.full_name} {split} has one; download the file again.")
    return row


def _may_be_hidden(task: SuiteTask, split: str) -> bool:
    return task.hidden_test and split.startswith("test")


def _label(task: SuiteTask, split: str, value: Any, where: str) -> str | float | None:
    """The label or score of a row; None if it is hidden."""
    if value is None:
        return None
    if task.kind == "score":
        number = as_number(value)
        if number is None:
            raise DataError(f"{where}: {value!r} is not a score. Expected a number; is a column missing in this row?")
        return None if number == -1 and _may_be_hidden(task, split) else number
    return task.label(str(value), where)


def _text(path: Path, encodings: tuple[str, ...]) -> str:
    """The file's text, in the first encoding that fits."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Change its permissions.") from error
    for encoding in encodings:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise DataError(f"{path}: not encoded as {' or '.join(encodings)}. Download the file again, or save it as UTF-8.")


def _tab_separated(task: SuiteTask, split: str, path: Path) -> Iterator[tuple[str, RawRow]]:
    header = task.layout.no_header.get(split)
    for number, line in enumerate(_text(path, task.layout.encodings).split("\n"), 1):
        line = line.removesuffix("\r")
        if header is None:
            header = tuple(name.strip() for name in line.split("\t"))
            _check_columns(task, split, path, header)
        elif line:
            fields = line.split("\t", len(header) - 1)
            if len(fields) == len(header):
                yield f"{path}, line {number}", dict(zip(header, fields, strict=True))
            elif not task.layout.skip_short:
                raise DataError(
                    f"{path}, line {number}: {len(fields)} fields, expected {len(header)} ({', '.join(header)}), "
                    f"separated by tabs. Download the file again."
                )


def _comma_separated(task: SuiteTask, split: str, path: Path) -> Iterator[tuple[str, RawRow]]:
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))  # texts may exceed the module's limit
    reader = csv.reader(io.StringIO(_text(path, task.layout.encodings), newline=""))
    header: tuple[str, ...] | None = None
    number = 1
    for fields in reader:
        if header is None:
            header = tuple(name.strip() for name in fields)
            _check_columns(task, split, path, header)
        elif fields:
            padded = fields + [""] * (len(header) - len(fields))
            yield f"{path}, line {number}", dict(zip(header, padded, strict=False))
        number = reader.line_num + 1


def _folders(task: SuiteTask, split: str, path: Path) -> Iterator[tuple[str, RawRow]]:
    """Yield the texts of a folder that has one folder per label and one file per text."""
    for group in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        for file in sorted(group.iterdir()):
            yield str(file), {"id": file.name, "text": _text(file, task.layout.encodings), "label": group.name}


def _check_columns(task: SuiteTask, split: str, path: Path, header: tuple[str, ...]) -> None:
    """Raise unless the header has the task's text and label columns."""
    needed = [column for column in (*task.texts, "label") if not (column == "label" and _may_be_hidden(task, split))]
    missing = [task.layout.columns[column] for column in needed if task.layout.columns[column] not in header]
    if missing:
        raise DataError(
            f"{path}: no column {' or '.join(repr(name) for name in missing)} in its first line; columns found: "
            f"{', '.join(header[:20])}. Is this the file of {task.full_name}, as it was downloaded?"
        )
