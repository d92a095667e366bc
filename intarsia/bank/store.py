"""The bank's folder: one base, many tasks, every version of each.

    bank.json                    which base all inlays are set into
    inlays/<task>/0001.safetensors, 0002.safetensors …
    work/                        training in progress; not looked at here
    index.sqlite                 a cache of the headers

Files are written once and never changed, so readers need no lock, and a version number is claimed by creating its file.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.bank.catalog import TASK_NAME, Catalog
from intarsia.bank.entry import Entry, Problem
from intarsia.bank.index import Row
from intarsia.bank.inlay import Inlay, InlayHeader, check_content, check_file, encode, read_content, read_inlay
from intarsia.bank.manifest import create_manifest, misfit, read_manifest
from intarsia.errors import BankError, DamagedInlay, Refused, UnknownTask

NAMES_SHOWN = 20


class Store:
    """A bank's folder. Nothing is created until something is written."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manifest = self.folder / "bank.json"
        self._inlays = self.folder / "inlays"
        self._catalog = Catalog(self.folder)
        self._refuse_other_folders()

    @property
    def encoder(self) -> dict[str, Any] | None:
        """The base of this bank, as `bind` was told; None before that."""
        return read_manifest(self._manifest)

    def bind(self, encoder: dict[str, Any]) -> None:
        """Tie the bank to its base, once; afterwards any other base is refused."""
        if not isinstance(encoder.get("fingerprint"), str) or not encoder["fingerprint"]:
            raise Refused(
                f"The bank at {self.folder} cannot be tied to {encoder!r}: it does not say the base's fingerprint. "
                "Give the description of a loaded encoder."
            )
        if self.encoder is None:
            for row in self._catalog.look():  # bank.json may have been lost: the inlays still know their base
                if row.state == "ok":
                    self._refuse_other_base(encoder, dict(InlayHeader.from_json(row.header).encoder))
            create_manifest(self._manifest, encoder)
        self._refuse_other_base(encoder, self.encoder)

    def check_name(self, name: str) -> None:
        """Refuse a name that no task can have; worth asking before training for it."""
        if not TASK_NAME.fullmatch(name):
            raise Refused(
                f"{name!r} cannot be a task's name: 1 to 64 of the letters a-z and A-Z, digits, '-', '_' and '.' were "
                "expected, and no dot at the beginning. Choose another name."
            )
        for other in self._catalog.names():
            if other != name and other.lower() == name.lower():
                raise Refused(
                    f"The bank at {self.folder} already has the task {other!r}, which many disks cannot tell from "
                    f"{name!r}. Use {other!r}, or choose another name."
                )

    def add(self, inlay: Inlay) -> Entry:
        """Keep `inlay` as the newest version of its task."""
        self.check_name(inlay.name)
        parts = encode(inlay)
        self.bind({**inlay.encoder, "parameters": inlay.parameters.get("base", 0)})
        return self._append(inlay.name, parts)

    def entries(self) -> list[Entry]:
        """The newest version of each task, by name; damaged ones are among them and say so in `state`."""
        newest = {row.name: row for row in self._catalog.look()}  # rows come by name and version: the last one stays
        return self._as_entries(list(newest.values()), self.encoder)

    def versions(self, name: str) -> list[Entry]:
        """All versions of a task, oldest first."""
        rows = self._catalog.look(name) if TASK_NAME.fullmatch(name) else []
        if not rows:
            raise self._unknown(name)
        return self._as_entries(rows, self.encoder)

    def entry(self, name: str, version: int | None = None) -> Entry:
        """One version of a task; the newest unless told otherwise."""
        found = self.versions(name)
        if version is None:
            return found[-1]
        for entry in found:
            if entry.version == version:
                return entry
        have = ", ".join(str(entry.version) for entry in found)
        raise UnknownTask(f"The task {name!r} in {self.folder} has no version {version}. Its versions are: {have}.")

    def load(self, name: str, version: int | None = None) -> Inlay:
        """Read an inlay whole, and give it back only if every byte is as it was written."""
        entry = self.entry(name, version)
        try:
            inlay = read_inlay(entry.path)
        except BankError as error:
            self._catalog.mark_damaged(entry.name, entry.version, str(error))
            raise type(error)(f"{error} {self._way_back(entry)}") from error
        self._refuse_misplaced(entry, inlay.encoder)
        return inlay

    def restore(self, name: str, version: int) -> Entry:
        """Make an older version the newest one: the same bytes under a new number."""
        entry = self.entry(name, version)
        content = read_content(entry.path)
        check_content(content, entry.path)
        self._refuse_misplaced(entry, entry.header.encoder)
        return self._append(name, [content])

    def remove(self, name: str, version: int | None = None) -> None:
        """Delete one version, or the task with all its versions."""
        for entry in self.versions(name) if version is None else [self.entry(name, version)]:
            # Oldest first: whoever looks meanwhile still finds the newest.
            try:
                entry.path.unlink(missing_ok=True)
            except OSError as error:
                raise BankError(f"Cannot remove {entry.path}: {error.strerror}. Check who may write there.") from error
        self._catalog.look(name)
        with contextlib.suppress(OSError):  # other versions are left, or another process has just added one
            (self._inlays / name).rmdir()

    def verify(self, rebuild: bool = False) -> list[Problem]:
        """Read every file whole and name all that is wrong; `rebuild` also makes the index anew, from the files."""
        if rebuild:
            self._catalog.forget()
        rows = self._catalog.look(whole=True)
        problems, encoder = [], None
        try:
            encoder = self.encoder
            if encoder is None and rows:
                raise BankError(f"{self._manifest} is missing. It is written again when the next task is learned.")
        except BankError as error:
            problems.append(Problem(self._manifest, str(error)))
        for entry in self._as_entries(rows, encoder):
            try:
                if entry.state != "ok" or encoder is not None:
                    self._refuse_misplaced(entry, entry.header.encoder)
            except BankError as error:
                problems.append(Problem(entry.path, str(error), entry.name, entry.version))
        return problems

    def _append(self, name: str, parts: Sequence[files.Part]) -> Entry:
        """Write a file under the task's next free number. The number is taken only once the file is whole."""
        version = max(self._catalog.versions(name), default=0) + 1
        with files.explained(self._inlays / name, parts):
            files.make_folder(self._inlays)
            files.sweep(self._inlays)
            with files.written(self._inlays, parts) as temporary:
                while True:
                    files.make_folder(self._inlays / name)
                    try:
                        files.place(temporary, self._catalog.path(name, version))
                        break
                    except FileExistsError:
                        version += 1  # another process was faster
                    except FileNotFoundError:
                        if not temporary.exists():
                            raise
                        # Another process has just removed the task and its folder: make the folder again.
        return self.entry(name, version)

    def _as_entries(self, rows: Sequence[Row], encoder: dict[str, Any] | None) -> list[Entry]:
        entries = []
        for row in rows:
            state, reason, path = row.state, row.reason, self.folder / row.file
            if state == "ok" and encoder is not None and row.fingerprint != encoder["fingerprint"]:
                known = InlayHeader.from_json(row.header).encoder
                state, reason = "damaged", self._foreign(path, misfit(dict(known), encoder))
            entries.append(Entry(row.name, row.version, path, row.size, state, reason, row.header))
        return entries

    def _way_back(self, lost: Entry) -> str:
        for entry in reversed(self.versions(lost.name)):
            if entry.version != lost.version and entry.state == "ok":
                with contextlib.suppress(BankError):
                    check_file(entry.path)
                    return f"Version {entry.version} of {lost.name!r} is intact and can be restored."
        return f"No other version of {lost.name!r} is intact."

    def _foreign(self, path: Path, how: str | None) -> str:
        return f"{path} was {how}. Move it to a bank over its own base."

    def _refuse_misplaced(self, entry: Entry, encoder: dict[str, str]) -> None:
        """A whole file may still lie in another task's folder, or come from a bank over another base."""
        if entry.state != "ok":
            raise DamagedInlay(entry.reason)
        base = self.encoder
        how = misfit(dict(encoder), base) if base is not None else None
        if how is not None:
            raise Refused(self._foreign(entry.path, how))

    def _refuse_other_base(self, encoder: dict[str, Any], base: dict[str, Any] | None) -> None:
        how = misfit(encoder, base) if base is not None else None
        if how is not None:
            raise Refused(
                f"The bank at {self.folder} cannot take this: it was {how}. "
                "Use the base that the bank was begun with, or begin another bank."
            )

    def _refuse_other_folders(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise Refused(f"{self.folder} is a file; a bank's folder, or the name of a new one, was expected.")
        if not self.folder.is_dir() or self._manifest.exists() or self._inlays.is_dir():
            return
        names = sorted(path.name for path in self.folder.iterdir())
        foreign = [name for name in names if name != "work" and not name.startswith((".", "index.sqlite"))]
        if foreign:
            raise Refused(
                f"{self.folder} is not a bank: it has no bank.json, but holds {', '.join(foreign[:3])}"
                f"{' …' if len(foreign) > 3 else ''}. A bank, an empty folder or the name of a new one was expected."
            )

    def _unknown(self, name: str) -> UnknownTask:
        names = [entry.name for entry in self.entries()]
        close = difflib.get_close_matches(name, names, n=3)
        meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        more = f" … ({len(names)} in all)" if len(names) > NAMES_SHOWN else ""
        have = f"It has: {', '.join(names[:NAMES_SHOWN])}{more}." if names else "It has no tasks yet: learn one first."
        return UnknownTask(f"The bank at {self.folder} has no task {name!r}.{meant} {have}")
