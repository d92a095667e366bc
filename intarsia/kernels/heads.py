"""The heads of many slots on one vector for each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout


@triton.jit
def _heads(
    x, weight, bias, out, row_start, row_length, tile_slot, width,
    ALIGN: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    length = tl.load(row_length + row)
    if length > 0:
        slot = tl.load(tile_slot + tl.load(row_start + row) // ALIGN).to(tl.int64)
        outputs = tl.arange(0, OUTPUTS)
        total = tl.load(bias + slot * OUTPUTS + outputs).to(tl.float32)
        for at in range(0, width, BLOCK):
            columns = at + tl.arange(0, BLOCK)
            inside = columns < width
            vector = tl.load(x + row.to(tl.int64) * width + columns, mask=inside, other=0.0).to(tl.float32)
            place = (slot * OUTPUTS + outputs)[:, None] * width + columns[None, :]
            matrix = tl.load(weight + place, mask=inside[None, :], other=0.0).to(tl.float32)
            total += tl.sum(matrix * vector[None, :], 1)
        tl.store(out + row.to(tl.int64) * OUTPUTS + outputs, total)


def logits(x: Tensor, weight: Tensor, bias: Tensor, layout: Layout) -> Tensor:
    """x [rows, width] → [rows, outputs] in float32, with the weight [slots, outputs, width] and bias [slots, outputs]
    of the slot that owns each row's segment. The number of outputs is a power of two."""
    rows, width = x.shape
    out = torch.zeros(rows, weight.shape[1], device=x.device, dtype=torch.float32)
    _heads[(rows,)](
        x, weight, bias, out, layout.row_start, layout.row_length, layout.tile_slot, width,
        layout.align, weight.shape[1], 128,
    )  # fmt: skip
    return out
