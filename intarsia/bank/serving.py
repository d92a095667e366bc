"""Task names to the versions that a bank serves.

A look-up asks the file system whether the task's folder has changed since the last one: two calls, however many tasks
the bank holds. It therefore sees at once what other processes learn, restore and remove.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from intarsia.bank import family
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import DamagedInlay, Replaced, UnknownTask
from intarsia.methods import Parent
from intarsia.serve.served import Served
from intarsia.tasks.learned import Learned

Swap = tuple[tuple[str, str], ...]

# Time stamps of files move in steps of some milliseconds: a change right after a look-up may leave the stamp as it is.
UNSETTLED = 50_000_000  # nanoseconds
DAMAGED_SECONDS = 1.0  # for which an unchanged damaged file is not read again


@dataclass(frozen=True)
class _Known:
    """What is kept of a version: not its description, which takes 25 KB."""

    served: Served
    path: Path
    folder: int  # the time stamp of the task's folder
    file: tuple[int, int]  # size and time stamp
    settled: bool
    parents: tuple[Path, ...] = ()  # the files of the inlays on which it is built


class _Damaged(NamedTuple):
    """A file that cannot be used."""

    error: DamagedInlay
    found: float  # when, in the seconds of `time.monotonic`
    path: Path
    changed: tuple[int, int]  # when the file and its folder were changed


Request = tuple[str, int | None, Swap]


class VersionMap:
    """Returns the served version of a task, or a given version of it. Usable from any number of threads."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store, self.encoder = store, encoder
        self.on_replaced: Callable[[str], None] = lambda digest: None  # called with versions that are served no more
        self._known: dict[Request, _Known] = {}
        self._damaged: dict[Request, _Damaged] = {}
        self._parents = family.shared_parents()

    def __call__(self, name: str, version: int | None = None, swap: Swap = ()) -> Served:
        """`swap`: pairs of a parent of the inlay and the task whose inlay takes its place."""
        if (served := self.known(name, version, swap)) is not None:
            return served
        request = name, version, swap
        self._raise_if_damaged(request)
        known = self._known.get(request)
        found = self._look(name, version, swap)
        self._known[request] = found
        if known is not None and version is None and known.served.key != found.served.key:
            self.on_replaced(known.served.key)
        return found.served

    def known(self, name: str, version: int | None = None, swap: Swap = ()) -> Served | None:
        """Return what an earlier look-up found, if it still holds. Reads no file, so threads that must not wait may
        ask."""
        known = self._known.get((name, version, swap))
        return known.served if known is not None and known.settled and self._unchanged(known) else None

    def _raise_if_damaged(self, request: Request) -> None:
        """Raise again what was wrong with a file a moment ago: checking it reads all of it."""
        damaged = self._damaged.get(request)
        if damaged is None:
            return
        with contextlib.suppress(OSError):
            if time.monotonic() - damaged.found < DAMAGED_SECONDS and _changed(damaged.path) == damaged.changed:
                raise type(damaged.error)(str(damaged.error))
        self._damaged.pop(request, None)

    def _unchanged(self, known: _Known) -> bool:
        try:
            changed = os.stat(known.path.parent).st_mtime_ns != known.folder or _stamp(known.path) != known.file
            return not changed and all(map(os.path.exists, known.parents))
        except OSError:
            return False

    def _look(self, name: str, version: int | None, swap: Swap) -> _Known:
        try:
            folder = os.stat(self.store.task_folder(name)).st_mtime_ns
            settled = time.time_ns() - folder > UNSETTLED
        except (OSError, ValueError):  # ValueError: a name with a null character
            folder, settled = 0, False
        entry = self.store.entry(name, version)
        if entry.state != "ok":
            try:
                self._read(name, version)  # raises an error that names the problem and a version to restore
            except DamagedInlay as error:
                with contextlib.suppress(OSError):
                    now = time.monotonic()
                    self._damaged[name, version, swap] = _Damaged(error, now, entry.path, _changed(entry.path))
                raise
            raise Replaced(f"Another process replaced {entry.path}, which was damaged.")
        try:
            file = _stamp(entry.path)
        except OSError as error:
            raise Replaced(f"Another process removed {entry.path} a moment ago.") from error
        header = entry.header
        swapped = family.swapped_parents(self.store, name, header, dict(swap)) if swap else {}
        key = "+".join([header.digest, *(f"{old}={new.digest}" for old, new in sorted(swapped.items()))])
        load = partial(self._load, entry.name, entry.version, entry.path, header.digest, swapped)
        served = Served(key, header.interface, load, entry.name, entry.version)
        if swapped:
            return _Known(
                served, entry.path, folder, file, settled=False
            )  # the new parents' tasks may get newer versions
        family.check_parents(self.store, header, entry.version)
        found = [self.store.find(digest) for digest in header.parents]
        return _Known(
            served, entry.path, folder, file, settled, tuple(above.path for above in found if above is not None)
        )

    def _load(self, name: str, version: int, path: Path, digest: str, swapped: Mapping[str, Parent]) -> Learned:
        inlay = self._read(name, version)
        if inlay.digest != digest:  # a version number can be reused after a removal
            raise Replaced(f"Another process replaced {path} before it was read.")
        return family.learned_on(self.store, inlay, self.encoder, swapped=swapped, loaded=self._parents)

    def _read(self, name: str, version: int | None = None) -> Inlay:
        """Read an inlay that the bank listed a moment ago."""
        try:
            return self.store.load(name, version)
        except UnknownTask as error:
            raise Replaced(str(error)) from error


def _stamp(path: os.PathLike[str]) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _changed(path: Path) -> tuple[int, int]:
    """Return when a file and its folder last changed, in content, permissions or names."""
    return os.stat(path).st_ctime_ns, os.stat(path.parent).st_ctime_ns
