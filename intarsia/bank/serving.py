"""Which version of each task the bank serves, and how a predictor reads it."""

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
    """A version that was about to be read has been removed or replaced: ask the bank again which one it serves."""


class ServedTasks:
    """Names → the newest versions. New versions are picked up, and those they replace leave the predictor."""

    def __init__(self, store: Store, predictor: Predictor) -> None:
        self.store, self.predictor = store, predictor
        self._digests: dict[str, str] = {}  # of the version last served, by task
        self._lock = threading.Lock()

    def resolve(self, names: Iterable[str]) -> dict[str, Served]:
        """The served version of each task."""
        return {name: self._resolve(name) for name in dict.fromkeys(names)}

    def _resolve(self, name: str) -> Served:
        entry = self.store.entry(name)
        if entry.state != "ok":
            self.store.load(name)  # raises: says what is wrong, and which version can be restored
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
            raise Replaced(f"{entry.path} was removed while it was about to be read.") from error
        if inlay.digest != entry.header.digest:  # a version number may be used again after a removal
            raise Replaced(f"{entry.path} was replaced while it was about to be read.")
        return inlay.learned
