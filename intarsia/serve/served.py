"""A task that can be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.tasks.learned import Interface, Learned


@dataclass(frozen=True)
class Served:
    """A task as a predictor and its callers know it.

    Equal keys mean equal tensors: the bank uses an inlay's digest. `load` reads the tensors; the predictor calls it
    when the task is not resident. Because every request carries its own `load`, a call that began before a new version
    arrived, or before the task was removed, still ends with the version that it began with.
    """

    key: str
    interface: Interface
    load: Callable[[], Learned]
