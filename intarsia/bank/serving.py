"""The versions that a bank serves, and how a predictor loads them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from intarsia.bank.entry import Entry
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.errors import BankError, UnknownTask
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks.learned import Learned


class Replaced(BankError):
    """Another process removed or replaced a version before this one could read it: resolve the task again."""


class ServedTasks:
    """Maps task names to their served versions, and drops replaced versions from the predictor."""

    def __init__(self, store: Store, predictor: Predictor) -> None:
        self.store, self.predictor = store, predictor
        self._digests: dict[str, str] = {}  # task → digest of the version served last
        self._lock = threading.Lock()

    def resolve(self, names: Iterable[str], version: int | None = None) -> dict[str, Served]:
        """Return the served version, or the given one, of each task."""
        return {name: self._resolve(name, version) for name in dict.fromkeys(names)}

    def _resolve(self, name: str, version: int | None) -> Served:
        entry = self.store.entry(name, version)
        if entry.state != "ok":
            self._read(name, version)  # raises an error that names the problem and a version to restore
            raise Replaced(f"Another process replaced {entry.path}, which was damaged.")
        digest = entry.header.digest
        if version is None:
            with self._lock:
                old, self._digests[name] = self._digests.get(name), digest
            if old is not None and old != digest:
                self.predictor.drop(old)
        return Served(digest, entry.header.interface, lambda: self._load(entry))

    def _load(self, entry: Entry) -> Learned:
        inlay = self._read(entry.name, entry.version)
        if inlay.digest != entry.header.digest:  # a version number can be reused after a removal
            raise Replaced(f"Another process replaced {entry.path} before it was read.")
        return inlay.learned

    def _read(self, name: str, version: int | None = None) -> Inlay:
        """Read an inlay that the bank listed a moment ago."""
        try:
            return self.store.load(name, version)
        except UnknownTask as error:
            raise Replaced(str(error)) from error
