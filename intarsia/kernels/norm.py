"""LayerNorm with each slot's own gain and bias."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import ROWS, Layout

BACK = 16  # tokens per program of the backward kernel; divides every `align`


@triton.jit
def _norm_forward(
    x, out, means, scales, gain, bias, tile_slot, stride, width, eps,
    HAS_BIAS: tl.constexpr, ALIGN: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * R
    slot = tl.load(tile_slot + first // ALIGN).to(tl.int64)
    rows = first + tl.arange(0, R)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    place = rows[:, None].to(tl.int64) * width + columns[None, :]
    value = tl.load(x + place, mask=inside[None, :], other=0.0).to(tl.float32)
    mean = tl.sum(value, 1) / width
    centred = tl.where(inside[None, :], value - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    y = centred * scale[:, None] * tl.load(gain + slot * stride + columns, mask=inside, other=0.0)[None, :]
    if HAS_BIAS:
        y += tl.load(bias + slot * stride + columns, mask=inside, other=0.0)[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside[None, :])
    tl.store(means + rows, mean)
    tl.store(scales + rows, scale)


@triton.jit
def _norm_backward(
    x, g, dx, means, scales, gain, gains, biases, tile_slot, stride, width,
    ALIGN: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for R tokens, STEP at a time; also sums their part of the gradients of gain and bias."""
    tile = tl.program_id(0)
    slot = tl.load(tile_slot + tile * R // ALIGN).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    own = tl.load(gain + slot * stride + columns, mask=inside, other=0.0)[None, :]
    for_gain = tl.zeros((BLOCK,), tl.float32)
    for_bias = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, R, STEP):
        rows = tile * R + at + tl.arange(0, STEP)
        place = rows[:, None].to(tl.int64) * width + columns[None, :]
        value = tl.load(x + place, mask=inside[None, :], other=0.0).to(tl.float32)
        back = tl.load(g + place, mask=inside[None, :], other=0.0).to(tl.float32)
        scale = tl.load(scales + rows)
        normal = tl.where(inside[None, :], (value - tl.load(means + rows)[:, None]) * scale[:, None], 0.0)
        for_gain += tl.sum(back * normal, 0)
        for_bias += tl.sum(back, 0)
        back *= own
        away = tl.sum(back, 1) / width
        along = tl.sum(back * normal, 1) / width
        change = (back - away[:, None] - normal * along[:, None]) * scale[:, None]
        tl.store(dx + place, change.to(dx.dtype.element_ty), mask=inside[None, :])
    part = tile.to(tl.int64) * width + columns
    tl.store(gains + part, for_gain, mask=inside)
    tl.store(biases + part, for_bias, mask=inside)


@triton.jit
def _sum_by_slot(
    parts, out, slot_start, slot_end, width, tiles_in_all, slots,
    R: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot, which = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    end = tl.load(slot_end + slot) // R
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(tl.load(slot_start + slot) // R, end, TILES):
        tiles = at + tl.arange(0, TILES)
        place = (which * tiles_in_all + tiles)[:, None].to(tl.int64) * width + columns[None, :]
        total += tl.sum(tl.load(parts + place, mask=(tiles < end)[:, None] & inside[None, :], other=0.0), 0)
    tl.store(out + (which * slots + slot).to(tl.int64) * width + columns, total, mask=inside)


def summed(parts: Tensor, layout: Layout, per: int) -> Tensor:
    """The sums over each slot: parts [n, tokens / per, width] → [n, slots, width], in float32."""
    n, tiles, width = parts.shape
    out = parts.new_empty(n, layout.slots, width)
    grid = (layout.slots, triton.cdiv(width, 64), n)
    _sum_by_slot[grid](
        parts, out, layout.slot_start, layout.slot_end, width, tiles, layout.slots, per, 32, 64, num_warps=4
    )
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, layout: Layout) -> Tensor:
        x = x.contiguous()
        tokens, width = x.shape
        out = torch.empty_like(x)
        means = torch.empty(tokens, device=x.device, dtype=torch.float32)
        scales = torch.empty_like(means)
        block = triton.next_power_of_2(width)
        _norm_forward[(tokens // ROWS,)](
            x, out, means, scales, gain, gain if bias is None else bias, layout.tile_slot, gain.stride(0), width, eps,
            bias is not None, layout.align, ROWS, block, num_warps=4 if block <= 512 else 8,
        )  # fmt: skip
        ctx.save_for_backward(x, means, scales, gain)
        ctx.layout, ctx.has_bias = layout, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, means, scales, gain = ctx.saved_tensors
        layout: Layout = ctx.layout
        grad = grad.contiguous()
        tokens, width = x.shape
        dx = torch.empty_like(x)
        gains = torch.empty(2, tokens // BACK, width, device=x.device, dtype=torch.float32)
        block = triton.next_power_of_2(width)
        _norm_backward[(tokens // BACK,)](
            x, grad, dx, means, scales, gain, gains[0], gains[1], layout.tile_slot, gain.stride(0), width,
            layout.align, BACK, 2, block, num_warps=4,
        )  # fmt: skip
        if not ctx.needs_input_grad[1]:  # of a frozen inlay
            return dx, None, None, None, None
        sums = summed(gains if ctx.has_bias else gains[:1], layout, BACK)
        return dx, sums[0], sums[1] if ctx.has_bias else None, None, None


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, layout: Layout) -> Tensor:
    """x [tokens, width] normalised. gain and bias [slots, width] are float32 views of one buffer (equal strides)."""
    return _Norm.apply(x, gain, bias, eps, layout)
