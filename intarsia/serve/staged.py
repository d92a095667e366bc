"""Inlays in host memory, ready to be copied to the device: the tier between the slots and the files."""

from __future__ import annotations

import threading
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import Slots
from intarsia.methods.compose import direct_parents
from intarsia.tasks.learned import Learned


@dataclass(frozen=True, eq=False)
class Staged:
    """A task in host memory. `row` holds its method's tensors as one row of a slot table."""

    learned: Learned  # without tensors, unless the task changes the base
    row: Tensor | None  # None: the task changes the base, and `learned` holds its tensors
    head_tensors: Mapping[str, Tensor]
    bytes: int
    parents: Mapping[str, Staged] = field(default_factory=dict)  # that are parts of its method, by digest


Get = Callable[[str, Callable[[], "Staged"]], "Staged"]  # a staged task by its key, loaded if needed


def stage(learned: Learned, encoder: Encoder, get: Get = lambda _, load: load()) -> Staged:
    """Check that a task runs on this base, and lay out its tensors for a slot; `get` keeps the inlays it is built on.

    An inlay on which several tasks are built is read once, and only if it is in no memory.
    """
    learned.method.check(encoder.shape)

    def load(digest: str) -> Staged:
        found = learned.parents[digest]
        return stage(replace(found, parents=ChainMap({}, found.parents, learned.parents)), encoder, get)  # type: ignore[arg-type]

    digests = dict.fromkeys(part.digest for part in direct_parents(learned.method))
    above = {digest: get(digest, partial(load, digest)) for digest in digests}
    tensors = learned.tensors.values()
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    head = learned.head_tensors
    if learned.method.changes_base:
        return Staged(learned, None, head, size, above)
    row = Slots(learned.method.tensors(encoder.shape), 0).row(learned.method_tensors).cpu()  # a run leaves them there
    if encoder.device.type == "cuda":
        row = row.pin_memory()
    bare = Learned(learned.method, learned.head, learned.task_kind, {})
    return Staged(bare, row, {name: tensor.clone() for name, tensor in head.items()}, size, above)


class HostTier:
    """Staged tasks by key, least recently used first, within a limit of bytes. Usable from any number of threads."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self.hits = self.loads = 0
        self._staged: OrderedDict[str, Staged] = OrderedDict()
        self._loading: dict[str, Future[Staged]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._staged)

    def peek(self, key: str) -> Staged | None:
        """Return a task, if it is here, and mark it as the most recently used."""
        with self._lock:
            return self._touch(key)

    def get(self, key: str, load: Callable[[], Staged]) -> Staged:
        """Return a task, loading it if needed. Simultaneous loads of one task are one load."""
        with self._lock:
            if (found := self._touch(key)) is not None:
                self.hits += 1
                return found
            loading = self._loading.get(key)
            first = loading is None
            if loading is None:
                loading = self._loading[key] = Future()
        if not first:
            return loading.result()
        try:
            staged = load()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            loading.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self.loads += 1
            self._put(key, staged)
        loading.set_result(staged)
        return staged

    def drop(self, key: str) -> None:
        with self._lock:
            if (found := self._staged.pop(key, None)) is not None:
                self.bytes -= found.bytes

    def retire(self, key: str) -> None:
        """Mark a task as the least recently used."""
        with self._lock:
            if key in self._staged:
                self._staged.move_to_end(key, last=False)

    def _touch(self, key: str) -> Staged | None:
        """Return a task, if it is here, as the most recently used; the inlays it is built on leave after it."""
        found = self._staged.get(key)
        if found is not None:
            self._staged.move_to_end(key)
            for digest in found.parents:
                self._touch(digest)
        return found

    def _put(self, key: str, staged: Staged) -> None:
        self._staged[key] = staged
        self.bytes += staged.bytes
        self._touch(key)
        while self.bytes > self.limit and (oldest := next((other for other in self._staged if other != key), None)):
            self.bytes -= self._staged.pop(oldest).bytes
