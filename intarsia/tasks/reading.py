"""Reading the rows of a data file. Each row has a number by which a user can find it.

CSV follows the usual quoting rules. TSV has no quoting: a line is a row, and a quote is an ordinary character, because
tab-separated data sets (GLUE among them) have many stray quotes. The exception is a TSV file whose header has every
column name in quotes: it is read with the quoting rules of CSV.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.formatting import listed
from intarsia.tasks.content import READ_ERRORS, ROW_BYTES, Budget, damaged, open_content, raw_lines
from intarsia.tasks.parquet import parquet_rows

FORMATS = ("csv", "tsv", "jsonl", "ndjson", "json", "parquet", "txt")
COMPRESSIONS = ("", ".gz", ".zst")
KNOWN_ENDINGS = "." + ", .".join(FORMATS) + " (each also with .gz or .zst)"

RawRow = dict[str, Any]
NumberedRow = tuple[int, RawRow]


def read_rows(path: str | Path) -> Iterator[NumberedRow]:
    """Yield the rows of a file with their numbers: the row's first line, or in a parquet file its index from 1.

    A bad path raises at once. Bad content raises when the iterator reaches it.
    """
    path = local_path(path)
    name = data_format(path)
    check_exists(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give one of the files in it.")
    if name is None:
        raise DataError(
            f"{path}: unknown file ending {''.join(path.suffixes) or '(none)'}. "
            f"Known endings: {KNOWN_ENDINGS}. Rename or convert the file."
        )
    budget = Budget(path)
    if name == "parquet":
        rows = parquet_rows(path, budget)
    elif name == "json":
        rows = _squad_rows(path)
    elif name in ("jsonl", "ndjson"):
        rows = _json_rows(path, budget)
    elif name == "txt":
        rows = _text_rows(path, budget)
    else:
        rows = _separated_rows(path, budget, tabs=name == "tsv")
    return _require_rows(path, rows, budget)


def data_format(path: Path) -> str | None:
    """The format of a file by its ending; None if the ending is unknown."""
    name = path.name.lower()
    for compression in COMPRESSIONS:
        for ending in FORMATS:
            if name.endswith(f".{ending}{compression}"):
                return ending
    return None


def stem(path: Path) -> str:
    """The file name without format, compression and version: `train` for `train.jsonl.zst` and `train-v1.1.json`."""
    name = path.name.lower().split(f".{data_format(path)}")[0]
    return re.sub(r"-v\d(\.\d)?$", "", name) if data_format(path) == "json" else name


def local_path(source: str | Path) -> Path:
    """Return a path with `~` expanded; raise if no file can have this name."""
    try:
        path = Path(source).expanduser()
        path.exists()
        return path
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{str(source)[:200]!r} is not a usable path: {reason}. Check the path.") from error


def check_exists(path: Path) -> None:
    """Raise if a path does not exist; the message suggests similar names."""
    if path.exists():
        return
    if not path.parent.is_dir():
        raise DataError(f"{path} does not exist, and neither does the folder {path.parent}. Check the path.")
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = [name for name in names if name.startswith(path.name)] or get_close_matches(path.name, names)
    hint = f"Did you mean {' or '.join(close[:3])}?" if close else "Check the path."
    raise DataError(f"{path} does not exist. {hint}")


def _require_rows(path: Path, rows: Iterator[NumberedRow], budget: Budget) -> Iterator[NumberedRow]:
    """Yield the rows; raise at the end if there was none."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        budget.spend(ROW_BYTES)
        yield row
    if not count:
        raise DataError(f"{path} is empty. Expected at least one row of data.")


def _lines(path: Path, budget: Budget) -> Iterator[str]:
    """Yield decoded lines with their line ends. Only newlines end a line: U+2028 in a text does not break a row."""
    number = 0
    try:
        with closing(open_content(path, budget)) as stream:
            for number, raw in enumerate(raw_lines(path, stream), 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path}, line {number}: not valid UTF-8 (byte 0x{raw[error.start]:02x} at position "
                        f"{error.start + 1} of the line). Save the file as UTF-8."
                    ) from error
                yield line
    except READ_ERRORS as error:
        raise damaged(path, error, number) from error


def _squad_rows(path: Path) -> Iterator[NumberedRow]:
    """Yield the questions of a file in SQuAD's JSON format."""
    from intarsia.tasks.suites.squad import read_squad

    for number, question in enumerate(read_squad(path), 1):
        answers = [{"answer_start": start, "text": text} for start, text in question.answers]
        yield number, {
            "id": question.id, "title": question.title, "question": question.question, "context": question.context,
            "answers": answers, "is_impossible": question.impossible,
        }  # fmt: skip


def _json_rows(path: Path, budget: Budget) -> Iterator[NumberedRow]:
    for number, line in enumerate(_lines(path, budget), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers of too many digits, and deep nesting
            place = f"{error.msg}, at character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(
                f"{path}, line {number}: malformed JSON ({place}). Expected one JSON object on each line."
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: expected a JSON object such as "
                f'{{"text": "...", "label": "..."}}, found a {type(row).__name__}.'
            )
        yield number, row


def _text_rows(path: Path, budget: Budget) -> Iterator[NumberedRow]:
    """Yield every line. Blank lines may separate texts, so they are kept."""
    for number, line in enumerate(_lines(path, budget), 1):
        yield number, {"text": line.strip()}


def _separated_rows(path: Path, budget: Budget, tabs: bool) -> Iterator[NumberedRow]:
    """Yield the rows of a TSV (`tabs`) or CSV file."""
    lines = _lines(path, budget)
    records = _tab_records(path, lines) if tabs else _quoted_records(path, lines, ",")
    header: list[str] | None = None
    for number, fields in records:
        if header is None:
            header = _header(path, fields, tabs)
        elif len(fields) != len(header):
            wrong = "few" if len(fields) < len(header) else "many"
            cause = "A line break or tab inside a text" if tabs else "An unquoted comma or line break inside a text"
            raise DataError(
                f"{path}, line {number}: too {wrong} fields: {len(fields)}, but the header names {len(header)} "
                f"({listed(header)}). {cause} may be the cause; correct or quote the row."
            )
        else:
            yield number, dict(zip(header, fields, strict=True))


def _header(path: Path, fields: list[str], tabs: bool) -> list[str]:
    """The checked column names."""
    header = [field.strip() for field in fields]
    twice = sorted(name for name, count in Counter(header).items() if name and count > 1)
    if twice:
        raise DataError(f"{path}: the header has the column {twice[0]!r} more than once. Rename one of them.")
    other = [mark for mark in (";", "\t", ",") if mark in header[0]]
    if len(header) == 1 and other:
        expected = "tabs" if tabs else "commas"
        raise DataError(
            f"{path}: the columns are separated by {other[0]!r}, expected {expected}. Save the file with {expected}."
        )
    return header


def _tab_records(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and fields of each record of a TSV file."""
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields):
            yield number, [field[1:-1] for field in fields]
            yield from _quoted_records(path, lines, "\t", first_line=2)
        elif fields != [""]:
            yield number, fields


def _quoted_records(
    path: Path, lines: Iterator[str], delimiter: str, first_line: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and fields of each record, with the quoting rules of CSV."""
    # Texts may exceed the module's limit of 128 KiB per field. The limit is global, so it is only raised.
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = first_line
    try:
        for fields in reader:
            if fields:
                yield number, fields
            number = reader.line_num + first_line
    except csv.Error as error:
        raise DataError(
            f"{path}, row beginning at line {number}: broken quoting ({error}). A text with a comma, a quote or a "
            f'line break must be quoted, and quotes inside it must be doubled ("").'
        ) from error
