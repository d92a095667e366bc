"""The tables of a pass of fixed shape: filled on the host, copied to the device in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from intarsia.kernels import Layout
from intarsia.train.tokens import Tokens

RING = 4  # passes that may be under way before the host waits
SMALLEST, STEP = 256, 128  # tokens of a pass, and between the sizes of small ones
PADDING = 128  # tokens of a segment of padding, at most


class Share(NamedTuple):
    """What one slot has in a pass."""

    slot: int
    tokens: Tokens
    rows: np.ndarray
    seed: int = 0


def aligned(size: int, align: int) -> int:
    return -(-size // align) * align


def fixed_size(tokens: int) -> int:
    """The smallest size of a pass that holds so many tokens: few sizes, and none more than a sixteenth too large."""
    step = STEP
    while step * 32 < tokens:
        step *= 2
    return max(SMALLEST, aligned(tokens, step))


class DeviceTables:
    """For passes of `size` tokens of up to `slots` slots and `rows` segments (padding apart)."""

    def __init__(
        self, size: int, slots: int, rows: int, each: int | None, align: int, longest: int, device: torch.device
    ) -> None:
        """`each`: slot s has the segments s * each, …; None: the segments stand one after another."""
        self.size, self.slots, self.rows, self.each, self.align, self.longest = size, slots, rows, each, align, longest
        self.padding = min(longest, PADDING)
        every = rows + slots + -(-size // self.padding) + 1
        lengths = {
            "tile_slot": size // align, "slot_start": slots, "slot_end": slots, "row_start": every,
            "row_length": every, "seeds": slots, "active": slots, "ids": size, "types": size, "positions": size,
        }  # fmt: skip
        pinned = device.type == "cuda"
        total = sum(lengths.values())
        self.on_device = torch.zeros(total, dtype=torch.int32, device=device)
        self.on_host = [torch.zeros(total, dtype=torch.int32, pin_memory=pinned) for _ in range(RING)]
        self.copied = [torch.cuda.Event() for _ in range(RING)] if pinned else []
        self.turn = 0
        self.places: dict[str, slice] = {}
        at = 0
        for name, length in lengths.items():
            self.places[name] = slice(at, at + length)
            at += length

    def __getitem__(self, name: str) -> Tensor:
        return self.on_device[self.places[name]]

    def layout(self) -> Layout:
        names = "tile_slot", "slot_start", "slot_end", "row_start", "row_length", "seeds"
        return Layout(tokens=self.size, align=self.align, longest=self.longest, **{n: self[n] for n in names})

    def fill(self, shares: Sequence[Share]) -> None:
        """Lay the shares out and send the tables on their way."""
        self.turn = (self.turn + 1) % RING
        if self.copied:
            self.copied[self.turn].synchronize()
        host = self.on_host[self.turn]
        whole = host.numpy()
        t = {name: whole[place] for name, place in self.places.items()}
        for name in ("row_length", "slot_start", "slot_end", "active"):
            t[name].fill(0)
        t["tile_slot"].fill(shares[0].slot if shares else 0)
        start = self._lay_out(t, shares)
        t["ids"][start:] = t["types"][start:] = t["positions"][start:] = 0
        begins = np.arange(start, self.size, self.padding)  # what is left is padding, in segments of its own
        row = self.rows + self.slots
        t["row_start"][row : row + len(begins)] = begins
        t["row_length"][row : row + len(begins)] = np.minimum(self.padding, self.size - begins)
        self.on_device.copy_(host, non_blocking=True)
        if self.copied:
            self.copied[self.turn].record()

    def _lay_out(self, t: dict[str, np.ndarray], shares: Sequence[Share]) -> int:
        start = row = 0
        for slot, tokens, rows, seed in shares:
            lengths = tokens.lengths[rows]
            ends = np.cumsum(lengths)
            begins, total = ends - lengths, int(ends[-1])
            first = row if self.each is None else slot * self.each
            t["row_start"][first : first + len(rows)] = begins + start
            t["row_length"][first : first + len(rows)] = lengths
            row += len(rows)
            steps = np.arange(total)
            source = steps + np.repeat(tokens.offsets[rows] - begins, lengths)
            here = slice(start, start + total)
            t["ids"][here] = tokens.ids[source]
            t["types"][here] = 0 if tokens.types is None else tokens.types[source]
            t["positions"][here] = steps - np.repeat(begins, lengths)
            end = start + aligned(total, self.align)
            padding = slice(start + total, end)
            t["ids"][padding] = t["types"][padding] = t["positions"][padding] = 0
            t["row_start"][self.rows + slot] = start + total
            t["row_length"][self.rows + slot] = end - start - total
            t["tile_slot"][start // self.align : end // self.align] = slot
            t["slot_start"][slot], t["slot_end"][slot] = start, end
            t["seeds"][slot], t["active"][slot] = seed, 1
            start = end
        return start
