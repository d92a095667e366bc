"""The limits of an engine: memory, queue and passes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from intarsia.errors import IntarsiaError

MOST_SLOTS = 4096
PASS_TOKENS = {"cpu": 1024, "cuda": 16384}  # on a CPU larger passes are no faster, and their answers come in bursts
QUEUE_TOKENS = {"cpu": 1 << 18, "cuda": 1 << 20}  # a request of 1,024 rows of 256 tokens fits
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Limits:
    """Bounds on what an engine holds. `None` stands for a value that fits this machine (`Limits.on` fills it in)."""

    pass_tokens: int | None = None  # tokens of a pass
    queue_tokens: int | None = None  # tokens that may wait; None: `QUEUE_TOKENS`
    slots: int = MOST_SLOTS  # tasks on the device, for each method shape
    slot_bytes: int | None = None  # of all slots on the device; None: a quarter of the free memory
    host_bytes: int | None = None  # of inlays kept in host memory; None: an eighth of the free host memory
    own_weights: int = 2  # tasks on the device that change weights of the base; each holds a copy of these weights
    readers: int = 4  # threads that read inlays

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise IntarsiaError(f"the limit {name} is {value}; expected a number of at least 1.")

    def on(self, device: torch.device) -> Limits:
        """Return these limits with every value filled in for a device."""
        kind = device.type if device.type in PASS_TOKENS else "cpu"
        return Limits(
            pass_tokens=self.pass_tokens or PASS_TOKENS[kind],
            queue_tokens=self.queue_tokens or QUEUE_TOKENS[kind],
            slots=self.slots,
            slot_bytes=self.slot_bytes or max(1, free_bytes(device) // 4),
            host_bytes=self.host_bytes or max(1, free_bytes(torch.device("cpu")) // 8),
            own_weights=self.own_weights,
            readers=self.readers,
        )


def free_bytes(device: torch.device) -> int:
    """Return the memory that this process may still take on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [8 << 30]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):  # a container's own limit
        limit = int((CGROUP / "memory.max").read_text())
        free.append(max(0, limit - int((CGROUP / "memory.current").read_text())))
    return min(free)
