"""Raw label values: inferring the task kind from them, and converting them to labels of that kind."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from intarsia.errors import DataError
from intarsia.formatting import shown
from intarsia.tasks.examples import Kind, Label
from intarsia.tasks.tables import RawTable

WHOLE = re.compile(r"-?[0-9]{1,15}\.0+")  # a whole number that was stored as a fraction
SEPARATOR = "|"  # between the labels of one field in a text file
MISSING_WORDS = ("nan", "na", "n/a", "<na>", "#n/a", "null", "none")  # in lower case


def plain(value: Any) -> Any:
    """The Python value of a NumPy scalar or array; any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_missing(value: Any) -> bool:
    """Whether the label is missing. An empty list is a label: none of the classes applies."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value  # NaN differs from itself


def looks_missing(value: Any) -> bool:
    """Whether a label is a word by which programs write a missing value."""
    return isinstance(value, str) and value.strip().casefold() in MISSING_WORDS


def as_number(value: Any) -> float | None:
    """The finite number of a value or its text; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def infer_kind(tables: Iterable[RawTable], column: str) -> Kind:
    """The kind of the labels in a column.

    Lists are `labels`. Numbers are `score` if any has a fraction or if the column is named `score`. Otherwise `label`.
    """
    whole = fraction = word = ""  # the first value of each type and its place, for the message
    for table in tables:
        for index, row in enumerate(table.rows):
            value = plain(row.get(column))
            if isinstance(value, list | tuple | set | frozenset):
                return "labels"
            if is_missing(value):
                continue
            number = as_number(value)
            if number is None:
                word = word or f"{shown(value)} in {table.where(index, column)}"
            elif number.is_integer():
                whole = whole or f"{shown(value)} in {table.where(index, column)}"
            else:
                fraction = fraction or f"{shown(value)} in {table.where(index, column)}"
    if fraction and word:
        raise DataError(
            f"the labels are neither all numbers nor all names: {fraction}, but {word}. "
            f"Correct the wrong label, or set kind='score' or kind='label'."
        )
    if fraction or (column == "score" and whole and not word):
        return "score"
    return "label"


def to_label(value: Any, kind: Kind, where: str) -> Label:
    """A raw value that is not missing, as a label of the given kind."""
    value = plain(value)
    if kind == "score":
        number = as_number(value)
        if number is None:
            raise DataError(f"{where}: {shown(value)} is not a number. Expected a finite score such as 2.5.")
        return number
    if kind == "label":
        return _name(value, where)
    if isinstance(value, str):
        value = value.split(SEPARATOR)
    elif not isinstance(value, list | tuple | set | frozenset):
        value = [value]
    names = sorted(_name(item, where) for item in value)
    if len(set(names)) < len(names):
        twice = next(name for name, following in zip(names, names[1:], strict=False) if name == following)
        raise DataError(
            f"{where}: label {shown(twice)} occurs twice in one row. Expected the names of the labels that apply "
            f"(not a row of zeros and ones)."
        )
    return tuple(names)


def one_name(name: str) -> str:
    """The one spelling of a label that files write in several ways: `1` for `1.0`, `true` for `True`."""
    if name.lower() in ("true", "false"):
        return name.lower()
    return str(int(name.partition(".")[0])) if WHOLE.fullmatch(name) else name


def _name(value: Any, where: str) -> str:
    """A raw value as the name of a label."""
    value = plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a whole number stored as 1.0 is the label 1
    if isinstance(value, str) and value.strip():
        return one_name(value.strip())
    if isinstance(value, int) and abs(value) < 10**100:  # Python does not write integers of thousands of digits
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        raise DataError(f"{where}: several labels, expected one. Give one, or set kind='labels'.")
    raise DataError(f"{where}: {shown(value)} is not a label. Expected a name or a whole number.")
