"""Rows of a data file, each with the number under which a user finds it again.

CSV follows the usual quoting rules. TSV has none: a line is a row and a quote is a character like any other, because
tab-separated data sets (GLUE among them) are full of stray quotes. The exception is a TSV file whose header has every
column name in quotes: its writer quotes, so it is read by the rules of CSV.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, cast

from intarsia.errors import DataError

FORMATS = ("csv", "tsv", "jsonl", "ndjson", "json", "parquet", "txt")
COMPRESSIONS = ("", ".gz", ".zst")
KNOWN_ENDINGS = "." + ", .".join(FORMATS) + " (each also with .gz or .zst)"

Row = dict[str, Any]
NumberedRow = tuple[int, Row]


def read_rows(path: str | Path) -> Iterator[NumberedRow]:
    """Rows of a file with their numbers: the line where the row begins, or the record (from 1) in a parquet file.

    A wrong path is reported at once, what is wrong inside the file when the reading gets there.
    """
    path = Path(path).expanduser()
    name = data_format(path)
    check_exists(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file. Give one of the files in it.")
    if name is None:
        raise DataError(
            f"{path}: cannot tell the format from the ending {''.join(path.suffixes) or '(none)'}. "
            f"Known endings: {KNOWN_ENDINGS}. Rename or convert the file."
        )
    if name == "parquet":
        rows = _parquet_rows(path)
    elif name == "json":
        rows = _squad_rows(path)
    elif name in ("jsonl", "ndjson"):
        rows = _json_rows(path)
    elif name == "txt":
        rows = _text_rows(path)
    else:
        rows = _separated_rows(path, tabs=name == "tsv")
    return _at_least_one(path, rows)


def data_format(path: Path) -> str | None:
    """The format that the file's ending stands for, or None where it is not a known one."""
    name = path.name.lower()
    for compression in COMPRESSIONS:
        for known in FORMATS:
            if name.endswith(f".{known}{compression}"):
                return known
    return None


def stem(path: Path) -> str:
    """The file's name without format and compression: `train` for `train.jsonl.zst`, and for `train-v1.1.json`."""
    name = path.name.lower().split(f".{data_format(path)}")[0]
    return re.sub(r"-v\d(\.\d)?$", "", name) if data_format(path) == "json" else name


def check_exists(path: Path) -> None:
    """Complains about a missing path, naming what lies near it."""
    if path.exists():
        return
    if not path.parent.is_dir():
        raise DataError(f"{path} does not exist, and neither does the folder {path.parent}. Check the path.")
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = [name for name in names if name.startswith(path.name)] or get_close_matches(path.name, names)
    hint = f"Did you mean {' or '.join(close[:3])}?" if close else "Check the path."
    raise DataError(f"{path} does not exist. {hint}")


def _at_least_one(path: Path, rows: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        yield row
    if not count:
        raise DataError(f"{path} is empty: it holds no rows. Expected at least one row of data.")


def _open(path: Path) -> BinaryIO:
    ending = path.suffix.lower()
    if ending == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if ending == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _damaged(path: Path, error: Exception, lines: int = 0) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(f"{path} may not be read: permission denied. Change its permissions.")
    place = f" after line {lines}" if lines else ""
    return DataError(f"{path} is damaged or cut short{place} ({error}). Get or compress the file again.")


def _lines(path: Path) -> Iterator[str]:
    """Decoded lines with their line ends; split at newlines only, so that U+2028 in a text does not break a row."""
    number = 0
    try:
        with closing(_open(path)) as stream:
            for number, raw in enumerate(stream, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path}, line {number}: not valid UTF-8 (byte 0x{raw[error.start]:02x} at position "
                        f"{error.start + 1} of the line). Save the file as UTF-8."
                    ) from error
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error, number) from error


def _squad_rows(path: Path) -> Iterator[NumberedRow]:
    """The questions of a file written as SQuAD is."""
    from intarsia.tasks.suites.squad import read_squad

    for number, asked in enumerate(read_squad(path), 1):
        answers = [{"answer_start": start, "text": text} for start, text in asked.answers]
        yield number, {
            "id": asked.id, "title": asked.title, "question": asked.question, "context": asked.context,
            "answers": answers, "is_impossible": asked.impossible,
        }  # fmt: skip


def _json_rows(path: Path) -> Iterator[NumberedRow]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: malformed JSON ({error.msg}, at character {error.colno}). "
                f"Expected one JSON object on each line."
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: expected a JSON object such as "
                f'{{"text": "...", "label": "..."}}, found a {type(row).__name__}.'
            )
        yield number, row


def _text_rows(path: Path) -> Iterator[NumberedRow]:
    """Every line, blank ones too: they may separate texts."""
    for number, line in enumerate(_lines(path), 1):
        yield number, {"text": line.strip()}


def _separated_rows(path: Path, tabs: bool) -> Iterator[NumberedRow]:
    records = _tab_records(path) if tabs else _quoted_records(path, _lines(path), ",")
    header: list[str] | None = None
    for number, fields in records:
        if header is None:
            header = _header(path, fields, tabs)
        elif len(fields) != len(header):
            wrong = "few" if len(fields) < len(header) else "many"
            cause = "A line break or tab inside a text" if tabs else "An unquoted comma or line break inside a text"
            raise DataError(
                f"{path}, line {number}: too {wrong} fields: {len(fields)}, but the header names {len(header)} "
                f"({', '.join(header)}). {cause} can be the cause; mend or quote the row."
            )
        else:
            yield number, dict(zip(header, fields, strict=True))


def _header(path: Path, fields: list[str], tabs: bool) -> list[str]:
    header = [field.strip() for field in fields]
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise DataError(f"{path}: the header names column {twice[0]!r} more than once. Rename one of them.")
    other = [mark for mark in (";", "\t", ",") if mark in header[0]]
    if len(header) == 1 and other:
        wanted = "tabs" if tabs else "commas"
        raise DataError(
            f"{path}: the columns are separated by {other[0]!r}, expected {wanted}. Save the file with those."
        )
    return header


def _tab_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines := _lines(path), 1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields):
            yield number, [field[1:-1] for field in fields]
            yield from _quoted_records(path, lines, "\t", first_line=2)
        elif fields != [""]:
            yield number, fields


def _quoted_records(
    path: Path, lines: Iterator[str], delimiter: str, first_line: int = 1
) -> Iterator[tuple[int, list[str]]]:
    # Texts may be longer than the module's limit of 128 KiB a field; the limit is only ever raised.
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
            f'line break must stand in quotes, and quotes inside it must be doubled ("").'
        ) from error


def _parquet_rows(path: Path) -> Iterator[NumberedRow]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with closing(_open(path)) as stream:
            # A compressed stream cannot seek, which the format needs.
            source = stream if path.suffix.lower() == ".parquet" else pa.BufferReader(stream.read())
            number = 0
            for batch in parquet.ParquetFile(source).iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise _damaged(path, error) from error
