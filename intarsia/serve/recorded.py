"""Passes of fixed shape for serving on a GPU: all tasks of one method shape, with their heads, in one replay.

The slots hold the tensors in float32 and in the base's precision, and the heads padded to `OUTPUTS` outputs. A pass
computes, for every row, its logits and its pooled state and, for every token, its logits (for heads that read tokens).
Its tables are those that training uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.device_tables import DeviceTables, Share, aligned, fixed_size
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.encoder.recorded_passes import RecordedPasses
from intarsia.encoder.routed import Group
from intarsia.encoder.segment_arrays import SegmentArrays
from intarsia.encoder.static_shape import DeviceOwners, StaticBatch
from intarsia.kernels import available
from intarsia.methods import Method
from intarsia.methods.held import Held
from intarsia.serve.resident import Resident, ServingSlots
from intarsia.serve.staged import Staged
from intarsia.tasks.heads import Head
from intarsia.tasks.learned import Learned

ALIGN, WIDE_ALIGN = 32, 64  # tokens of a tile (of methods with wide products); a task's tokens begin with a tile
SMALLEST_LONGEST = 64  # passes are recorded for segments of at most 64, 128, 256 or 512 tokens
OUTPUTS = 32  # of a padded head; tasks with more take eager passes
POOLINGS = {"mean": 0, "cls": 1, "pooler": 2, "none": 0}
RING = 4  # host buffers for outputs: passes whose outputs may wait to be read


def can_record(encoder: Encoder, learned: Learned | None, *, interpreted: bool = False) -> bool:
    """Return whether rows of a task (None: of the plain base) run in recorded passes. `interpreted`: on a CPU too."""
    device_fits = available() and (encoder.device.type == "cuda" or interpreted)
    if not device_fits or not encoder.shape.recordable or encoder.dtype not in (torch.float32, torch.bfloat16):
        return False
    if learned is None:
        return True
    method, head = learned.method, learned.head
    return (
        type(head) is Head
        and head.pooling in POOLINGS
        and head.hidden is None
        and head.outputs <= OUTPUTS
        and not method.changes_base
        and not method.touches_rows
        and method.recordable(encoder.shape)
    )


class RecordedSlots(ServingSlots):
    """The slots of one method shape, with what recorded passes read; `method` None: rows of the plain base."""

    recorded = True

    def __init__(self, method: Method | None, encoder: Encoder, capacity: int) -> None:
        super().__init__(method, encoder, capacity)
        self.align = WIDE_ALIGN if method is not None and method.wide else ALIGN
        buffer = self.table.buffer
        self.low = buffer if encoder.dtype == buffer.dtype else torch.zeros_like(buffer, dtype=encoder.dtype)
        self.low_tensors = self.table.views(self.low)
        width, device = encoder.shape.width, encoder.device
        self.weight = torch.zeros(capacity, OUTPUTS, width, device=device)
        self.bias = torch.zeros(capacity, OUTPUTS, device=device)
        self.pooling = torch.zeros(capacity, dtype=torch.int32, device=device)
        self.passes: dict[int, RecordedPasses] = {}  # by the longest segment
        self.turn = 0
        self.on_host: list[dict[str, Tensor]] = [{} for _ in range(RING)]

    @classmethod
    def slot_bytes(cls, method: Method | None, encoder: Encoder) -> int:
        low = 0 if encoder.dtype == torch.float32 else encoder.dtype.itemsize
        return super().slot_bytes(method, encoder) * (4 + low) // 4 + 4 * OUTPUTS * (encoder.shape.width + 1)

    def put(self, key: str, staged: Staged, parents: Mapping[str, Held]) -> Resident:
        resident = super().put(key, staged, parents)
        slot, head = resident.slot, resident.head_tensors
        if self.low is not self.table.buffer:
            self.low[slot].copy_(self.table.buffer[slot])
        outputs = head["output.weight"].shape[0]
        self.weight[slot, :outputs].copy_(head["output.weight"])
        self.bias[slot, :outputs].copy_(head["output.bias"])
        self.pooling[slot] = POOLINGS[resident.learned.head.pooling]
        return resident

    @torch.no_grad()
    def start(self, runs: Sequence[tuple[int, Sequence[Segment]]], *, tokens: bool, vectors: bool) -> Outputs:
        """Start a pass over the rows of each slot; `tokens`, `vectors`: what is read beside the rows' logits."""
        arrays = SegmentArrays([segment for _, segments in runs for segment in segments])
        shares, first, starts = [], 0, []
        at = 0
        for slot, segments in runs:
            rows = np.arange(first, first + len(segments))
            lengths = arrays.lengths[rows]
            starts.append(at + np.cumsum(lengths) - lengths)
            shares.append(Share(slot, arrays, rows))
            at += aligned(int(lengths.sum()), self.align)
            first += len(segments)
        longest = max(SMALLEST_LONGEST, 1 << (arrays.longest - 1).bit_length())
        passes = self.passes.setdefault(longest, RecordedPasses())
        recorded = passes.fitting(fixed_size(max(at, 4 * first)), False, lambda size: self._new(size, longest))
        recorded.tables.fill(shares)
        results = recorded.run()
        names = ["rows", *(["tokens"] if tokens else []), *(["vectors"] if vectors else [])]
        counts = {"rows": first, "vectors": first, "tokens": at}
        return Outputs(
            {name: self._fetch(name, results[name][: counts[name]]) for name in names}, self._event(), starts
        )

    def _fetch(self, name: str, result: Tensor) -> Tensor:
        """Start the copy of a result to the host."""
        if result.device.type != "cuda":
            return result.clone()
        buffers = self.on_host[self.turn]
        if name not in buffers or buffers[name].shape[0] < result.shape[0]:
            rows = 1 << (result.shape[0] - 1).bit_length()
            buffers[name] = torch.empty(rows, *result.shape[1:], dtype=result.dtype, pin_memory=True)
        host = buffers[name][: result.shape[0]]
        host.copy_(result, non_blocking=True)
        return host

    def _event(self) -> Any:
        if self.device.type != "cuda":
            return None
        self.turn = (self.turn + 1) % RING
        event = torch.cuda.Event()
        event.record()
        return event

    def _new(self, size: int, longest: int) -> tuple[DeviceTables, Callable[[], Any]]:
        tables = DeviceTables(size, self.capacity, size // 4, None, self.align, longest, self.device)
        return tables, lambda: self._body(tables)

    @torch.no_grad()
    def _body(self, tables: DeviceTables) -> dict[str, Tensor]:
        from intarsia.kernels import heads, linear, rows

        layout, encoder = tables.layout(), self.encoder
        batch = StaticBatch(tables["ids"], tables["types"], tables["positions"], DeviceOwners(layout, self.low_tensors))
        groups = [] if self.method is None else [Group(self.method, self.places, self.table.tensors, 0, (), ())]
        states = encoder.forward(batch, groups)
        first = rows.pool(states, tables.rows, False, layout)  # [rows, d] float32
        slot_of_row = layout.tile_slot[tables["row_start"][: tables.rows] // self.align].long()
        pooling = self.pooling[slot_of_row][:, None]
        vectors = torch.where(pooling == 0, rows.pool(states, tables.rows, True, layout), first)
        read = vectors
        if encoder.pooler is not None:
            weight, bias = (tensor.float() for tensor in encoder.pooler)
            read = torch.where(pooling == POOLINGS["pooler"], torch.tanh(F.linear(first, weight, bias)), vectors)
        by_token = linear.linear(states.float(), self.weight, self.bias, self.weight, layout)
        return {"rows": heads.logits(read, self.weight, self.bias, layout), "tokens": by_token, "vectors": vectors}


class Outputs:
    """The outputs of a started pass, on their way to the host."""

    def __init__(self, results: Mapping[str, Tensor], ready: Any, starts: Sequence[np.ndarray]) -> None:
        """`starts`: the first token of each row, by run."""
        self.results, self.ready, self.starts = results, ready, starts

    def wait(self) -> None:
        if self.ready is not None:
            self.ready.synchronize()

    def vector(self, row: int) -> np.ndarray:
        return self.results["vectors"][row].numpy().copy()

    def logits(self, run: int, rows: slice, learned: Learned, segments: Sequence[Segment]) -> Tensor:
        """Return the logits of a run's rows [rows, outputs], or of their tokens [tokens, outputs]."""
        outputs = learned.head.outputs
        if learned.head.pooling != "none":
            return self.results["rows"][rows, :outputs]
        by_token = self.results["tokens"]
        parts = [by_token[start : start + len(s.ids)] for start, s in zip(self.starts[run], segments, strict=True)]
        return torch.cat(parts)[:, :outputs]
