"""Returning freed memory to the operating system.

The C library keeps freed memory in pieces that batches of other sizes do not fit into. In ten minutes of training on a
CPU, mostly for this reason, a process grew from 2.5 to 5.8 GB and kept growing.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None for other C libraries, which have no equivalent."""
    try:
        malloc_trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return malloc_trim


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for `mallopt`


@cache
def keep_freed_memory() -> None:
    """Keep up to 256 MB of freed memory for the next passes, until `MemoryTrim` runs.

    By default the C library returns a freed tensor of a few MB at once, and the next tensor of this size costs a page
    fault for every 4 kB: an eighth of the time of a float32 pass, and a fifth of an int8 pass.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    mallopt(_MMAP_THRESHOLD, 32 << 20)
    mallopt(_TRIM_THRESHOLD, 256 << 20)


GARBAGE_THRESHOLDS = 50_000, 20, 100  # new objects; the times that younger generations are looked through


def settle() -> None:
    """Prepare a process that will answer for a long time, after it has loaded everything.

    The garbage collector then leaves the objects of the libraries and the base alone: going through them took up to
    0.2 s on a slow host, in the middle of a request. It also looks for cyclic garbage less often: requests
    that are answered or refused leave none, and while many wait, each look would hold up all of them.
    """
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


class MemoryTrim:
    """A callable that returns free memory to the operating system, at most once per interval."""

    def __init__(self, every: float = 30.0) -> None:
        """`every`: the interval in seconds."""
        self.every, self.last = every, time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self.last >= self.every and (trim := _trim()) is not None:
            trim(0)
            self.last = now
