"""What a bank says of its files: entries, problems found in them, and runs that have not ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from intarsia.bank.inlay import InlayHeader
from intarsia.errors import DamagedInlay


@dataclass(frozen=True)
class Entry:
    """One version of one task."""

    name: str
    version: int
    path: Path
    bytes: int
    state: str  # "ok" | "damaged"
    reason: str  # what is wrong with a damaged one
    header_json: str = field(repr=False)

    @cached_property
    def header(self) -> InlayHeader:
        """What the file says of itself; an error where the file is damaged. Parsed when first asked for."""
        if self.state != "ok":
            raise DamagedInlay(self.reason)
        return InlayHeader.from_json(self.header_json)


@dataclass(frozen=True)
class Problem:
    """Something in a bank that is not as it should be; `reason` names the file and says what to do."""

    path: Path
    reason: str
    name: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Unfinished:
    """A run that was interrupted, or that another process is at: its state lies in a folder of its own."""

    name: str  # of the task
    path: Path
    bytes: int
