"""Copying a slot's vector to each of its tokens, and pooling each segment to one vector."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import ROWS, Layout
from intarsia.kernels.norm import summed


@triton.jit
def _spread(table, out, tile_slot, stride, width, ALIGN: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * R
    slot = tl.load(tile_slot + first // ALIGN).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(table + slot * stride + columns, mask=inside, other=0.0)
    rows = (first + tl.arange(0, R))[:, None].to(tl.int64)
    value = tl.broadcast_to(value[None, :], (R, BLOCK)).to(out.dtype.element_ty)
    tl.store(out + rows * width + columns[None, :], value, mask=inside[None, :])


@triton.jit
def _sum_rows(g, parts, width, R: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    rows = (tile * R + tl.arange(0, R))[:, None].to(tl.int64)
    value = tl.load(g + rows * width + columns[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
    tl.store(parts + tile.to(tl.int64) * width + columns, tl.sum(value, 0), mask=inside)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, dtype: torch.dtype, layout: Layout) -> Tensor:
        width = table.shape[1]
        out = torch.empty(layout.tokens, width, device=table.device, dtype=dtype)
        _spread[(layout.tokens // ROWS,)](
            table, out, layout.tile_slot, table.stride(0), width, layout.align, ROWS, triton.next_power_of_2(width)
        )
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        tokens, width = grad.shape
        parts = torch.empty(tokens // ROWS, width, device=grad.device, dtype=torch.float32)
        _sum_rows[(tokens // ROWS,)](grad, parts, width, ROWS, triton.next_power_of_2(width))
        return summed(parts[None], ctx.layout, ROWS)[0], None, None


def spread(table: Tensor, dtype: torch.dtype, layout: Layout) -> Tensor:
    """The vector of each token's slot: [slots, width] → [tokens, width] in `dtype`."""
    return _Spread.apply(table, dtype, layout)


@triton.jit
def _pool(x, out, row_start, row_length, width, MEAN: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = tl.load(row_start + row)
    length = tl.load(row_length + row)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros((BLOCK,), tl.float32)
    end = length if MEAN else tl.minimum(length, 1)
    for at in range(0, end, T):
        steps = at + tl.arange(0, T)
        place = (start + steps)[:, None].to(tl.int64) * width + columns[None, :]
        total += tl.sum(tl.load(x + place, mask=(steps < end)[:, None] & inside[None, :], other=0.0).to(tl.float32), 0)
    total = total / tl.maximum(end, 1).to(tl.float32)
    tl.store(out + row.to(tl.int64) * width + columns, total, mask=inside)


@triton.jit
def _pool_back(g, dx, row_start, row_length, width, rows, MEAN: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = tl.load(row_start + row)
    length = tl.load(row_length + row)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(g + row.to(tl.int64) * width + columns, mask=columns < tl.where(row < rows, width, 0), other=0.0)
    counted = length if MEAN else 1
    value = value / tl.maximum(counted, 1).to(tl.float32)
    for at in range(0, length, T):
        steps = at + tl.arange(0, T)
        place = (start + steps)[:, None].to(tl.int64) * width + columns[None, :]
        change = tl.where((steps < counted)[:, None], value[None, :], 0.0)
        tl.store(dx + place, change.to(dx.dtype.element_ty), mask=(steps < length)[:, None] & inside[None, :])


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, mean: bool, layout: Layout) -> Tensor:
        x = x.contiguous()
        width = x.shape[1]
        out = torch.empty(rows, width, device=x.device, dtype=torch.float32)
        grid = (rows, triton.cdiv(width, 128))
        _pool[grid](x, out, layout.row_start, layout.row_length, width, mean, 16, 128, num_warps=4)
        ctx.layout, ctx.mean, ctx.like = layout, mean, (x.shape, x.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        shape, dtype = ctx.like
        dx = torch.empty(shape, device=grad.device, dtype=dtype)
        grid = (layout.row_start.shape[0], triton.cdiv(shape[1], 128))
        _pool_back[grid](
            grad.contiguous(), dx, layout.row_start, layout.row_length, shape[1], grad.shape[0], ctx.mean, 16, 128
        )
        return dx, None, None, None


def pool(x: Tensor, rows: int, mean: bool, layout: Layout) -> Tensor:
    """The mean (or the first token) of each of the first `rows` segments: [tokens, width] → [rows, width] in float32.

    A segment without tokens gives zeros.
    """
    return _Pool.apply(x, rows, mean, layout)
