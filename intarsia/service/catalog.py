"""The tasks of the bank as the API shows them: without paths, and in pages."""

from __future__ import annotations

import bisect
import time
import weakref
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from intarsia.bank.bank import Bank
from intarsia.bank.entry import Entry
from intarsia.methods import short_name
from intarsia.service.schemas import TaskInfo

SECONDS = 1.0  # that a listing is used again
LABELS_LISTED = 100  # in lists; a task's own page has all


@dataclass(frozen=True)
class Listed:
    """The newest version of each task, sorted by name."""

    entries: list[Entry]

    @classmethod
    def of(cls, bank: Bank) -> Listed:
        """List a bank. A listing is used again for a second, because listing ten thousand tasks takes a third of it."""
        now, (listed, made) = time.monotonic(), _LISTED.get(bank, (None, 0.0))
        if listed is None or now - made > SECONDS:
            listed = cls(bank.tasks())
            _LISTED[bank] = (listed, now)
        return listed

    @staticmethod
    def forget() -> None:
        """List again at the next request: the service itself has just changed the bank."""
        _LISTED.clear()

    def page(self, prefix: str, after: str, limit: int) -> tuple[list[Entry], int, str | None]:
        """Entries whose names begin with `prefix`, after the name `after`; their number; and the last name, if more
        follow."""
        names = [entry.name for entry in self.entries]
        first = bisect.bisect_left(names, prefix)
        matching = [e for e in self.entries[first:] if e.name.startswith(prefix)] if prefix else self.entries
        start = bisect.bisect_right([e.name for e in matching], after) if after else 0
        found = matching[start : start + limit]
        return found, len(matching), found[-1].name if start + limit < len(matching) else None


_LISTED: weakref.WeakKeyDictionary[Bank, tuple[Listed | None, float]] = weakref.WeakKeyDictionary()


def describe(entry: Entry, served: int, *, resident: bool, whole: bool = False) -> TaskInfo:
    """A version as plain values. `whole` adds what a list leaves out."""
    known: dict[str, Any] = {
        "task": entry.name, "version": entry.version, "served": entry.version == served, "resident": resident,
    }  # fmt: skip
    if entry.state != "ok":
        return TaskInfo(**known, state=entry.state, bytes=entry.bytes)
    header = entry.header
    metrics, base = header.metrics, header.parameters.get("base")
    test = metrics.get("test")
    info = TaskInfo(
        **known,
        state="ok",
        kind=header.kind,
        labels=list(header.labels if whole else header.labels[:LABELS_LISTED]),
        pairs=bool(header.data.get("pairs")),
        method=short_name(header.method),
        metric=metrics.get("metric"),
        dev=metrics.get("dev"),
        test=test if isinstance(test, dict) else None,
        parameters=header.parameters,
        share=header.parameters.get("total", 0) / base if base else None,
        bytes=entry.bytes,
        created=header.created,
        max_length=header.training.get("max_length"),
    )
    if whole:
        rows = header.data.get("rows")
        info.method_options = header.method
        info.digest = header.digest
        info.rows = rows if isinstance(rows, dict) else None
        history = header.training.get("history")
        info.history = history if isinstance(history, list) else None
    return info


def base_name(name: str) -> str:
    """The encoder's name without the folders of a path."""
    return PurePath(name).name if name.startswith(("/", "~", ".")) else name
