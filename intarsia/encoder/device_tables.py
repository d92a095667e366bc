"""The integer tables of a pass of fixed shape: filled on the host, then copied to the device in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.segment_arrays import SegmentArrays
from intarsia.kernels import Layout

RING = 4  # host buffers: passes that may be in flight before the host waits
SMALLEST, STEP = 256, 128  # tokens: the smallest pass, and the distance between the sizes of small passes
PADDING = 128  # tokens: the longest padding segment

Size = TypeVar("Size", int, np.ndarray)


class Share(NamedTuple):
    """The rows of one slot in a pass."""

    slot: int
    tokens: SegmentArrays
    rows: np.ndarray
    seed: int = 0
    built_on: tuple[int, ...] = ()  # the slots of the frozen inlays on which its composition is built


def aligned(size: Size, align: int) -> Size:
    """Return the size (or an array of sizes), rounded up to a multiple of `align`."""
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

    def fill(self, shares: Sequence[Share]) -> np.ndarray:
        """Write the tables of these shares on the host and start their copy to the device. Return the first token of
        each row, in the order of the shares."""
        self.turn = (self.turn + 1) % RING
        if self.copied:
            self.copied[self.turn].synchronize()
        host = self.on_host[self.turn]
        whole = host.numpy()
        t = {name: whole[table_range] for name, table_range in self.ranges.items()}
        for name in ("row_length", "slot_start", "slot_end", "active", "ids", "types", "positions"):
            t[name].fill(0)
        t["tile_slot"].fill(shares[0].slot if shares else 0)
        for i in range(len(self.built_on)):
            t[_built_on(i)].fill(shares[0].built_on[i] if shares else 0)
        starts, end = self._lay_out(t, shares) if shares else (np.zeros(0, np.int64), 0)
        begins = np.arange(end, self.size, self.padding)  # the remaining tokens form padding segments
        row = self.rows + self.slots
        t["row_start"][row : row + len(begins)] = begins
        t["row_length"][row : row + len(begins)] = np.minimum(self.padding, self.size - begins)
        self.on_device.copy_(host, non_blocking=True)
        if self.copied:
            self.copied[self.turn].record()
        return starts

    def _lay_out(self, t: dict[str, np.ndarray], shares: Sequence[Share]) -> tuple[np.ndarray, int]:
        """Write the tables `t` for these shares; return the first token of each row, and the number of tokens in use.

        All shares are laid out at once: a pass may have many, each with few rows.
        """
        slots = np.array([share.slot for share in shares])
        counts = np.array([len(share.rows) for share in shares])
        lengths, positions, ids, types = _joined(shares)
        packed = lengths.cumsum() - lengths  # [rows] where each row would start without padding between the shares
        first_rows = counts.cumsum() - counts
        used = np.add.reduceat(lengths, first_rows)  # [shares] tokens
        sizes = aligned(used, self.align)
        share_ends = sizes.cumsum()
        share_starts = share_ends - sizes
        starts = packed + (share_starts - packed[first_rows]).repeat(counts)
        rows: slice | np.ndarray = slice(len(lengths))
        if self.slot_rows is not None:
            rows = np.arange(len(lengths)) + (slots * self.slot_rows - first_rows).repeat(counts)
        t["row_start"][rows], t["row_length"][rows] = starts, lengths
        t["row_start"][self.rows + slots], t["row_length"][self.rows + slots] = share_starts + used, sizes - used
        tokens = positions + starts.repeat(lengths)
        t["ids"][tokens], t["types"][tokens], t["positions"][tokens] = ids, types, positions
        end, tiles = int(share_ends[-1]), sizes // self.align
        t["tile_slot"][: end // self.align] = slots.repeat(tiles)
        for i in range(len(self.built_on)):
            frozen_slots = np.array([share.built_on[i] for share in shares])
            t[_built_on(i)][: end // self.align] = frozen_slots.repeat(tiles)
        t["slot_start"][slots], t["slot_end"][slots] = share_starts, share_ends
        t["seeds"][slots], t["active"][slots] = [share.seed for share in shares], 1
        return starts, end


def _joined(shares: Sequence[Share]) -> tuple[np.ndarray, ...]:
    """Return the lengths of all rows of these shares, and the positions, ids and types of their tokens."""
    parts = [
        tokens.of_rows(np.concatenate([share.rows for share in members]))
        for tokens, members in groupby(shares, key=attrgetter("tokens"))
    ]
    return tuple(map(np.concatenate, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]


def _built_on(i: int) -> str:
    """Return the name of the table that has, for each tile, the slot of its owner's frozen inlay `i`."""
    return f"built_on.{i}"
