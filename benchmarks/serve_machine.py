"""What a benchmark of services notes about the machine: the memory of a service, and what other programs computed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def sampled(pid: int, seconds: float = 1.0) -> Iterator[list[float]]:
    """The resident memory of a process in MB, once a second."""
    found: list[float] = [memory_mb(pid)]
    end = threading.Event()

    def sample() -> None:
        while not end.wait(seconds):
            found.append(memory_mb(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join()


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def memory_summary(found: Sequence[float]) -> dict[str, Any]:
    half = len(found) // 2
    return {
        "first": found[0], "largest": max(found), "last": found[-1],
        "largest_of_first_half": max(found[: half or 1]), "largest_of_second_half": max(found[half:]),
    }  # fmt: skip


@contextlib.contextmanager
def others(*pids: int) -> Iterator[list[float]]:
    """How many cores all programs but this one and `pids` used, as the only entry of the list, at the end."""
    found: list[float] = []
    own = ["/proc/self/stat", *(f"/proc/{pid}/stat" for pid in pids)]
    began, before = time.perf_counter(), _busy() - sum(map(_used, own))
    yield found
    found.append(round(max(0.0, _busy() - sum(map(_used, own)) - before) / (time.perf_counter() - began), 2))


def _busy() -> float:
    """Seconds that all cores have computed."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS


def _used(stat: str) -> float:
    """Seconds that a process has computed."""
    fields = Path(stat).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
