"""The catalog: the inlay files that a bank's folder holds now, with their headers.

The folder is the source of truth. Every lookup compares the folder's listing with the index and opens only new or
changed files. A lookup therefore sees files that other processes add or remove, and costs one directory listing when
nothing has changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from intarsia.bank.container import damaged
from intarsia.bank.index import Index, IndexRow, Key
from intarsia.bank.inlay import check_file, read_header
from intarsia.bank.usable import usable_fault
from intarsia.errors import BankError, Misplaced

TASK_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
VERSION_FILE = re.compile(r"(\d{4,})\.safetensors")
MARK_FILE = re.compile(r"(\d{4,})-([0-9a-f]{12})\.held")


COMPOSED = ".composed"  # in `inlays`: grows with each added version that is built on others
UNREADABLE = 0  # the version of a task folder that cannot be read


class Stamp(NamedTuple):
    size: int
    mtime_ns: int


def file_name(version: int) -> str:
    return f"{version:04d}.safetensors"


def mark_name(version: int, digest: str) -> str:
    """Return the name of the file that marks a version as held back. The digest ties it to one content, because the
    number of a removed version is used again."""
    return f"{version:04d}-{digest[:12]}.held"


class Catalog:
    """The files of one bank; usable from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inlays = folder / "inlays"
        self._index: Index | None = None
        self._marks: dict[str, frozenset[tuple[int, str]]] = {}  # task → (version, digest) of its marks, when last read
        self._names: dict[str, set[str]] = {}  # lower case → the names of tasks, when last listed
        self._sorted: list[str] | None = None  # these names in order; None: to be made from them
        self._listed_at: int | None = None
        self.sweepable = True  # others changed the folder: killed processes may have left files behind
        self._composed_file = self._inlays / COMPOSED
        self._composed_seen: Stamp | None = None  # the stamp of that file before the last listing of the whole bank
        self._lock = threading.Lock()

    def path(self, name: str, version: int) -> Path:
        folder = self._inlays / name
        return folder if version == UNREADABLE else folder / file_name(version)

    def mark_path(self, name: str, version: int, digest: str) -> Path:
        return self._inlays / name / mark_name(version, digest)

    def is_held(self, row: IndexRow) -> bool:
        """Return whether a row of the last lookup is marked as held back; a damaged file is known by its number."""
        marks = self._marks.get(row.name, frozenset())
        return any(
            version == row.version and (row.state != "ok" or row.digest[:12] == digest) for version, digest in marks
        )

    def look(self, name: str | None = None, *, whole: bool = False) -> list[IndexRow]:
        """Return the rows of one task or of all, sorted by name and version. `whole` checks every file's digest."""
        with self._lock:
            index = self._opened()
            composed = self._composed_stamp() if name is None else None
            stamps = self._listing(name)
            known = index.rows if name is None else index.of(name)
            put: list[IndexRow] = []
            gone = set(known.keys() - stamps.keys())
            for key, stamp in stamps.items():
                row = known.get(key)
                if row is not None and not whole and row.state == "ok" and stamp == (row.size, row.mtime_ns):
                    continue
                # Intarsia never changes a written file, so a changed file is suspect: check all of its bytes. Check a
                # damaged file again at every lookup, so that a repaired file counts as intact at once.
                found = self._describe(key, stamp, whole=whole or row is not None)
                if found is None:
                    gone.add(key)
                elif found != row:
                    put.append(found)
            index.update(put, gone)
            if name is None:
                self._composed_seen = composed
            return sorted(index.rows[key] for key in stamps if key in index.rows)

    def find(self, digest: str) -> IndexRow | None:
        """Return the oldest intact row with this digest. It costs one listing of its task's folder, or of the whole
        bank if the file is not where it was."""
        with self._lock:
            names = {name for name, _ in self._opened().with_digest(digest)}
        for name in (*sorted(names), None):
            rows = [row for row in self.look(name) if row.digest == digest and row.state == "ok"]
            if rows:
                return rows[0]
        return None

    def relatives(self, digests: Collection[str]) -> list[IndexRow]:
        """Return the intact rows that have one of these digests or are built on one of them. It costs a listing of the
        folders of these rows, and of the whole bank only if some process has added a composed version since the last
        one. A composed file that was copied in by hand counts from the next listing of the whole bank."""
        if self._composed_seen is None or self._composed_seen != self._composed_stamp():
            self.look()
        with self._lock:
            index = self._opened()
            found = index.built_on(digests).union(*(index.with_digest(digest) for digest in digests))
        rows = [row for name in sorted({name for name, _ in found}) for row in self.look(name) if row.state == "ok"]
        return [row for row in rows if any(digest in row.header for digest in digests)]

    @contextlib.contextmanager
    def adding_composed(self) -> Iterator[None]:
        """Tell all processes that a version that is built on others is added: before, in case this process dies, and
        after, for those that listed the bank in between."""
        self._grow_composed_file()
        yield
        with contextlib.suppress(OSError):  # the version is stored
            self._grow_composed_file()

    def _grow_composed_file(self) -> None:
        with self._composed_file.open("ab") as file:
            file.write(b"+")

    def _composed_stamp(self) -> Stamp:
        try:
            status = self._composed_file.stat()
        except OSError:
            return Stamp(0, 0)
        return Stamp(status.st_size, status.st_mtime_ns)

    def mark_damaged(self, name: str, version: int, reason: str) -> None:
        with self._lock:
            index = self._opened()
            row = index.rows.get((name, version))
            if row is not None:
                index.update([row._replace(state="damaged", reason=reason)])

    def forget(self) -> None:
        """Clear the index, so that the next lookup opens every file."""
        with self._lock:
            self._opened().clear()

    def names(self) -> list[str]:
        """Return the names of the task folders, as the file system spells them."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._inlays) as folders:
            return sorted(entry.name for entry in folders if TASK_NAME.fullmatch(entry.name) and entry.is_dir())
        return []

    def spelled_otherwise(self, name: str) -> str | None:
        """Return a task whose name differs from `name` in case only, which some file systems cannot distinguish.

        The names are listed again only if the folder has changed since: other tasks cost nothing.
        """
        with self._lock:
            self._list_names()
            others = self._names.get(name.lower(), set()) - {name}
        return next(iter(sorted(others)), None)

    def names_near(self, name: str, most: int) -> tuple[list[str], int]:
        """Return at most `most` names of tasks around the place of `name` in the alphabet, and the number of all. Names
        are listed again only if the folder has changed since."""
        with self._lock:
            self._list_names()
            if self._sorted is None:
                self._sorted = sorted(other for spelled in self._names.values() for other in spelled)
            first = bisect_left(self._sorted, name) - most // 2
            first = max(0, min(first, len(self._sorted) - most))
            return self._sorted[first : first + most], len(self._sorted)

    def _list_names(self) -> None:
        changed = self._changed()
        if changed is None or changed != self._listed_at:
            self._names, self._sorted = {}, None
            for other in self.names():
                self._names.setdefault(other.lower(), set()).add(other)
            self._listed_at, self.sweepable = changed, True

    def added(self, name: str) -> None:
        """Note that this process has just added a version, so that its own change needs no new listing."""
        with self._lock:
            if self._listed_at is not None:
                self._names.setdefault(name.lower(), set()).add(name)
                self._sorted = None
                self._listed_at, self.sweepable = self._changed(), False

    def remove_folder(self, name: str) -> None:
        """Remove the empty folder of a task: if nothing else has changed, this needs no new listing either."""
        with self._lock:
            current = self._listed_at is not None and self._changed() == self._listed_at
            (self._inlays / name).rmdir()
            if current:
                self._names.get(name.lower(), set()).discard(name)
                self._sorted = None
                self._listed_at = self._changed()

    def _changed(self) -> int | None:
        """Return when the folder of the tasks last changed, or None if there is none."""
        try:
            return os.stat(self._inlays).st_mtime_ns
        except OSError:
            return None

    def check_inside(self, path: Path) -> None:
        """Raise if a task's folder or file is a link that leads out of the bank, which reads only its own files."""
        for place in (path, *([path.parent] if path.parent != self._inlays else [])):
            if place.is_symlink() and not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(self._inlays)):
                raise BankError(
                    f"{place} is a link that leads out of the bank. Replace it by the file or folder itself."
                )

    def versions(self, name: str) -> list[int]:
        return sorted(version for _, version in self._listing(name))

    def _opened(self) -> Index:
        if self._index is None:
            self._index = Index(self.folder / "index.sqlite")
        return self._index

    def _listing(self, name: str | None) -> dict[Key, Stamp]:
        """Return the version files with their stamps. A folder that cannot be read has the version `UNREADABLE`."""
        stamps: dict[Key, Stamp] = {}
        for task in self.names() if name is None else [name]:
            marks = set()
            try:
                entries = self._entries(task)
            except FileNotFoundError:  # another process may remove tasks and files during the listing
                entries = []
            except (OSError, BankError):
                stamps[task, UNREADABLE], entries = Stamp(0, 0), []
            for entry in entries:
                if mark := MARK_FILE.fullmatch(entry.name):
                    marks.add((int(mark[1]), mark[2]))
                match = VERSION_FILE.fullmatch(entry.name)
                if match is None or entry.name != file_name(int(match[1])):
                    continue
                try:
                    status = entry.stat()
                    stamps[task, int(match[1])] = Stamp(status.st_size, status.st_mtime_ns)
                except FileNotFoundError:
                    continue
                except OSError:  # a loop of links: reading the file says so
                    stamps[task, int(match[1])] = Stamp(0, 0)
            self._marks[task] = frozenset(marks)
        return stamps

    def _entries(self, task: str) -> list[os.DirEntry[str]]:
        self.check_inside(self._inlays / task)
        with os.scandir(self._inlays / task) as entries:
            return list(entries)

    def _describe(self, key: Key, stamp: Stamp, *, whole: bool) -> IndexRow | None:
        """Return the row of one file; None if another process has just removed the file."""
        path = self.path(*key)
        digest = fingerprint = header_json = reason = ""
        state = "ok"
        try:
            self.check_inside(path)
            if key[1] == UNREADABLE:
                self._entries(key[0])
                raise BankError(f"{path} could not be listed a moment ago, and can be now. Try again.")
            header = check_file(path, finite=True) if whole else read_header(path)
            digest, fingerprint = header.digest, str(header.encoder.get("fingerprint", ""))
            header_json = header.to_json()
            if header.name != key[0]:
                raise Misplaced(
                    f"{path} holds the task {header.name!r}, but is in the folder of {key[0]!r}. "
                    f"Move it to the folder {header.name!r}."
                )
            if (fault := usable_fault(header, header.layout)) is not None:
                raise damaged(path, fault)
        except BankError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            reason, state = str(error), "misplaced" if isinstance(error, Misplaced) else "damaged"
        except OSError as error:
            state = "damaged"
            reason = f"{path} cannot be read: {error.strerror or error}. Expected a folder with read permission."
        file = path.relative_to(self.folder).as_posix()
        return IndexRow(*key, file, *stamp, digest, fingerprint, header_json, state, reason)
