"""Rows of an Excel workbook (.xlsx): the first sheet with content, whose first row names the columns."""

from __future__ import annotations

import datetime
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.errors import DataError, IntarsiaWarning, check_extra
from intarsia.tasks.content import Budget

MOST_CHARACTERS = 32_767  # of a cell; Excel's own limit


def sheet_rows(path: Path, budget: Budget) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows with their numbers in the sheet. In a column with any text, every value becomes a text."""
    check_extra("xlsx", "openpyxl")
    if path.suffix.lower() != ".xlsx":
        raise DataError(f"{path}: a workbook is compressed already. Unpack it to an .xlsx file.")
    sheets = _sheets(path, budget)
    if not sheets:
        return
    name, numbered = sheets[0]
    if len(sheets) > 1:
        warnings.warn(
            f"{path}: reads the sheet {name!r}; left out: {', '.join(repr(other) for other, _ in sheets[1:])}.",
            IntarsiaWarning,
            stacklevel=2,
        )
    (_, first), *rest = numbered
    header = ["" if value is None else str(value).strip() for value in first]
    used = [i for i, column in enumerate(header) if column]
    twice = sorted({header[i] for i in used if header.count(header[i]) > 1})
    if twice:
        raise DataError(f"{path}: the header has the column {twice[0]!r} more than once. Rename one of them.")
    texts = {i for i in used if any(isinstance(row[i], str) for _, row in rest if i < len(row))}
    for number, row in rest:
        values = {i: row[i] if i < len(row) else None for i in used}
        yield number, {header[i]: _as_text(value) if i in texts else _plain(value) for i, value in values.items()}


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as the one sheet of a workbook. Columns are those of all rows, in order of appearance."""
    import io

    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE, WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("predictions")
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        made = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", value)[:MOST_CHARACTERS])
        made.data_type = "s"  # a text that begins with = is no formula
        return made

    sheet.append([cell(name) for name in columns])
    for row in rows:
        sheet.append([cell(row.get(name)) for name in columns])
    content = io.BytesIO()
    book.save(content)
    files.replace(path, [content.getvalue()])


def _sheets(path: Path, budget: Budget) -> list[tuple[str, list[tuple[int, tuple[Any, ...]]]]]:
    """The sheets that have values: their names, and their rows that have values, with numbers."""
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        with zipfile.ZipFile(path) as archive:
            budget.spend(sum(entry.file_size for entry in archive.infolist()))
        book = load_workbook(path, read_only=True, data_only=True)
        try:
            found = []
            for sheet in book.worksheets:
                rows = [
                    (number, row)
                    for number, row in enumerate(sheet.iter_rows(values_only=True), 1)
                    if any(value is not None and value != "" for value in row)
                ]
                if rows:
                    found.append((sheet.title, rows))
            return found
        finally:
            book.close()
    except PermissionError as error:
        raise DataError(f"{path} cannot be read: permission denied. Change its permissions.") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, SyntaxError, zipfile.BadZipFile,
            InvalidFileException) as error:  # fmt: skip
        raise DataError(f"{path} is damaged or no .xlsx workbook ({error}). Save it again as .xlsx.") from error


def _plain(value: Any) -> Any:
    return _as_text(value) if isinstance(value, datetime.date | datetime.time | datetime.timedelta) else value


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
