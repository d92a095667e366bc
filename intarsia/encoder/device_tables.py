"""The integer tables of a pass of fixed shape: filled on the host, then copied to the device in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.segment_arrays import SegmentArrays
from intarsia.kernels import Layout

RING = 4  # host buffers: passes that may be in flight before the host waits
SMALLEST, STEP = 256, 128  # tokens: the smallest pass, and the distance between the sizes of small passes
PADDING = 128  # tokens: the longest padding segment


class Share(NamedTuple):
    """The rows of one slot in a pass."""

    slot: int
    tokens: SegmentArrays
    rows: np.ndarray
    seed: int = 0
    built_on: tuple[int, ...] = ()  # the slots of the frozen inlays on which its composition is built


def aligned(size: int, align: int) -> int:
    """Return the size, rounded up to a multiple of `align`."""
    return -(-size // align) * align


def fixed_size(tokens: int) -> int:
    """Return the smallest pass size for this many tokens. There are few sizes; the excess is at most a sixteenth."""
    step = STEP
    while step * 32 < tokens:
        step *= 2
    return max(SMALLEST, aligned(tokens, step))


class DeviceTables:
    """Tables for passes of `size` tokens with up to `slots` slots and `rows` segments (plus padding segments)."""

    def __init__(
        self,
        size: int,
        slots: int,
        rows: int,
        slot_rows: int | None,
        align: int,
        longest: int,
        device: torch.device,
        built_on: Sequence[int] = (),
    ) -> None:
        """`slot_rows`: slot s has the segments from s * slot_rows on; None: the segments follow without gaps.

        `built_on`: the numbers of slots of the tables that have the frozen inlays of a composition.
        """
        self.size, self.slots, self.rows, self.slot_rows = size, slots, rows, slot_rows
        self.align, self.longest = align, longest
        self.padding = min(longest, PADDING)
        self.built_on = tuple(built_on)
        all_rows = rows + slots + -(-size // self.padding) + 1  # each slot may end with a padding segment
        lengths = {
            "tile_slot": size // align, "slot_start": slots, "slot_end": slots, "row_start": all_rows,
            "row_length": all_rows, "seeds": slots, "active": slots, "ids": size, "types": size, "positions": size,
            **{_built_on(i): size // align for i in range(len(self.built_on))},
        }  # fmt: skip
        pinned = device.type == "cuda"
        total = sum(lengths.values())
        self.on_device = torch.zeros(total, dtype=torch.int32, device=device)
        self.on_host = [torch.zeros(total, dtype=torch.int32, pin_memory=pinned) for _ in range(RING)]
        self.copied = [torch.cuda.Event() for _ in range(RING)] if pinned else []
        self.turn = 0
        self.ranges: dict[str, slice] = {}
        offset = 0
        for name, length in lengths.items():
            self.ranges[name] = slice(offset, offset + length)
            offset += length

    def __getitem__(self, name: str) -> Tensor:
        return self.on_device[self.ranges[name]]

    def layout(self) -> Layout:
        """Return the layout that the kernels read, as views of the device tables."""
        names = "tile_slot", "slot_start", "slot_end", "row_start", "row_length", "seeds"
        return Layout(tokens=self.size, align=self.align, longest=self.longest, **{n: self[n] for n in names})

    def layouts(self) -> tuple[Layout, ...]:
        """Return the layouts for the parts of a composition: its own, and those of its frozen inlays, which own no
        tokens in the loops over slots, because they have no gradients."""
        own = self.layout()
        found = [own]
        for i, slots in enumerate(self.built_on):
            none = torch.zeros(slots, dtype=torch.int32, device=self.on_device.device)
            found.append(replace(own, tile_slot=self[_built_on(i)], slot_start=none, slot_end=none, seeds=none))
        return tuple(found)

    def fill(self, shares: Sequence[Share]) -> None:
        """Write the tables of these shares on the host and start their copy to the device."""
        self.turn = (self.turn + 1) % RING
        if self.copied:
            self.copied[self.turn].synchronize()
        host = self.on_host[self.turn]
        whole = host.numpy()
        t = {name: whole[table_range] for name, table_range in self.ranges.items()}
        for name in ("row_length", "slot_start", "slot_end", "active"):
            t[name].fill(0)
        t["tile_slot"].fill(shares[0].slot if shares else 0)
        for i in range(len(self.built_on)):
            t[_built_on(i)].fill(shares[0].built_on[i] if shares else 0)
        start = self._lay_out(t, shares)
        t["ids"][start:] = t["types"][start:] = t["positions"][start:] = 0
        begins = np.arange(start, self.size, self.padding)  # the remaining tokens form padding segments
        row = self.rows + self.slots
        t["row_start"][row : row + len(begins)] = begins
        t["row_length"][row : row + len(begins)] = np.minimum(self.padding, self.size - begins)
        self.on_device.copy_(host, non_blocking=True)
        if self.copied:
            self.copied[self.turn].record()

    def _lay_out(self, t: dict[str, np.ndarray], shares: Sequence[Share]) -> int:
        """Write the tables `t` for these shares; return the number of tokens in use."""
        start = row = 0
        for slot, tokens, rows, seed, built_on in shares:
            lengths = tokens.lengths[rows]
            ends = np.cumsum(lengths)
            begins, total = ends - lengths, int(ends[-1])
            first = row if self.slot_rows is None else slot * self.slot_rows
            t["row_start"][first : first + len(rows)] = begins + start
            t["row_length"][first : first + len(rows)] = lengths
            row += len(rows)
            indices = np.arange(total)
            source = indices + np.repeat(tokens.offsets[rows] - begins, lengths)
            target = slice(start, start + total)
            t["ids"][target] = tokens.ids[source]
            t["types"][target] = 0 if tokens.types is None else tokens.types[source]
            t["positions"][target] = indices - np.repeat(begins, lengths)
            end = start + aligned(total, self.align)
            padding = slice(start + total, end)
            t["ids"][padding] = t["types"][padding] = t["positions"][padding] = 0
            t["row_start"][self.rows + slot] = start + total
            t["row_length"][self.rows + slot] = end - start - total
            tiles = slice(start // self.align, end // self.align)
            t["tile_slot"][tiles] = slot
            for i, frozen_slot in enumerate(built_on):
                t[_built_on(i)][tiles] = frozen_slot
            t["slot_start"][slot], t["slot_end"][slot] = start, end
            t["seeds"][slot], t["active"][slot] = seed, 1
            start = end
        return start


def _built_on(i: int) -> str:
    """Return the name of the table that has, for each tile, the slot of its owner's frozen inlay `i`."""
    return f"built_on.{i}"
