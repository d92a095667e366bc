"""Values that describe a bank's files: entries, problems, and unfinished training runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from intarsia.bank.inlay import InlayHeader
from intarsia.errors import DamagedInlay, Misplaced


@dataclass(frozen=True)
class Entry:
    """One version of one task."""

    name: str
    version: int
    path: Path
    bytes: int
    state: str  # "ok" | "damaged" | "misplaced": intact, but in the folder of another task or over another base
    reason: str  # why the file cannot be used; empty if it can
    header_json: str = field(repr=False)
    held: bool = False  # kept, but not served: it scored worse than the version that is served

    @cached_property
    def header(self) -> InlayHeader:
        """The file's header, parsed on first access. Raises `DamagedInlay` if the file is damaged."""
        if self.state != "ok":
            raise (Misplaced if self.state == "misplaced" else DamagedInlay)(self.reason)
        return InlayHeader.from_json(self.header_json)

    def to_dict(self) -> dict[str, Any]:
        """Return the description of this version as plain values, as `show --json` prints it (docs/inlay-format.md)."""
        from intarsia.methods import short_name  # loads PyTorch

        stored = {
            "name": self.name, "version": self.version, "state": self.state, "held": self.held,
            "file": str(self.path), "bytes": self.bytes,
        }  # fmt: skip
        if self.state != "ok":
            return {**stored, "reason": self.reason}
        known = {k: v for k, v in asdict(self.header).items() if k not in ("layout", "bytes")}
        return {**stored, "method_name": short_name(self.header.method), **known}


@dataclass(frozen=True)
class Problem:
    """A file of a bank that cannot be used; `reason` names the file and says what to do."""

    path: Path
    reason: str
    name: str | None = None
    version: int | None = None
    state: str = "damaged"  # or "misplaced", or "incomplete": an inlay that it is built on is lost

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Unfinished:
    """A training run that was interrupted or is still running; its checkpoint is in the folder `path`."""

    name: str  # the task's name
    path: Path
    bytes: int
