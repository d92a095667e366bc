"""The rows of `intarsia predict`: from arguments, lines of standard input and files to the texts of a task.

A row without a text stays in its place and gets an empty answer.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intarsia.errors import DataError, IntarsiaError, IntarsiaWarning
from intarsia.tasks.examples import Kind, Question

if TYPE_CHECKING:
    from intarsia.bank.inlay import InlayHeader
    from intarsia.serve.prediction import Text
    from intarsia.tasks.decoding import FileFormat

AT_ONCE = 1 << 16  # bytes that are read from standard input at once, if so many are there
ROWS_AT_ONCE = 1024  # of a file


@dataclass(frozen=True)
class Row:
    """One row: its text (None if empty), and the columns that its answer repeats."""

    text: Text | None
    columns: dict[str, Any]
    of_file: bool = False


@dataclass(frozen=True)
class Asked:
    """What a task expects of a line: its kind, whether it takes pairs, and the context given for all questions."""

    name: str
    kind: str
    pairs: bool = False
    context: str | None = None
    learned_from: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, header: InlayHeader, context: str | None) -> Asked:
        if context is not None and header.kind != "span":
            raise IntarsiaError(f"--context is for span tasks; {header.name} is of the kind {header.kind}.")
        columns = header.data.get("columns")
        return cls(
            header.name, header.kind, bool(header.data.get("pairs")), context,
            dict(columns) if isinstance(columns, dict) else {},
        )  # fmt: skip

    def row(self, line: str, where: str) -> Row:
        """Return a line as a row. A tab separates the two texts of a pair, or a question and its context."""
        parts = [part.strip("\r\n") for part in line.split("\t", 1)] if self._takes_tabs else [line.strip("\r\n")]
        names = ("question",) if self.kind == "span" else ("text_a", "text_b") if self.pairs else ("text",)
        columns = dict(zip(names, (*parts, "")[: len(names)], strict=True))
        if not any(part.strip() for part in parts):
            return Row(None, columns)
        if self.kind == "span":
            if self.context is not None:
                parts = [parts[0], self.context]
            elif len(parts) == 1:
                raise IntarsiaError(
                    f"{where}: the task {self.name!r} answers questions about a text: put a tab and the context after "
                    "the question, or give one context for all questions with --context."
                )
        elif self.pairs and len(parts) == 1:
            raise IntarsiaError(f"{where}: the task {self.name!r} is over text pairs: separate the two texts by a tab.")
        whole = all(part.strip() for part in parts)
        return Row((tuple(parts) if len(parts) > 1 else parts[0]) if whole else None, columns)

    @property
    def _takes_tabs(self) -> bool:
        return self.pairs or (self.kind == "span" and self.context is None)


def of_arguments(texts: Sequence[str], asked: Asked) -> Iterator[list[Row]]:
    yield [asked.row(text, f"text {number}") for number, text in enumerate(texts, 1)]


def of_standard_input(asked: Asked) -> Iterator[list[Row]]:
    """Yield the rows of the lines that are there, as soon as they are there. Every line is a row, also a blank one."""
    if sys.stdin is None:  # a process without standard input, as under some schedulers
        return
    if sys.stdin.isatty():
        print("Enter one text per line; end with Ctrl-D.", file=sys.stderr)
    stream = cast(io.BufferedReader, sys.stdin.buffer)
    rest, number = b"", 0
    while chunk := stream.read1(AT_ONCE):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield from _decoded(lines, number, asked)
        number += len(lines)
    if rest:
        yield from _decoded([rest], number, asked)


def _decoded(lines: Sequence[bytes], before: int, asked: Asked) -> Iterator[list[Row]]:
    """Yield the rows of some lines; those before a line that is no UTF-8 are answered before the error."""
    rows: list[Row] = []
    error: IntarsiaError | None = None
    for number, line in enumerate(lines, before + 1):
        where = f"standard input, line {number}"
        try:
            rows.append(asked.row(line.decode("utf-8-sig" if number == 1 else "utf-8"), where))
        except UnicodeDecodeError as wrong:
            error = IntarsiaError(
                f"{where}: not valid UTF-8 (byte 0x{line[wrong.start]:02x} at position {wrong.start + 1} of the line). "
                "Convert the input, for example with iconv."
            )
            break
        except IntarsiaError as wrong:
            error = wrong
            break
    if rows:
        yield rows
    if error is not None:
        raise error


def of_file(
    path: Path, asked: Asked, text: str | None, pair: str | None, form: FileFormat | None
) -> Iterator[list[Row]]:
    """Yield the rows of a file with all their columns."""
    from intarsia.tasks.columns import USUAL_NAMES, with_usual_names
    from intarsia.tasks.requests import text_columns
    from intarsia.tasks.sources import table_of_file

    if pair is not None and not asked.pairs and asked.kind != "span":
        raise IntarsiaError(f"--pair is for tasks over text pairs; {asked.name} is over single texts.")
    table = table_of_file(path.expanduser(), form)
    named = table
    if text is None and pair is None:
        named = with_usual_names({"": table})[""]
        columns = text_columns(named, cast(Kind, asked.kind), asked.learned_from)
        if len(named.columns) == 1 and columns[0] not in {*USUAL_NAMES, *asked.learned_from.values()}:
            warnings.warn(
                f"{path}: the first line, {columns[0]!r:.60}, is read as the name of the only column. If it is a text, "
                "add a header such as text, or name the file .txt.",
                IntarsiaWarning,
                stacklevel=2,
            )
    else:
        for role, name in (("--text", text), ("--pair", pair)):
            if name is not None and name not in table.columns:
                found = ", ".join(repr(column) for column in table.columns)
                raise DataError(f"{path}: no column {name!r} ({role}). Columns found: {found}.")
        default = asked.learned_from if asked.kind != "span" else {"text": "question", "pair": "context"}
        columns = text or str(default.get("text") or "text"), pair or (default.get("pair") if asked.pairs else None)
        if asked.kind == "span" and pair is None:
            columns = columns[0], str(default["pair"])
    if asked.pairs and columns[1] is None:
        raise DataError(f"{path}: the task {asked.name!r} is over text pairs: name the second column with --pair.")
    for name in filter(None, columns):
        if name not in named.columns:
            raise DataError(f"{path}: no column {name!r}. Columns found: {', '.join(map(repr, table.columns))}.")
    rows = [
        Row(_text(asked.kind, given, *columns, f"{table.name}, {table.unit} {number}"), original, True)
        for number, given, original in zip(table.numbers, named.rows, table.rows, strict=True)
    ]
    yield from (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))


def _text(kind: str, row: dict[str, Any], first: str, second: str | None, where: str) -> Text | None:
    """The text of a row of a file; None if it has none."""
    values = [_plain(row.get(name), f"{where}, column {name!r}", kind) for name in (first, second) if name is not None]
    if any(not value for value in values):
        return None
    if kind == "span":
        return Question(str(values[0]), str(values[1]), None, str(row.get("id", "")))
    if kind == "tags":
        return tuple(values[0].split()) if isinstance(values[0], str) else values[0]
    return cast("Text", values[0] if second is None else tuple(values))


def _plain(value: Any, where: str, kind: str) -> Any:
    """A cell as a text (a list of words for tags); empty if there is none."""
    if value is None or value != value:  # NaN differs from itself
        return ""
    if isinstance(value, list | tuple) and kind == "tags":
        if not all(isinstance(word, str) and word.strip() for word in value):
            raise DataError(f"{where}: expected words, found {value!r:.60}.")
        return tuple(value)
    if isinstance(value, int | float):
        return str(value)  # a column of numbers in a text's place
    if not isinstance(value, str):
        raise DataError(f"{where}: expected a text, found a {type(value).__name__}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: the text has half of a surrogate pair. Correct it, or drop the row.") from None
    return value if value.strip() else ""
