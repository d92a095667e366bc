"""Passes of fixed shape for serving on a GPU: all tasks of one method shape, with their heads, in one replay.

The slots hold the tensors in float32 and in the base's precision, and the heads padded to `OUTPUTS` outputs. A pass
computes, for every row, its logits and its pooled state and, for every token, its logits (for heads that read tokens).
Its tables are those that training uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.device_tables import DeviceTables, Share, aligned, fixed_size
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.encoder.parts import Part, table_sizes
from intarsia.encoder.recorded_passes import RecordedPasses
from intarsia.encoder.routed import Group
from intarsia.encoder.segment_arrays import SegmentArrays
from intarsia.encoder.static_shape import DeviceOwners, StaticBatch
from intarsia.kernels import available
from intarsia.methods import Method
from intarsia.methods.held import Held, parts_of, tables
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
    if learned is None:
        return can_record_method(encoder, None, interpreted=interpreted)
    fits = _fits(learned.head) and not learned.method.touches_rows
    return fits and can_record_method(encoder, learned.method, interpreted=interpreted)


def can_record_method(encoder: Encoder, method: Method | None, *, interpreted: bool = False) -> bool:
    """Return whether recorded passes can have a method, for rows of a task or as a part of a composition."""
    device_fits = available() and (encoder.device.type == "cuda" or interpreted)
    if not device_fits or not encoder.shape.recordable or encoder.dtype not in (torch.float32, torch.bfloat16):
        return False
    return method is None or (not method.changes_base and method.recordable(encoder.shape))


def _fits(head: Head) -> bool:
    """Return whether recorded passes can compute a head."""
    return type(head) is Head and head.pooling in POOLINGS and head.hidden is None and head.outputs <= OUTPUTS


class RecordedSlots(ServingSlots):
    """The slots of one method shape, with what recorded passes read; `method` None: rows of the plain base."""

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
        # By the longest segment, and the tables with the frozen inlays on which the tasks are built.
        self.passes: dict[tuple[int, tuple[int, ...]], RecordedPasses] = {}
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
        if not _fits(resident.learned.head) or resident.learned.method.touches_rows:
            return resident
        outputs = head["output.weight"].shape[0]
        self.weight[slot, :outputs].copy_(head["output.weight"])
        self.bias[slot, :outputs].copy_(head["output.bias"])
        self.pooling[slot] = POOLINGS[resident.learned.head.pooling]
        resident = self.residents[key] = replace(resident, recorded=True)
        return resident

    def forget(self, table: Mapping[str, Tensor]) -> None:
        self.passes = {key: passes for key, passes in self.passes.items() if id(table) not in key[1]}

    @torch.no_grad()
    def start(self, runs: Sequence[tuple[Held | None, Sequence[Segment]]], *, tokens: bool, vectors: bool) -> Outputs:
        """Start a pass over the rows of each resident inlay (None: the plain base); the inlays are in these slots, and
        those on which they are built in the same tables. `tokens`, `vectors`: what is read beside the rows' logits."""
        arrays = SegmentArrays([segment for _, segments in runs for segment in segments])
        rows = np.arange(len(arrays.segments))
        counts = np.array([len(segments) for _, segments in runs])
        firsts = counts.cumsum() - counts
        shares = []
        for (held, segments), first in zip(runs, firsts.tolist(), strict=True):
            slot, built_on = (0, ()) if held is None else (held.slot, held.parent_slots)
            shares.append(Share(slot, arrays, rows[first : first + len(segments)], 0, built_on))
        used = int(aligned(np.add.reduceat(arrays.lengths, firsts), self.align).sum())
        longest = max(SMALLEST_LONGEST, 1 << (arrays.longest - 1).bit_length())
        held = runs[0][0]
        built_on = () if held is None else tables(held)[1:]
        parts = () if held is None else parts_of([held], self.encoder.shape)
        passes = self.passes.setdefault((longest, built_on), RecordedPasses())
        size = fixed_size(max(used, 4 * len(rows)))
        recorded = passes.fitting(size, False, lambda size: self._new(size, longest, parts))
        starts = recorded.tables.fill(shares)
        results = recorded.run()
        sizes = {"rows": len(rows)} | ({"tokens": used} if tokens else {}) | ({"vectors": len(rows)} if vectors else {})
        fetched = {name: self._fetch(name, results[name][:size]) for name, size in sizes.items()}
        return Outputs(fetched, self._event(), starts)

    def _fetch(self, name: str, result: Tensor) -> Tensor:
        """Start the copy of a result to the host."""
        if result.device.type != "cuda":
            return result
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

    def _new(self, size: int, longest: int, parts: tuple[Part, ...]) -> tuple[DeviceTables, Callable[[], Any]]:
        sizes = table_sizes(parts)
        tables = DeviceTables(size, self.capacity, size // 4, None, self.align, longest, self.device, sizes)
        return tables, lambda: self._body(tables, parts)

    @torch.no_grad()
    def _body(self, tables: DeviceTables, parts: tuple[Part, ...]) -> dict[str, Tensor]:
        from intarsia.kernels import heads, linear, rows

        layouts, encoder = tables.layouts(), self.encoder
        layout, owners = layouts[0], DeviceOwners(layouts[0], self.low_tensors, layouts)
        batch = StaticBatch(tables["ids"], tables["types"], tables["positions"], owners)
        groups = [] if self.method is None else [Group(self.method, self.places, self.table.tensors, 0, (), (), parts)]
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

    def __init__(self, results: Mapping[str, Tensor], ready: Any, starts: np.ndarray) -> None:
        """`starts`: the first token of each row."""
        self.results, self.ready, self.starts = results, ready, starts

    def wait(self) -> None:
        if self.ready is not None:
            self.ready.synchronize()
        # Callers may read the logits when a later pass has taken the buffers.
        self.logits = self.results["rows"].numpy().copy()

    def vector(self, row: int) -> np.ndarray:
        return self.results["vectors"][row].numpy().copy()

    def of_rows(self, rows: slice, learned: Learned, segments: Sequence[Segment]) -> Sequence[np.ndarray]:
        """Return the logits of a task's rows; for heads that read tokens, the probabilities of each row's tokens."""
        outputs = learned.head.outputs
        if not learned.task_kind.reads_tokens:
            return list(self.logits[rows, :outputs])
        by_token = self.results["tokens"]
        places = zip(self.starts[rows].tolist(), segments, strict=True)
        tokens = torch.cat([by_token[start : start + len(segment.ids)] for start, segment in places])
        return learned.task_kind.predictions(tokens[:, :outputs], segments)
