"""A task that a predictor can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.tasks.learned import Interface, Learned


@dataclass(frozen=True)
class Served:
    """One version of a task: its key, its interface, and a function that loads its tensors.

    Equal keys mean equal tensors; the bank uses the inlay's digest. The predictor calls `load` if the task is not
    resident. Every request carries its own `load`, so a call uses the same version from start to end, even if a new
    version arrives meanwhile.
    """

    key: str
    interface: Interface
    load: Callable[[], Learned]
