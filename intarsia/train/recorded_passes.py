"""RecordedPasses of fixed shape, recorded (as CUDA graphs) and replayed; and which sizes of them are worth recording.

Recording takes some tenths of a second, a replay milliseconds. So a pass that is too large serves too, until what that
has cost would have paid for one that fits.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from intarsia.train.device_tables import STEP, DeviceTables, aligned


class RecordedPass:
    """One pass. Where there is nothing to record with (no GPU), it is simply run."""

    def __init__(self, tables: DeviceTables, body: Callable[[], Any], pool: Any, *, known: bool) -> None:
        """`known`: its kernels have run before, in a pass of another size."""
        self.tables, self.body, self.pool = tables, body, pool
        self.graph: Any = None
        self.result: Any = None
        self.cost = self.seconds = 0.0  # of recording it, and of a replay
        if tables.on_device.device.type == "cuda":
            self._record(known)

    def _record(self, known: bool) -> None:
        """With tables that move nothing. Kernels that have never run are compiled and loaded by a run before."""
        self.tables.fill([])
        if not known:
            self._run_beside()
        began = time.perf_counter()
        try:
            self._capture()
        except RuntimeError:
            if not known:
                raise
            self._run_beside()  # something was to be loaded after all
            self._capture()
        self.cost = time.perf_counter() - began
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        self.graph.replay()
        last.record()
        last.synchronize()
        self.seconds = first.elapsed_time(last) / 1000

    def _run_beside(self) -> None:
        gc.collect()
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            self.body()
        torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()

    def _capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        gc.disable()  # an old pass that is collected while a new one is recorded would spoil it
        try:
            with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="relaxed"):
                self.result = self.body()
        finally:
            gc.enable()
        self.pool = self.pool or self.graph.pool()

    def run(self) -> Any:
        if self.graph is None:
            return self.body()
        self.graph.replay()
        return self.result


class RecordedPasses:
    """RecordedPasses that share memory: a kind of them for training, one for answers, each in several sizes."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, bool], RecordedPass] = {}
        self.wasted: defaultdict[tuple[int, bool], float] = defaultdict(float)  # seconds, for want of this size
        self.pool: Any = None

    def clear(self) -> None:
        self.known.clear()
        self.wasted.clear()
        self.pool = None  # gone with the last of its passes

    def fitting(
        self, size: int, training: bool, make: Callable[[int], tuple[DeviceTables, Callable[[], Any]]]
    ) -> RecordedPass:
        """A pass for so many tokens, recorded now if none serves; `make` gives the tables and body of a new one."""
        if (size, training) in self.known:
            return self.known[size, training]
        alike = [one for (_, kind), one in self.known.items() if kind == training]
        large = min((one for one in alike if one.tables.size >= size), key=lambda one: one.tables.size, default=None)
        wanted = next_size(size) if large is None else self._worth(size, training, large)
        if wanted is None:
            assert large is not None
            return large
        tables, body = make(wanted)
        new = self.known[wanted, training] = RecordedPass(tables, body, self.pool, known=bool(alike))
        self.pool = self.pool or new.pool
        return new

    def _worth(self, size: int, training: bool, large: RecordedPass) -> int | None:
        """The size whose lack has cost as much as recording it would: this one, or one that serves others too."""
        for one in (next_size(size), size):
            if one < large.tables.size:
                self.wasted[one, training] += large.seconds * (1 - one / large.tables.size)
                if self.wasted[one, training] > large.cost:
                    return one
        return None


def next_size(size: int) -> int:
    """The next of few sizes, four to an octave."""
    step = max(STEP, (1 << (size.bit_length() - 1)) // 4)
    return aligned(size, step)
