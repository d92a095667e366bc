"""Task names to the versions that a bank serves.

A look-up asks the file system whether the task's folder has changed since the last one: two calls, however many tasks
the bank holds. It therefore sees at once what other processes learn, restore and remove.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from intarsia.bank.entry import Entry
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import Replaced, UnknownTask
from intarsia.serve.served import Served
from intarsia.tasks.learned import Learned

# Time stamps of files move in steps of some milliseconds: a change right after a look-up may leave the stamp as it is.
UNSETTLED = 50_000_000  # nanoseconds


@dataclass(frozen=True)
class _Known:
    served: Served
    entry: Entry
    folder: int  # the time stamp of the task's folder
    file: tuple[int, int]  # size and time stamp
    settled: bool


class VersionMap:
    """Returns the served version of a task, or a given version of it. Usable from any number of threads."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store, self.encoder = store, encoder
        self.on_replaced: Callable[[str], None] = lambda digest: None  # called with versions that are served no more
        self._known: dict[tuple[str, int | None], _Known] = {}

    def __call__(self, name: str, version: int | None = None) -> Served:
        known = self._known.get((name, version))
        if known is not None and known.settled and self._unchanged(known):
            return known.served
        found = self._look(name, version)
        self._known[name, version] = found
        if known is not None and version is None and known.served.key != found.served.key:
            self.on_replaced(known.served.key)
        return found.served

    def _unchanged(self, known: _Known) -> bool:
        path = known.entry.path
        try:
            return os.stat(path.parent).st_mtime_ns == known.folder and _stamp(path) == known.file
        except OSError:
            return False

    def _look(self, name: str, version: int | None) -> _Known:
        try:
            folder = os.stat(self.store.task_folder(name)).st_mtime_ns
            settled = time.time_ns() - folder > UNSETTLED
        except (OSError, ValueError):  # ValueError: a name with a null character
            folder, settled = 0, False
        entry = self.store.entry(name, version)
        if entry.state != "ok":
            self._read(name, version)  # raises an error that names the problem and a version to restore
            raise Replaced(f"Another process replaced {entry.path}, which was damaged.")
        try:
            file = _stamp(entry.path)
        except OSError as error:
            raise Replaced(f"Another process removed {entry.path} a moment ago.") from error
        header = entry.header
        served = Served(header.digest, header.interface, lambda: self._load(entry), entry.name, entry.version)
        return _Known(served, entry, folder, file, settled)

    def _load(self, entry: Entry) -> Learned:
        inlay = self._read(entry.name, entry.version)
        if inlay.digest != entry.header.digest:  # a version number can be reused after a removal
            raise Replaced(f"Another process replaced {entry.path} before it was read.")
        return inlay.learned_on(self.encoder)

    def _read(self, name: str, version: int | None = None) -> Inlay:
        """Read an inlay that the bank listed a moment ago."""
        try:
            return self.store.load(name, version)
        except UnknownTask as error:
            raise Replaced(str(error)) from error


def _stamp(path: os.PathLike[str]) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
