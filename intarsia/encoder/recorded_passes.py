"""Passes of fixed shape, recorded as CUDA graphs and replayed, and the choice of the sizes to record.

Recording takes some tenths of a second, a replay milliseconds. Therefore a larger recorded pass is reused until the
wasted time exceeds the cost of recording a better size.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from intarsia.encoder.device_tables import STEP, DeviceTables, aligned


class RecordedPass:
    """One recorded pass. Without a GPU nothing is recorded: `run` calls the body."""

    def __init__(self, tables: DeviceTables, body: Callable[[], Any], pool: Any, *, kernels_loaded: bool) -> None:
        """`kernels_loaded`: the kernels have run before, in a pass of another size."""
        self.tables, self.body, self.pool = tables, body, pool
        self.graph: Any = None
        self.result: Any = None
        self.cost = self.seconds = 0.0  # of the recording, and of one replay
        if tables.on_device.device.type == "cuda":
            self._record(kernels_loaded)

    def _record(self, kernels_loaded: bool) -> None:
        """Record the pass and measure one replay."""
        self.tables.fill([])  # without rows a pass changes no parameter
        if not kernels_loaded:
            self._warm_up()  # compiles and loads the kernels before the capture
        began = time.perf_counter()
        try:
            self._capture()
        except RuntimeError:
            if not kernels_loaded:
                raise
            self._warm_up()  # this size needed a kernel that was not loaded yet
            self._capture()
        self.cost = time.perf_counter() - began
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        self.graph.replay()
        last.record()
        last.synchronize()
        self.seconds = first.elapsed_time(last) / 1000

    def _warm_up(self) -> None:
        """Run the body once, on a side stream as CUDA graphs require."""
        gc.collect()
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            self.body()
        torch.cuda.current_stream().wait_stream(side_stream)
        torch.cuda.synchronize()

    def _capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        gc.disable()  # the collection of an old graph during a capture would invalidate the capture
        try:
            with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="relaxed"):
                self.result = self.body()
        finally:
            gc.enable()
        self.pool = self.pool or self.graph.pool()

    def run(self) -> Any:
        """Run the pass on the present contents of its tables; return the body's result."""
        if self.graph is None:
            return self.body()
        self.graph.replay()
        return self.result


class RecordedPasses:
    """The recorded passes for training and for prediction, in several sizes; all of them share a memory pool."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, bool], RecordedPass] = {}  # by (size, training)
        self.wasted: defaultdict[tuple[int, bool], float] = defaultdict(float)  # seconds lost by lack of this size
        self.pool: Any = None

    def clear(self) -> None:
        """Forget all passes."""
        self.known.clear()
        self.wasted.clear()
        self.pool = None  # CUDA frees the pool with its last graph

    def fitting(
        self, size: int, training: bool, make: Callable[[int], tuple[DeviceTables, Callable[[], Any]]]
    ) -> RecordedPass:
        """Return a pass with room for `size` tokens; record a new pass if no recorded pass is suitable.

        `make` returns the tables and the body of a new pass of a given size.
        """
        if (size, training) in self.known:
            return self.known[size, training]
        same_kind = [recorded for (_, kind), recorded in self.known.items() if kind == training]
        large_enough = [recorded for recorded in same_kind if recorded.tables.size >= size]
        larger = min(large_enough, key=lambda recorded: recorded.tables.size, default=None)
        new_size = next_size(size) if larger is None else self._size_worth_recording(size, training, larger)
        if new_size is None:
            assert larger is not None
            return larger
        tables, body = make(new_size)
        new = RecordedPass(tables, body, self.pool, kernels_loaded=bool(same_kind))
        self.known[new_size, training] = new
        self.pool = self.pool or new.pool
        return new

    def _size_worth_recording(self, size: int, training: bool, larger: RecordedPass) -> int | None:
        """Return a size whose lack has cost more than its recording would; None if there is no such size.

        The candidates are the exact size and the next rounded size, which other passes can use too.
        """
        for candidate in (next_size(size), size):
            if candidate < larger.tables.size:
                self.wasted[candidate, training] += larger.seconds * (1 - candidate / larger.tables.size)
                if self.wasted[candidate, training] > larger.cost:
                    return candidate
        return None


def next_size(size: int) -> int:
    """Return the size, rounded up to one of four sizes per power of two."""
    step = max(STEP, (1 << (size.bit_length() - 1)) // 4)
    return aligned(size, step)
