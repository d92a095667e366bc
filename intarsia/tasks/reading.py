"""Reading the rows of a data file. Each row has a number by which a user can find it.

CSV follows the usual quoting rules. TSV has no quoting: a line is a row, and a quote is an ordinary character, because
tab-separated data sets (GLUE among them) have many stray quotes. The exception is a TSV file whose header has every
column name in quotes: it is read with the quoting rules of CSV.
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

RawRow = dict[str, Any]
NumberedRow = tuple[int, RawRow]


def read_rows(path: str | Path) -> Iterator[NumberedRow]:
    """Yield the rows of a file with their numbers: the row's first line, or in a parquet file its index from 1.

    A bad path raises at once. Bad content raises when the iterator reaches it.
    """
    path = Path(path).expanduser()
    name = data_format(path)
    check_exists(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give one of the files in it.")
    if name is None:
        raise DataError(
            f"{path}: unknown file ending {''.join(path.suffixes) or '(none)'}. "
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
    return _require_rows(path, rows)


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


def _require_rows(path: Path, rows: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
    """Yield the rows; raise at the end if there was none."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        yield row
    if not count:
        raise DataError(f"{path} is empty. Expected at least one row of data.")


def _open(path: Path) -> BinaryIO:
    """The file's bytes, decompressed."""
    ending = path.suffix.lower()
    if ending == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if ending == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _damaged(path: Path, error: Exception, lines: int = 0) -> DataError:
    """The error for a file that cannot be read, after `lines` lines."""
    if isinstance(error, PermissionError):
        return DataError(f"{path} cannot be read: permission denied. Change its permissions.")
    place = f" after line {lines}" if lines else ""
    return DataError(f"{path} is damaged or truncated{place} ({error}). Download or compress the file again.")


def _lines(path: Path) -> Iterator[str]:
    """Yield decoded lines with their line ends. Only newlines end a line: U+2028 in a text does not break a row."""
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
    """Yield the questions of a file in SQuAD's JSON format."""
    from intarsia.tasks.suites.squad import read_squad

    for number, question in enumerate(read_squad(path), 1):
        answers = [{"answer_start": start, "text": text} for start, text in question.answers]
        yield number, {
            "id": question.id, "title": question.title, "question": question.question, "context": question.context,
            "answers": answers, "is_impossible": question.impossible,
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
    """Yield every line. Blank lines may separate texts, so they are kept."""
    for number, line in enumerate(_lines(path), 1):
        yield number, {"text": line.strip()}


def _separated_rows(path: Path, tabs: bool) -> Iterator[NumberedRow]:
    """Yield the rows of a TSV (`tabs`) or CSV file."""
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
                f"({', '.join(header)}). {cause} may be the cause; correct or quote the row."
            )
        else:
            yield number, dict(zip(header, fields, strict=True))


def _header(path: Path, fields: list[str], tabs: bool) -> list[str]:
    """The checked column names."""
    header = [field.strip() for field in fields]
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise DataError(f"{path}: the header has the column {twice[0]!r} more than once. Rename one of them.")
    other = [mark for mark in (";", "\t", ",") if mark in header[0]]
    if len(header) == 1 and other:
        expected = "tabs" if tabs else "commas"
        raise DataError(
            f"{path}: the columns are separated by {other[0]!r}, expected {expected}. Save the file with {expected}."
        )
    return header


def _tab_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and fields of each record of a TSV file."""
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


def _parquet_rows(path: Path) -> Iterator[NumberedRow]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with closing(_open(path)) as stream:
            # Parquet needs to seek, and a compressed stream cannot.
            source = stream if path.suffix.lower() == ".parquet" else pa.BufferReader(stream.read())
            number = 0
            for batch in parquet.ParquetFile(source).iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise _damaged(path, error) from error
