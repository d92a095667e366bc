"""Shared parts of the attention kernels: scores of a block of queries over a block of keys, and their dropout."""

from __future__ import annotations

import triton
import triton.language as tl

from intarsia.kernels import LONGEST, fences
from intarsia.kernels.mixing import kept

fences.mend()
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)  # e^x = 2^(x * LOG2_E)
SPAN: tl.constexpr = tl.constexpr(LONGEST)


@triton.jit
def owned_by(row, row_start, tile_slot, slot_start, seeds, ALIGN: tl.constexpr):
    """A segment's first token, its slot's seed, and its position within the slot's tokens."""
    start = tl.load(row_start + row)
    slot = tl.load(tile_slot + start // ALIGN)
    return start, tl.load(seeds + slot), start - tl.load(slot_start + slot)


@triton.jit
def scores_of(
    q, k, table, head, rows, columns, length, scale, middle,
    RELATIVE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The scores [rows, columns] as exponents of 2; -inf for keys after the segment's end."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee" if EXACT else "tf32") * (scale * LOG2_E)
    if RELATIVE:
        distance = columns[None, :] - rows[:, None] + middle
        near = (rows < length)[:, None] & (columns < length)[None, :]
        scores += tl.load(table + head * (2 * middle + 1) + distance, mask=near, other=0.0).to(tl.float32) * LOG2_E
    return tl.where((columns < length)[None, :], scores, float("-inf"))


@triton.jit
def kept_of(seed, site, limit, local, rows, columns, head, HEADS: tl.constexpr):
    """Dropout's mask [rows, columns]; `local` is the segment's position within its slot."""
    index = ((local + rows)[:, None] * HEADS + head) * SPAN + columns[None, :]
    return kept(seed, site, index, limit)


@triton.jit
def scatter_by_distance(to, head, rows, columns, length, middle, change):
    """Add the gradient of a block of scores to that of the relative position bias."""
    distance = columns[None, :] - rows[:, None] + middle
    near = (rows < length)[:, None] & (columns < length)[None, :]
    tl.atomic_add(to + head * (2 * middle + 1) + distance, change, mask=near, sem="relaxed")
