"""How many threads compute each operation of a pass on a CPU.

Waking the other threads takes about 40 µs. Most operations of a small pass take less on one thread. A pass without
gradients therefore runs on one thread, except its large products by oneDNN; a large pass runs on all threads, except
its small products. The number is set in the OpenMP library and in MKL, for the calling thread alone:
`torch.set_num_threads` would also count for every thread that starts meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

LARGE = 4e7  # floating-point operations from which all threads compute a product faster than one
ELEMENTS = 1 << 22  # of a pass's states, times the number of threads, from which all its operations use all threads
MAPPED = Path("/proc/self/maps")
NAMES = "libgomp", "libiomp", "libomp"

Result = TypeVar("Result")


class _OfThread(threading.local):
    full = 0  # the threads of the running pass; 0 outside a pass
    usual = 0  # those of its operations other than products


_now = _OfThread()


@contextmanager
def of_pass(elements: int) -> Iterator[None]:
    """Choose the threads for the operations in the block: a pass on a CPU whose states have this many elements."""
    libraries, full = _libraries(), torch.get_num_threads()
    if libraries is None or full == 1 or _now.full:
        yield
        return
    openmp, mkl = libraries
    of_mkl = None
    try:
        _now.full, _now.usual = full, full if elements * full >= ELEMENTS else 1
        openmp.omp_set_num_threads(_now.usual)
        of_mkl = None if mkl is None else mkl.MKL_Set_Num_Threads_Local(_now.usual)  # returns the number before
        yield
    finally:
        openmp.omp_set_num_threads(full)
        if of_mkl is not None:
            mkl.MKL_Set_Num_Threads_Local(of_mkl)
        _now.full = 0


def count() -> int:
    """Return the number of threads of the running pass."""
    return _now.full or torch.get_num_threads()


def product(work: float, compute: Callable[..., Result], *given: Any) -> Result:
    """Return the result of a product of oneDNN that takes this many floating-point operations."""
    wanted = _now.usual if not _now.full else _now.full if work >= LARGE else 1
    if wanted == _now.usual:
        return compute(*given)
    openmp, _ = _libraries()
    openmp.omp_set_num_threads(wanted)
    try:
        return compute(*given)
    finally:
        openmp.omp_set_num_threads(_now.usual)


@cache
def _libraries() -> Any:
    """Return the libraries of OpenMP and of MKL (None without it) that PyTorch uses; None if OpenMP is not found."""
    with suppress(OSError, AttributeError, ValueError):
        lines = [line.split(maxsplit=5) for line in MAPPED.read_text().splitlines()]
        paths = {fields[5] for fields in lines if len(fields) == 6 and Path(fields[5]).name.startswith(NAMES)}
        for library in map(ctypes.CDLL, sorted(paths)):
            before = torch.get_num_threads()
            library.omp_set_num_threads(before + 1)
            found = torch.get_num_threads() == before + 1
            library.omp_set_num_threads(before)
            if found:
                return library, _mkl()
    return None


def _mkl() -> Any:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        library.MKL_Set_Num_Threads_Local  # noqa: B018
        return library
    return None
