"""Dropout of token states. A slot's mask depends only on its seed and on the position within its own tokens."""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import ROWS, Layout
from intarsia.kernels.mixing import kept, limit_of, site_of


@triton.jit
def _drop(
    x, out, tile_slot, slot_start, seeds, site, limit, scale, width,
    ALIGN: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * R
    slot = tl.load(tile_slot + first // ALIGN)
    rows = first + tl.arange(0, R)
    columns = tl.arange(0, BLOCK)
    inside = (columns < width)[None, :]
    place = rows[:, None].to(tl.int64) * width + columns[None, :]
    index = (rows - tl.load(slot_start + slot))[:, None] * width + columns[None, :]
    keep = kept(tl.load(seeds + slot), site, index, limit)
    value = tl.load(x + place, mask=inside, other=0.0)
    tl.store(out + place, tl.where(keep, value * scale, 0.0), mask=inside)


def _run(x: Tensor, p: float, site: int, tables: tuple[Tensor, Tensor, Tensor], align: int) -> Tensor:
    """x with dropout; `tables` are tile_slot, slot_start and seeds."""
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    rows = gcd(ROWS, align)
    grid = (x.numel() // width // rows,)
    block = triton.next_power_of_2(width)
    _drop[grid](x, out, *tables, site_of(site), limit_of(p), 1.0 / (1.0 - p), width, align, rows, block, num_warps=4)
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        ctx.arguments = arguments
        return _run(x, *arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _run(grad, *ctx.arguments), None, None, None, None


def dropout(x: Tensor, p: float, site: int, layout: Layout) -> Tensor:
    """Dropout of states [.., tokens, width]. `site` distinguishes the calls in a pass."""
    tables = layout.tile_slot, layout.slot_start, layout.seeds
    return _Dropout.apply(x, p, site, tables, layout.align)


def dropout_rows(x: Tensor, p: float, site: int, each: int, layout: Layout, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Dropout of rows [slots * each, width], `each` rows per slot. `tables` are [0, 1, …] and [0, each, …], [slots]."""
    return _Dropout.apply(x, p, site, (*tables, layout.seeds), each)
