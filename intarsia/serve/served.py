"""A task that can be served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.tasks.learned import Interface, Learned


@dataclass(frozen=True)
class Served:
    """One version of a task: its key, its interface, and a function that loads its tensors.

    Equal keys mean equal tensors; the bank uses the inlay's digest. `load` is called if the task is not in memory.
    Every request carries its own `load`, so a call uses the same version from start to end, even if a new version
    arrives meanwhile.
    """

    key: str
    interface: Interface
    load: Callable[[], Learned]
    name: str = ""
    version: int | None = None

    @property
    def kind(self) -> str:
        return self.interface.task_kind.kind
