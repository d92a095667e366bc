"""The bank's folder: one base, many tasks, all versions of each task.

    bank.json                    the description of the base
    inlays/<task>/0001.safetensors, 0002.safetensors …
    inlays/<task>/0002-<digest>.held    an empty file: version 2 is kept, but not served
    inlays/.composed             grows with each added version that is built on others: see `Catalog.relatives`
    work/                        checkpoints of training runs; this module does not read them
    index.sqlite                 a cache of the headers

A file never changes after it is written, so readers need no lock. Creating a version's file claims its number. The
newest version that is not held back is served.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from intarsia import files
from intarsia.bank import family
from intarsia.bank.catalog import TASK_NAME, UNREADABLE, Catalog
from intarsia.bank.description import FIELDS
from intarsia.bank.entry import Entry, Problem
from intarsia.bank.index import IndexRow
from intarsia.bank.inlay import Inlay, InlayHeader, check_file, decode, encode, read_content, read_header, read_inlay
from intarsia.bank.manifest import create_manifest, misfit, read_manifest
from intarsia.errors import (
    BankError,
    DamagedInlay,
    InvalidName,
    Misplaced,
    MissingParent,
    Refused,
    UnknownTask,
    did_you_mean,
)

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.tasks.learned import Learned

NAMES_SHOWN = 20
NAMES_COMPARED = 200  # with an unknown one: the answer takes the same time in banks of any size
LONGEST_NAME = 64
STATES: dict[type[BankError], str] = {Misplaced: "misplaced", MissingParent: "incomplete"}  # others: "damaged"

P = ParamSpec("P")
R = TypeVar("R")


def _explained(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Turn an `OSError` of a method that stores nothing, or that says itself what it stored, into a `StorageError`."""

    @functools.wraps(method)
    def call(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with files.explained(store.folder, doing="use", outcome="The stored tasks were not changed."):
            return method(store, *args, **kwargs)

    return call


class Store:
    """A bank's folder. Opening it creates no files."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manifest = self.folder / "bank.json"
        self._inlays = self.folder / "inlays"
        self._catalog = Catalog(self.folder)
        self._refuse_other_folders()

    @property
    def exists(self) -> bool:
        """Whether the folder holds a bank, or at least a training run that was interrupted before its first task."""
        return any(path.exists() for path in (self._manifest, self._inlays, self.folder / "work"))

    @property
    def encoder(self) -> dict[str, Any] | None:
        """The description of the bank's base, as given to `bind`; None before the first `bind`."""
        return read_manifest(self._manifest)

    @_explained
    def bind(self, encoder: dict[str, Any]) -> None:
        """Record the bank's base at the first call; later calls raise `Refused` for another base."""
        if not isinstance(encoder.get("fingerprint"), str) or not encoder["fingerprint"]:
            raise Refused(
                f"The bank at {self.folder} cannot use the base {encoder!r}: the fingerprint is missing. "
                "Give the description of a loaded encoder."
            )
        self.check_base(encoder)
        if self.encoder is None:
            create_manifest(self._manifest, encoder)
            self.check_base(encoder)  # another process may have written it first

    def check_base(self, encoder: dict[str, Any]) -> None:
        """Raise `Refused` unless `encoder` describes the bank's base: that of bank.json or, if it has been lost, that
        of an inlay."""
        base = self.encoder or self.stated_base(encoder)
        difference = misfit(encoder, base) if base is not None else None
        if difference is not None:
            raise Refused(
                f"The bank at {self.folder} refuses this inlay or encoder: it was {difference}. "
                "Use the bank's own base, or create another bank."
            )

    def stated_base(self, preferred: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the base that most inlays state, for a bank that has lost its bank.json; `preferred`, if any inlay
        states it; None without inlays."""
        rows = [row for row in self._catalog.look() if row.state == "ok"]
        stated = Counter(row.fingerprint for row in rows)
        if preferred is not None and preferred.get("fingerprint") in stated:
            chosen = preferred["fingerprint"]
        else:
            chosen = max(stated, key=lambda fingerprint: stated[fingerprint], default=None)
        for row in rows:
            if row.fingerprint == chosen:
                with contextlib.suppress(DamagedInlay):
                    return dict(InlayHeader.from_json(row.header).encoder)
        return None

    @_explained
    def check_writable(self, name: str) -> None:
        """Raise unless this user may add a version of this task. Call it before training, to fail early."""
        for folder in (self._inlays / name, self._inlays, self.folder / "work"):
            files.check_writable(folder)

    @_explained
    def check_name(self, name: str) -> None:
        """Raise `Refused` if a task cannot have this name. Call it before training, to fail early."""
        if not isinstance(name, str) or not TASK_NAME.fullmatch(name):
            raise InvalidName(
                f"{name!r} is not a valid task name. Use 1 to 64 characters: letters a-z and A-Z, digits, '-', '_' and "
                "'.'; the first character must not be '.'."
            )
        if (other := self._catalog.spelled_otherwise(name)) is not None:
            raise Refused(
                f"The bank at {self.folder} already has the task {other!r}; file systems that ignore case cannot "
                f"distinguish it from {name!r}. Use {other!r}, or choose another name."
            )

    @_explained
    def add(self, inlay: Inlay, *, encoder: Encoder | None = None, serve: bool = True) -> Entry:
        """Store `inlay` as the newest version of its task. `serve=False`: the bank goes on serving the older one. With
        `encoder`, the bank's base, the tensors must be those that method and head have on this base."""
        self.check_name(inlay.name)
        parts = encode(inlay)
        family.check_parents(self, inlay)
        inlay.check() if encoder is None else family.learned_on(self, inlay, encoder)
        self.bind({**inlay.encoder, "parameters": inlay.parameters.get("base", 0)})
        return self._append(inlay.name, parts, serve=serve)

    @_explained
    def add_content(self, name: str, content: bytes, *, serve: bool = True) -> Entry:
        """Store the content of an inlay's file, which was checked, as the newest version of its task."""
        return self._append(name, [content], serve=serve)

    @_explained
    def has(self, name: str) -> bool:
        """Return whether the bank has a version of this task."""
        return bool(self._catalog.versions(name))

    def task_folder(self, name: str) -> Path:
        """Return the folder of a task's versions."""
        return self._inlays / name

    @_explained
    def entries(self) -> list[Entry]:
        """Return the served version of each task, sorted by name, including damaged ones (see `Entry.state`)."""
        by_task: dict[str, list[IndexRow]] = {}
        for row in self._catalog.look():
            by_task.setdefault(row.name, []).append(row)
        return self._as_entries([self._served(rows) for rows in by_task.values()], self.encoder)

    @_explained
    def versions(self, name: str) -> list[Entry]:
        """Return all versions of a task, oldest first."""
        rows = self._catalog.look(name) if TASK_NAME.fullmatch(name) else []
        if not rows:
            raise self._unknown(name)
        return self._as_entries(rows, self.encoder)

    @_explained
    def entry(self, name: str, version: int | None = None) -> Entry:
        """Return one version of a task; by default the served one, which is the newest that is not held back."""
        if not isinstance(name, str):
            raise UnknownTask(f"expected the name of a task, found {name!r:.60} ({type(name).__name__}).")
        if version is not None and not isinstance(version, Integral):
            raise UnknownTask(
                f"expected the number of a version, such as 2, found {version!r:.60} ({type(version).__name__})."
            )
        found = self.versions(name)
        if version is None:
            return next((entry for entry in reversed(found) if not entry.held), found[-1])
        for entry in found:
            if entry.version == version:
                return entry
        have = ", ".join(str(entry.version) for entry in found)
        raise UnknownTask(f"The task {name!r} in {self.folder} has no version {version}. Its versions are: {have}.")

    @_explained
    def load(self, name: str, version: int | None = None) -> Inlay:
        """Return an inlay after checking the digest of its whole file."""
        entry = self.entry(name, version)
        if entry.version == UNREADABLE:
            raise DamagedInlay(entry.reason)
        try:
            self._catalog.check_inside(entry.path)
            inlay = read_inlay(entry.path)
            inlay.check(entry.path)
            self._check_index(entry, inlay)
        except BankError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # removed, not damaged: a new file may follow
                raise UnknownTask(f"Another process removed {entry.path} before it was read.") from error
            self._catalog.mark_damaged(entry.name, entry.version, str(error))
            raise type(error)(f"{error} {self._recovery_hint(entry)}") from error
        self._refuse_misplaced(entry, inlay.encoder)
        return inlay

    def _check_index(self, entry: Entry, inlay: Inlay) -> None:
        """Raise if the index describes this file otherwise than the file itself; answers would mix the two."""
        if entry.state != "ok" or entry.header.digest != inlay.digest:
            return
        if any(getattr(entry.header, name) != getattr(inlay, name) for name in FIELDS):
            self._catalog.forget()
            raise BankError(f"The index of {self.folder} described {entry.path} wrongly. It was cleared: try again.")

    @_explained
    def find(self, digest: str) -> Entry | None:
        """Return the oldest intact version with this digest, if there is one."""
        row = self._catalog.find(digest)
        return None if row is None else self._as_entries([row], self.encoder)[0]

    @_explained
    def mentioning(self, digests: Collection[str]) -> list[Entry]:
        """Return all intact versions that have one of these digests, or have it in their description."""
        rows = self._catalog.look() if digests else []
        return self._as_entries([r for r in rows if r.state == "ok" and any(d in r.header for d in digests)], None)

    @_explained
    def relatives(self, digests: Collection[str]) -> list[Entry]:
        """Return all intact versions that have one of these digests or are built on one of them, in any bank in the
        same time."""
        return self._as_entries(self._catalog.relatives(digests) if digests else [], None)

    @_explained
    def restore(self, name: str, version: int) -> Entry:
        """Copy a version to a new version number, which makes it the newest and the served one."""
        entry = self.entry(name, version)
        content = read_content(entry.path)
        decode(content, entry.path).check(entry.path)
        self._refuse_misplaced(entry, entry.header.encoder)
        family.check_parents(self, entry.header, version)
        return self._append(name, [content])

    @_explained
    def remove(self, name: str, version: int | None = None, *, force: bool = False) -> None:
        """Delete one version or, by default, all versions of a task. `force`: even if other inlays are built on it."""
        removed: list[str] = []
        entries = self.versions(name) if version is None else [self.entry(name, version)]
        if not force:
            family.check_removal(self, entries)
        for entry in entries:
            # Oldest first: concurrent readers still find the newest version.
            stays = f"Removed before it: version {', '.join(removed)}." if removed else "Nothing was removed."
            with files.explained(entry.path, doing="remove", outcome=stays):
                entry.path.unlink(missing_ok=True)
            removed.append(str(entry.version))
            with contextlib.suppress(OSError):  # a mark without its version has no effect
                for mark in entry.path.parent.glob(f"{entry.path.stem}-*.held"):
                    mark.unlink()
        # What follows is tidying: the index, and the folder unless another process has just added a version.
        with contextlib.suppress(OSError):
            self._catalog.look(name)
        with contextlib.suppress(OSError):
            self._catalog.remove_folder(name)

    @_explained
    def verify(self, rebuild: bool = False, base: Encoder | None = None) -> list[Problem]:
        """Check the whole content of every file and return the problems. `rebuild` also rebuilds the index. With
        `base`, the bank's base, the tensors must be those that method and head have on it. An inlay whose
        parent is lost is "incomplete"."""
        if rebuild:
            self._catalog.forget()
        rows = self._catalog.look(whole=True)
        problems, encoder = [], None
        loaded: dict[str, Learned] = {}  # parents: each is read once
        try:
            encoder = self.encoder
            if encoder is None and rows:
                raise BankError(f"{self._manifest} is missing. Learning the next task writes it again.")
        except BankError as error:
            problems.append(Problem(self._manifest, str(error)))
        for entry in self._as_entries(rows, encoder):
            try:
                if entry.state != "ok" or encoder is not None:
                    self._refuse_misplaced(entry, entry.header.encoder)
                family.check_parents(self, entry.header, entry.version)
                if base is not None:
                    family.learned_on(self, read_inlay(entry.path), base, loaded=loaded)
            except BankError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue  # another process has just removed it
                state = STATES.get(type(error), "damaged")
                problems.append(Problem(entry.path, str(error), entry.name, entry.version, state))
        return problems

    def _append(self, name: str, parts: Sequence[files.Chunk], *, serve: bool = True) -> Entry:
        """Write a file under the task's next free version number. The file gets its number only when complete.

        The mark of a version that is not served comes before its file, so nothing serves it meanwhile. A mark without
        its file has no effect.
        """
        with files.explained(self._inlays / name, parts, outcome="No version was added."):
            version = max(self._catalog.versions(name), default=0) + 1
            files.make_folder(self._inlays)
            if self._catalog.sweepable:
                files.sweep(self._inlays)
            with files.written(self._inlays, parts) as temporary:
                header = read_header(temporary)  # now: another process may remove the version as soon as it is placed
                with self._catalog.adding_composed() if header.parents else contextlib.nullcontext():
                    version, path = self._place(temporary, name, version, None if serve else header.digest)
        with contextlib.suppress(OSError):  # only the index, which the next look brings up to date
            self._catalog.added(name)
            self._catalog.look(name)
        return Entry(name, version, path, header.bytes, "ok", "", header.to_json(), held=not serve)

    def _place(self, temporary: Path, name: str, version: int, held: str | None) -> tuple[int, Path]:
        """Give a written file the first free number from `version` on; return the number and the path. `held` is the
        digest of a version that is not served."""
        while True:
            files.make_folder(self._inlays / name)
            path = self._catalog.path(name, version)
            mark = None if held is None else self._catalog.mark_path(name, version, held)
            try:
                if mark is not None:
                    mark.touch()
                files.place(temporary, path)  # also syncs the folder
                return version, path
            except FileExistsError:
                if mark is not None:
                    mark.unlink(missing_ok=True)
                version += 1  # another process has just taken this number
            except FileNotFoundError:
                if not temporary.exists():
                    raise
                # Another process has just removed the task's folder: create it again.

    def _as_entries(self, rows: Sequence[IndexRow], encoder: dict[str, Any] | None) -> list[Entry]:
        entries = []
        for row in rows:
            state, reason, path = row.state, row.reason, self._catalog.path(row.name, row.version)
            if state == "ok" and encoder is not None and row.fingerprint != encoder["fingerprint"]:
                try:
                    known = dict(InlayHeader.from_json(row.header).encoder)
                    state, reason = "misplaced", self._foreign(path, misfit(known, encoder))
                except DamagedInlay as error:
                    state, reason = "damaged", str(error)
            held = self._catalog.is_held(row)
            entries.append(Entry(row.name, row.version, path, row.size, state, reason, row.header, held))
        return entries

    def _served(self, rows: Sequence[IndexRow]) -> IndexRow:
        """Return the served one of a task's rows, which are sorted by version."""
        return next((row for row in reversed(rows) if not self._catalog.is_held(row)), rows[-1])

    def _recovery_hint(self, lost: Entry) -> str:
        for entry in reversed(self.versions(lost.name)):
            if entry.version != lost.version and entry.state == "ok":
                with contextlib.suppress(BankError):
                    check_file(entry.path)
                    return f"Version {entry.version} of {lost.name!r} is intact and can be restored."
        return f"No other version of {lost.name!r} is intact."

    def _foreign(self, path: Path, difference: str | None) -> str:
        return f"{path} was {difference}. Move it to a bank over its own base."

    def _refuse_misplaced(self, entry: Entry, encoder: dict[str, str]) -> None:
        """Raise if the file is damaged, is in another task's folder, or was made for another base."""
        if entry.state != "ok":
            raise (Misplaced if entry.state == "misplaced" else DamagedInlay)(entry.reason)
        base = self.encoder
        difference = misfit(dict(encoder), base) if base is not None else None
        if difference is not None:
            raise Misplaced(self._foreign(entry.path, difference))

    @_explained
    def _refuse_other_folders(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise Refused(f"{self.folder} is a file; expected a bank's folder or the name of a new folder.")
        if not self.folder.is_dir():
            return
        names = sorted(
            path.name for path in self.folder.iterdir()
        )  # one look: another process may be creating the bank
        if "bank.json" in names or "inlays" in names:
            return
        foreign = [name for name in names if name != "work" and not name.startswith((".", "index.sqlite"))]
        if foreign:
            raise Refused(
                f"{self.folder} is not a bank: it has no bank.json, but holds {', '.join(foreign[:3])}"
                f"{' …' if len(foreign) > 3 else ''}. Expected a bank, an empty folder or the name of a new folder."
            )

    def _unknown(self, name: str) -> UnknownTask:
        near, count = self._catalog.names_near(name, NAMES_COMPARED)
        names = [other for other in near if other != name]  # a removed task may have left its folder
        meant = did_you_mean(name, names) if len(name) <= LONGEST_NAME else ""
        more = f" … ({count} in total)" if count > NAMES_SHOWN else ""
        have = f"It has: {', '.join(names[:NAMES_SHOWN])}{more}." if names else "It has no tasks yet: learn one first."
        shown = repr(name) if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]!r}…"
        return UnknownTask(f"The bank at {self.folder} has no task {shown}.{meant or ' ' + have}")
