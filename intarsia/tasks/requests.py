"""The texts of a request: lists, columns and tables of other libraries as a list of texts of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.columns import OWN_NAMES, find_texts
from intarsia.tasks.examples import Example, Kind, Question, Sentence
from intarsia.tasks.frames import cells, is_of, table_of_frame
from intarsia.tasks.tables import RawTable

EXPECTED = (
    "a list of texts (for one text, write [text]), a column of a DataFrame, an array of texts, or a table with the "
    "columns that the task was learned from"
)


def texts_of(texts: Any, kind: Kind, learned_from: Mapping[str, Any] | None = None) -> list[Any]:
    """The texts of a request as a list, in the form that a task of this kind takes; None for a missing text.

    `texts` is a list or a column (pandas, NumPy, Arrow, Hugging Face), or a table. In a table the columns in
    `learned_from` (text, pair) are used if it has them, else the columns with conventional names.
    """
    if texts is None or isinstance(texts, str | bytes | Path | Example):
        raise DataError(f"expected {EXPECTED}; found {_short(texts)}.")
    if (table := _table(texts)) is not None:
        return texts_of_table(table, kind, learned_from)
    found = None if isinstance(texts, set | frozenset) else cells(texts)  # a set has no order for the answers
    if found is None:
        raise DataError(f"expected {EXPECTED}; found a {type(texts).__name__}.")
    if is_of(texts, "numpy", "ndarray") and texts.dtype.kind in "biuf":
        raise DataError(f"expected {EXPECTED}; found an array of {texts.dtype}.")
    return [_plain(text) for text in found]


def texts_of_table(table: RawTable, kind: Kind, learned_from: Mapping[str, Any] | None = None) -> list[Any]:
    """The texts of a table's rows."""
    first, second = text_columns(table, kind, learned_from)
    if second is None:
        return [row.get(first) for row in table.rows]
    return [
        None if row.get(first) is None or row.get(second) is None else (row[first], row[second]) for row in table.rows
    ]


def text_columns(table: RawTable, kind: Kind, learned_from: Mapping[str, Any] | None = None) -> tuple[str, str | None]:
    """The names of the text column and of its pair, if the task has pairs."""
    known = learned_from or {}
    names = [known[role] for role in ("text", "pair") if known.get(role)]
    if not names and kind in OWN_NAMES:
        names = [name for name in OWN_NAMES[kind][:2] if name]
    if names and set(names) <= set(table.columns):
        return names[0], names[1] if len(names) > 1 else None
    if len(table.columns) == 1:
        return table.columns[0], None
    try:
        return find_texts(table, None, None)
    except DataError as error:
        if not names:
            raise
        raise DataError(f"{error} The task was learned from {' and '.join(map(repr, names))}.") from None


def _table(texts: Any) -> RawTable | None:
    """The table of an object with named columns; None for lists and columns."""
    if is_of(texts, "pandas", "DataFrame") or isinstance(texts, Mapping) or _has_columns(texts):
        table = table_of_frame(f"the {type(texts).__name__}", texts)
        if table is None:
            raise DataError(f"expected {EXPECTED}; found a {type(texts).__name__} whose values are not columns.")
        return table
    if isinstance(texts, list | tuple) and texts and all(isinstance(item, Mapping) for item in texts):
        return RawTable("the list", "item", range(1, len(texts) + 1), [dict(item) for item in texts])
    return None


def _has_columns(texts: Any) -> bool:
    return hasattr(texts, "column_names") and (hasattr(texts, "__arrow_c_stream__") or is_of(texts, "datasets"))


def _plain(text: Any) -> Any:
    """An example as the text that a request takes; any other value unchanged."""
    if isinstance(text, Sentence):
        return text.words
    if isinstance(text, Example) and not isinstance(text, Question):
        return text.text if text.pair is None else (text.text, text.pair)
    return text


def _short(texts: Any) -> str:
    return "nothing" if texts is None else "one string" if isinstance(texts, str) else f"one {type(texts).__name__}"
