"""Reading the rows of a data file. Each row has a number by which a user can find it.

CSV follows the usual quoting rules. Its columns are separated by the mark that makes most columns of the header.
TSV has no quoting: a line is a row, and a quote is an ordinary character, because tab-separated data sets (GLUE among
them) have many stray quotes. The exceptions are a TSV file whose header has every column name in quotes, and one whose
columns are not separated by tabs: they are read with the quoting rules of CSV.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intarsia.errors import DataError, near_names
from intarsia.formatting import listed
from intarsia.tasks.content import ROW_BYTES, Budget
from intarsia.tasks.decoding import FileFormat, lines_of
from intarsia.tasks.parquet import parquet_rows

COMPRESSIONS = ("", ".gz", ".zst")
FORMATS = ("csv", "tsv", "jsonl", "ndjson", "json", "parquet", "xlsx", "txt")
KNOWN_ENDINGS = "." + ", .".join(FORMATS) + " (each also with .gz or .zst)"

SEPARATORS = (",", ";", "\t", "|")  # that a header line may show

RawRow = dict[str, Any]
NumberedRow = tuple[int, RawRow]


def read_rows(path: str | Path, form: FileFormat | None = None) -> Iterator[NumberedRow]:
    """Yield the rows of a file with their numbers: the row's first line, or its index from 1 (parquet, JSON arrays).

    A bad path raises at once. Bad content raises when the iterator reaches it.
    """
    path, form = local_path(path), form or FileFormat()
    name = data_format(path)
    check_exists(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give one of the files in it.")
    if name is None:
        raise DataError(
            f"{path}: unknown file ending {''.join(path.suffixes) or '(none)'}. "
            f"Known endings: {KNOWN_ENDINGS}. Rename or convert the file."
        )
    if form.sep is not None and name not in ("csv", "tsv"):
        raise DataError(f"{path}: a separator (sep, --sep) applies to .csv and .tsv files only. Leave it out.")
    if form.encoding is not None and name in ("parquet", "xlsx"):
        raise DataError(f"{path}: an encoding (--encoding) applies to text files only. Leave it out.")
    budget = Budget(path)
    if name == "parquet":
        rows = parquet_rows(path, budget)
    elif name == "xlsx":
        from intarsia.tasks.spreadsheet import sheet_rows

        rows = sheet_rows(path, budget)
    elif name == "json":
        rows = _json_document(path, budget, form.encoding)
    elif name in ("jsonl", "ndjson"):
        rows = _json_rows(path, lines_of(path, budget, form.encoding))
    elif name == "txt":
        rows = _text_rows(lines_of(path, budget, form.encoding))
    else:
        rows = _separated_rows(path, lines_of(path, budget, form.encoding), tabs=name == "tsv", sep=form.sep)
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
    # Without the endings: nothere.csv is not like score.csv.
    stems = near_names(path.name.split(".")[0], {name.split(".")[0] for name in names}, least=0.7)
    close = [name for name in names if name.startswith(path.name) or name.split(".")[0] in stems]
    near = near_names(path.name, close, least=0.0)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Check the path."
    raise DataError(f"{path} does not exist. {hint}")


def _require_rows(path: Path, rows: Iterator[NumberedRow], budget: Budget) -> Iterator[NumberedRow]:
    """Yield the rows; raise at the end if there was none."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        budget.spend(ROW_BYTES)
        yield row
    if not count:
        raise DataError(f"{path} is empty. Expected at least one row of data.")


def _squad_rows(path: Path) -> Iterator[NumberedRow]:
    """Yield the questions of a file in SQuAD's JSON format."""
    from intarsia.tasks.suites.squad import read_squad

    for number, question in enumerate(read_squad(path), 1):
        answers = [{"answer_start": start, "text": text} for start, text in question.answers]
        yield number, {
            "id": question.id, "title": question.title, "question": question.question, "context": question.context,
            "answers": answers, "is_impossible": question.impossible,
        }  # fmt: skip


SQUAD_FILE = re.compile(r'\s*\{\s*"(data|version)"')  # the whole file may be one line


def _json_document(path: Path, budget: Budget, encoding: str | None) -> Iterator[NumberedRow]:
    """Yield the rows of a .json file: an array of objects, JSON Lines, or questions in SQuAD's format."""
    lines = lines_of(path, budget, encoding)
    first = next((line for line in lines if line.strip()), "")
    lines = itertools.chain([first], lines)
    if first.lstrip().startswith("["):
        yield from _array_rows(path, "".join(lines))
        return
    second = next((line for line in itertools.islice(lines, 1, None) if line.strip()), "")
    one_row = not second and not SQUAD_FILE.match(first)
    if first.strip().endswith("}") and (one_row or second.lstrip().startswith("{")):
        yield from _json_rows(path, lines_of(path, Budget(path), encoding))
    else:
        yield from _squad_rows(path)


def _array_rows(path: Path, text: str) -> Iterator[NumberedRow]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: malformed JSON ({error.msg}, at character {error.colno}). Expected an array "
            "of objects."
        ) from error
    except ValueError as error:  # a number of too many digits
        raise DataError(f"{path}: malformed JSON ({error}). Expected an array of objects.") from error
    except RecursionError:
        raise DataError(f"{path}: JSON that is nested too deeply. Expected an array of objects.") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, item {number}: expected a JSON object such as "
                f'{{"text": "...", "label": "..."}}, found a {type(row).__name__}.'
            )
        yield number, row


def _json_rows(path: Path, lines: Iterator[str]) -> Iterator[NumberedRow]:
    for number, line in enumerate(lines, 1):
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


def _text_rows(lines: Iterator[str]) -> Iterator[NumberedRow]:
    """Yield every line. Blank lines may separate texts, so they are kept."""
    for number, line in enumerate(lines, 1):
        yield number, {"text": line.strip()}


def _separated_rows(path: Path, lines: Iterator[str], tabs: bool, sep: str | None) -> Iterator[NumberedRow]:
    """Yield the rows of a TSV (`tabs`) or CSV file. `sep`: the separator, if the user names it."""
    first = next(lines, "")
    given = sep is not None
    sep = sep or _separator(first, "\t" if tabs else ",")
    lines = itertools.chain([first] if first else [], lines)
    plain = tabs and sep == "\t"
    records = _tab_records(path, lines) if plain else _quoted_records(path, lines, sep)
    header: list[str] | None = None
    for number, fields in records:
        if header is None:
            header = _header(path, fields, sep, given=given)
        elif len(fields) != len(header):
            wrong = "few" if len(fields) < len(header) else "many"
            name = {"\t": "tab", ",": "comma"}.get(sep, repr(sep))
            cause = "A line break or tab inside a text" if plain else f"An unquoted {name} or line break inside a text"
            raise DataError(
                f"{path}, line {number}: too {wrong} fields: {len(fields)}, but the header names {len(header)} "
                f"({listed(header)}). {cause} may be the cause; correct or quote the row."
            )
        else:
            yield number, dict(zip(header, fields, strict=True))


def _separator(header: str, usual: str) -> str:
    """The separator of a header line: the one that makes most columns, and of several the usual one."""
    outside_quotes = re.sub(r'"[^"]*"', "", header)
    return max((usual, *(mark for mark in SEPARATORS if mark != usual)), key=outside_quotes.count)


def _header(path: Path, fields: list[str], sep: str, *, given: bool) -> list[str]:
    """The checked column names."""
    header = [field.strip() for field in fields]
    twice = sorted(name for name, count in Counter(header).items() if name and count > 1)
    if twice:
        raise DataError(f"{path}: the header has the column {twice[0]!r} more than once. Rename one of them.")
    other = [mark for mark in SEPARATORS if mark != sep and mark in header[0]]
    if given and len(header) == 1 and other:
        raise DataError(
            f"{path}: {sep!r} does not separate columns in the header, which has {other[0]!r}. Give the right "
            "separator (--sep), or leave it out."
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
