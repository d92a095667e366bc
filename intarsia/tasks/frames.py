"""Tables of other libraries as tables of raw rows: pandas, Arrow, NumPy, Hugging Face, dicts of lists and (X, y).

An object is recognised by the package of its type, or by the Arrow protocol that polars and others speak. Intarsia
imports none of these libraries for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.hub import table_of_dataset
from intarsia.tasks.labels import is_missing, plain
from intarsia.tasks.reading import RawRow
from intarsia.tasks.tables import RawTable

EXPECTED = (
    "a path, a hub data set such as 'stanfordnlp/sst2', a DataFrame, a data set of the library datasets, a dict of "
    "lists, (texts, labels), a list of examples, or a mapping with train, dev and test"
)
NO_CELLS = str | bytes | Mapping  # iterable, but not a column
ROWS_AT_MOST = 3  # items of a tuple that may be a row: (text, label) or (text, pair, label)


def table_of_frame(name: str, value: Any) -> RawTable | None:
    """The table of an object with named columns, or of (X, y); None if `value` is neither."""
    if is_of(value, "pandas", "DataFrame"):
        return _pandas_table(name, value)
    if is_of(value, "pandas", "Series"):
        return RawTable(name, "index", list(value.index), [{"text": item} for item in cells(value) or ()])
    if hasattr(value, "column_names") and is_of(value, "datasets"):
        return table_of_dataset(name, value)
    if hasattr(value, "__arrow_c_stream__"):
        import pyarrow

        return _table(name, pyarrow.table(value).to_pylist())
    if is_of(value, "numpy", "ndarray"):
        _check_texts(value)
        return _table(name, [row_of(name, number, item) for number, item in enumerate(cells(value) or (), 1)])
    if (columns := columns_of(value)) is not None:
        return _table(name, _rows(name, columns))
    if is_texts_and_labels(value):
        return _joined_table(name, *value)
    return None


def is_of(value: Any, package: str, name: str | None = None) -> bool:
    """Whether the type of `value`, or a base of it, is defined in a package (and has this name)."""
    return any(
        base.__module__.partition(".")[0] == package and name in (None, base.__name__) for base in type(value).__mro__
    )


def cells(value: Any) -> list[Any] | None:
    """The items of a column as Python values, with None for missing values; None if `value` is no column."""
    if isinstance(value, NO_CELLS) or not hasattr(value, "__iter__"):
        return None
    if is_of(value, "pandas"):
        missing = value.isna().tolist()
        return [None if gone else plain(item) for item, gone in zip(value.astype(object), missing, strict=True)]
    if is_of(value, "numpy", "ndarray"):
        _check_array(value)
        return [None if _is_nan(item) else item for item in value.tolist()]
    if hasattr(value, "to_pylist"):  # a column of Arrow
        return list(value.to_pylist())
    return [plain(item) for item in value]


def columns_of(value: Any) -> dict[str, list[Any]] | None:
    """The columns of a dict of lists, or of what scikit-learn's `fetch_…` functions return; None for other values."""
    if not isinstance(value, Mapping) or not value:
        return None
    if {"data", "target"} <= value.keys() and is_of(value, "sklearn"):
        names = value.get("target_names")
        labels = cells(value["target"]) or []
        if names is not None and all(isinstance(label, int) for label in labels):
            labels = [str(names[label]) for label in labels]
        return {"text": cells(value["data"]) or [], "label": labels}
    columns = {str(name): None if is_texts_and_labels(column) else cells(column) for name, column in value.items()}
    found = {name: column for name, column in columns.items() if column is not None}
    return found if len(found) == len(value) else None


def is_texts_and_labels(value: Any) -> bool:
    """Whether a tuple is (X, y), and not two rows of a tuple of rows."""
    if not isinstance(value, tuple) or len(value) != 2 or any(not hasattr(part, "__len__") for part in value):
        return False
    if any(isinstance(part, str | bytes) for part in value):
        return False
    return any(not isinstance(part, tuple) or len(part) > ROWS_AT_MOST for part in value)


def row_of(name: str, number: int, item: Any) -> RawRow:
    """A plain Python object as a raw row."""
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, str) or item is None:
        return {"text": item}
    if isinstance(item, list | tuple) and len(item) in (2, ROWS_AT_MOST):
        if len(item) == 2 and isinstance(item[0], list | tuple):
            return {"tokens": item[0], "tags": item[1]}
        names = ("text", "label") if len(item) == 2 else ("text_a", "text_b", "label")
        return dict(zip(names, item, strict=True))
    raise _no_row(name, number, item, "an Example, a mapping, (text, label), (text, pair, label) or a text")


def _row_without_label(number: int, item: Any, tagged: bool) -> RawRow:
    """An item of X as a raw row. `tagged`: y has lists, so a list is a sentence."""
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, str) or item is None:
        return {"text": item}
    if isinstance(item, list) and tagged:
        return {"tokens": item}
    if isinstance(item, list | tuple) and len(item) in (1, 2):
        return {"text": item[0]} if len(item) == 1 else {"text_a": item[0], "text_b": item[1]}
    raise _no_row("X", number, item, "a text or a pair of texts")


def _no_row(name: str, number: int, item: Any, expected: str) -> DataError:
    found = f"{len(item)} items" if isinstance(item, list | tuple) else f"{item!r:.40} ({type(item).__name__})"
    return DataError(f"{name}, item {number}: expected {expected}, found {found}.")


def _pandas_table(name: str, frame: Any) -> RawTable:
    """The table of a DataFrame. Rows are named by their index."""
    names = [str(column) for column in frame.columns]
    columns = {column: cells(frame.iloc[:, place]) or [] for place, column in enumerate(_distinct(name, names))}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return RawTable(name, "index", list(frame.index), rows)


def _joined_table(name: str, texts: Any, labels: Any) -> RawTable:
    """The table of (X, y)."""
    found = _labels(labels)
    if isinstance(texts, list | tuple) or is_of(texts, "numpy", "ndarray"):
        _check_texts(texts)
        items = cells(texts) or []
        tagged = any(isinstance(label, list | tuple) for label in found)
        rows, table = [_row_without_label(number, item, tagged) for number, item in enumerate(items, 1)], None
    elif (table := table_of_frame("X", texts)) is not None:
        rows = table.rows
    else:
        raise DataError(f"X is a {type(texts).__name__}. Expected one text for each row.")
    if len(found) != len(rows):
        raise DataError(f"X has {len(rows):,} rows and y has {len(found):,}. Expected one label for each row.")
    column = "tags" if rows and all("tokens" in row for row in rows) else "label"
    if any(column in row for row in rows):
        raise DataError(f"X has a column {column!r} beside the labels in y. Give X without it, or X alone.")
    joined = [{**row, column: label} for row, label in zip(rows, found, strict=True)]
    if table is None:
        return RawTable(name, "item", range(1, len(rows) + 1), joined)
    return RawTable(name, table.unit, table.numbers, joined)


def _labels(labels: Any) -> list[Any]:
    """The labels of (X, y). A DataFrame of zeros and ones gives the names of the columns that are one in each row."""
    if not is_of(labels, "pandas", "DataFrame"):
        found = cells(labels)
        if found is None:
            raise DataError(f"y is a {type(labels).__name__}. Expected one label for each text.")
        return [item[0] for item in found] if _shape(labels)[1:] == (1,) else found
    if labels.shape[1] == 1:
        return cells(labels.iloc[:, 0]) or []
    table = _pandas_table("y", labels)
    if any(value not in (0, 1) for row in table.rows for value in row.values()):
        raise DataError(
            f"y is a DataFrame with the columns {', '.join(table.columns)}. Expected one column of labels, or columns "
            "of zeros and ones, named by the labels."
        )
    return [[column for column, value in row.items() if value] for row in table.rows]


def _table(name: str, rows: list[RawRow]) -> RawTable:
    return RawTable(name, "row", range(1, len(rows) + 1), rows)


def _rows(name: str, columns: Mapping[str, Sequence[Any]]) -> list[RawRow]:
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{column} {length:,}" for column, length in lengths.items())
        raise DataError(f"{name}: the columns have different lengths ({found}). Expected one value for each row.")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _distinct(name: str, columns: Sequence[str]) -> Sequence[str]:
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"{name} has the column {twice!r} more than once. Rename one of them.")
    return columns


def _check_array(array: Any) -> None:
    """Raise unless an array may hold texts or labels in one or two dimensions."""
    if array.ndim not in (1, 2):
        raise DataError(f"{_described(array)} has {array.ndim} dimensions. Expected rows, or rows and columns.")
    if array.dtype.kind in "cmMSV":
        raise DataError(f"{_described(array)} holds neither texts nor labels. Expected {EXPECTED}.")


def _check_texts(value: Any) -> None:
    """Raise if `value` is an array of numbers, which cannot be texts."""
    if is_of(value, "numpy", "ndarray") and value.dtype.kind in "biuf":
        raise DataError(f"{_described(value)} holds numbers. Expected texts: {EXPECTED}.")


def _described(value: Any) -> str:
    shape = " × ".join(str(size) for size in _shape(value))
    return f"a {type(value).__name__} of {getattr(value, 'dtype', 'unknown values')} ({shape})"


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and is_missing(value)
