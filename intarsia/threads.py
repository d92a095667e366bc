"""How the threads of a computation wait for each other, and how many there are. Set before PyTorch is loaded.

PyTorch computes an operation with OpenMP threads, and waits for the slowest of them after each operation. By default a
waiting thread spins for milliseconds. If another process needs the core, spinning takes away the time that the last
thread needs to finish. A thread that sleeps leaves the core to others, but waking it takes longer than many operations.
Therefore a thread spins for about as long as waking takes, and then sleeps: speed falls in proportion to the cores that
are left, and a quiet machine loses little (`benchmarks/busy.py` measures both).

The OpenMP library reads the variables when it is loaded, so the package sets them at its import. A variable that the
user has set stays as it is. If PyTorch was imported before this package, nothing changes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # any of them is the user's choice
SPINS = 1000  # about 10 µs; GNU's OpenMP library takes them as rounds, others only sleep at once
COUNT = "OMP_NUM_THREADS"
CGROUP = Path("/sys/fs/cgroup")


def prepare() -> None:
    """Let threads wait for a moment, then sleep, and start no more threads than this process may use cores."""
    if not any(name in os.environ for name in WAITING):
        os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=str(SPINS))
    if COUNT not in os.environ and (limit := core_limit()) is not None:
        os.environ[COUNT] = str(limit)


def core_limit(cgroup: Path = CGROUP) -> int | None:
    """Return the cores that a container's quota allows, rounded up; None if all cores of the process may be used.

    PyTorch sees the machine's cores and not the quota. With more threads than the quota, all threads are stopped
    together for most of each period.
    """
    quota = _quota(cgroup)
    if quota is None:
        return None
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, ceil(quota)) if quota < usable else None


def _quota(cgroup: Path) -> float | None:
    """Return the cores of the CPU quota (control groups, version 2 or 1); None without a quota."""
    with suppress(OSError, ValueError):
        limit, period = (cgroup / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    return None
