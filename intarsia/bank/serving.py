"""The versions that a bank serves, and how a predictor loads them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from intarsia.bank.entry import Entry
from intarsia.bank.store import Store
from intarsia.errors import BankError
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks.learned import Learned


class Replaced(BankError):
    """Another process removed or replaced a version before this one could read it: resolve the task again."""


class ServedTasks:
    """Maps task names to their newest versions, and drops replaced versions from the predictor."""

    def __init__(self, store: Store, predictor: Predictor) -> None:
        self.store, self.predictor = store, predictor
        self._digests: dict[str, str] = {}  # task → digest of the version served last
        self._lock = threading.Lock()

    def resolve(self, names: Iterable[str]) -> dict[str, Served]:
        """Return the newest version of each task."""
        return {name: self._resolve(name) for name in dict.fromkeys(names)}

    def _resolve(self, name: str) -> Served:
        entry = self.store.entry(name)
        if entry.state != "ok":
            self.store.load(name)  # raises an error that names the problem and a version to restore
        digest = entry.header.digest
        with self._lock:
            old, self._digests[name] = self._digests.get(name), digest
        if old is not None and old != digest:
            self.predictor.drop(old)
        return Served(digest, entry.header.interface, lambda: self._load(entry))

    def _load(self, entry: Entry) -> Learned:
        try:
            inlay = self.store.load(entry.name, entry.version)
        except BankError as error:
            if entry.path.exists():
                raise
            raise Replaced(f"Another process removed {entry.path} before it was read.") from error
        if inlay.digest != entry.header.digest:  # a version number can be reused after a removal
            raise Replaced(f"Another process replaced {entry.path} before it was read.")
        return inlay.learned
