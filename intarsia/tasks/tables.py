"""Tables of raw rows, as they were read from a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from intarsia.tasks.reading import RawRow

# Part names in sources -> ours. The `_matched` names are MNLI's: its other dev and test sets have other genres.
SPLIT_NAMES: dict[str, str] = {
    "train": "train",
    "dev": "dev",
    "validation": "dev",
    "valid": "dev",
    "val": "dev",
    "validation_matched": "dev",
    "test": "test",
    "test_matched": "test",
    "all": "all",
}


@dataclass(frozen=True)
class RawTable:
    """Raw rows with their numbers in the source, so that an error can name file, row and column."""

    name: str
    unit: str  # what the numbers count: line, row or item
    numbers: Sequence[int]
    rows: list[RawRow]
    lines: bool = False  # rows are lines of plain text, including blank lines (documents.py joins them)

    def where(self, index: int, column: str) -> str:
        """The place of a value, for error messages."""
        return f"{self.name}, {self.unit} {self.numbers[index]}, column {column!r}"

    @cached_property
    def columns(self) -> list[str]:
        """All columns that any row has, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class Gathered:
    """The tables of a source by part: train, dev, test or all, as far as it has them."""

    name: str  # of the source, for error messages
    tables: dict[str, RawTable]
    origin: dict[str, Any]  # provenance
