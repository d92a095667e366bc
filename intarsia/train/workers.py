"""Where a queue is trained: in this process, or by workers on other devices and machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from intarsia.train.batches import Batch
    from intarsia.train.runner import Runner


class Workers(Protocol):
    """Trains the batches of a queue elsewhere."""

    def train(self, batches: Sequence[Batch], runner: Runner, *, score_test: bool) -> None:
        """Train the batches; call `runner.done` for each job that ends and `runner.step` for each progress."""


_workers: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def using(workers: Workers | None) -> Iterator[None]:
    """Let these workers train all queues of the block; None: this process."""
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)


def current_workers() -> Workers | None:
    """Return the workers of the block; None: this process trains."""
    return _workers.get()
