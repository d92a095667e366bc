"""Raw rows as they were read: tables under the names of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from intarsia.tasks.reading import Row

# The `_matched` names are those of MNLI, whose second dev and test sets come from other genres.
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
class Table:
    """Raw rows that remember where they stand, so that a complaint can name file, row and column."""

    name: str
    unit: str  # what the numbers count: line, row or item
    numbers: Sequence[int]
    rows: list[Row]
    lines: bool = False  # rows are lines of plain text, blank ones too (tasks/documents.py makes texts of them)

    def where(self, index: int, column: str) -> str:
        return f"{self.name}, {self.unit} {self.numbers[index]}, column {column!r}"

    @cached_property
    def columns(self) -> list[str]:
        """Every column that some row has, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class Gathered:
    """The tables of a source under the names train, dev, test and all, as far as it has them."""

    name: str  # of the source, for complaints
    tables: dict[str, Table]
    origin: dict[str, Any]  # provenance
