"""Giving memory back. The C library keeps what was freed, in pieces that batches of other sizes do not fit into: in ten
minutes of training on a CPU a process grew from 2.5 to 5.8 GB, mostly by it, and went on growing."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's own call for it; other C libraries have none."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found


class MemoryTrim:
    """Returns to the operating system what is free, where that can be done: when called, but only so often."""

    def __init__(self, every: float = 30.0) -> None:
        """`every`: seconds."""
        self.every, self.last = every, time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self.last >= self.every and (trim := _trim()) is not None:
            trim(0)
            self.last = now
