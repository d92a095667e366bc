"""x W' + b, where each slot has its own W and b for its own tokens (grouped matrix products)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout, fences

fences.mend()


@triton.jit
def _linear_product(
    x, w, b, out, tile_slot, slot_stride, row_stride, column_stride, bias_stride, inner, outer,
    HAS_BIAS: tl.constexpr, ALIGN: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """out[tile] = x[tile] @ w[slot] (+ b[slot]); w is read as [inner, outer] with the given strides."""
    tile = tl.program_id(0)
    slot = tl.load(tile_slot + tile).to(tl.int64)
    rows = (tile * ALIGN + tl.arange(0, ALIGN)).to(tl.int64)
    columns = tl.program_id(1) * BO + tl.arange(0, BO)
    there = columns < outer
    total = tl.zeros((ALIGN, BO), tl.float32)
    for at in range(0, inner, BI):
        k = at + tl.arange(0, BI)
        within = k < inner
        left = tl.load(x + rows[:, None] * inner + k[None, :], mask=within[None, :], other=0.0)
        place = slot * slot_stride + k[:, None] * row_stride + columns[None, :] * column_stride
        right = tl.load(w + place, mask=within[:, None] & there[None, :], other=0.0).to(left.dtype)
        total = tl.dot(left, right, total, input_precision="ieee" if EXACT else "tf32")
    if HAS_BIAS:
        total += tl.load(b + slot * bias_stride + columns, mask=there, other=0.0).to(tl.float32)[None, :]
    place = rows[:, None] * outer + columns[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there[None, :])


@triton.jit
def _linear_weights(
    g, x, dw, db, slot_start, slot_end, outer, inner,
    HAS_BIAS: tl.constexpr, ALIGN: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """dw[slot] = g[its tokens]' x[its tokens]; db[slot] = the sum of g."""
    slot = tl.program_id(0)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    i = tl.program_id(2) * BI + tl.arange(0, BI)
    total = tl.zeros((BO, BI), tl.float32)
    sums = tl.zeros((BO,), tl.float32)
    end = tl.load(slot_end + slot)
    for at in range(tl.load(slot_start + slot), end, ALIGN):
        rows = (at + tl.arange(0, ALIGN)).to(tl.int64)
        back = tl.load(g + rows[:, None] * outer + o[None, :], mask=(o < outer)[None, :], other=0.0)
        read = tl.load(x + rows[:, None] * inner + i[None, :], mask=(i < inner)[None, :], other=0.0)
        # When one loop feeds a block to both a matrix product and a sum, Triton (also 3.8) allocates one buffer too few
        # for loading ahead. The next block is then written where a running product still reads
        # (github.com/triton-lang/triton/pull/7110). Triton waits for a product whose other operand is computed, as
        # `read` is here.
        read = tl.where((rows < end)[:, None], read, 0.0)
        total = tl.dot(tl.trans(back), read, total, input_precision="ieee" if EXACT else "tf32")
        if HAS_BIAS:
            sums += tl.sum(back.to(tl.float32), 0)
    own = slot.to(tl.int64) * outer + o
    tl.store(dw + own[:, None] * inner + i[None, :], total, mask=(o < outer)[:, None] & (i < inner)[None, :])
    if HAS_BIAS:
        if tl.program_id(2) == 0:
            tl.store(db + own, sums, mask=o < outer)


def _block(size: int, most: int) -> int:
    """The block size for a dimension: a power of two, at least 16 and at most `most`."""
    return max(16, min(most, triton.next_power_of_2(size)))


def product(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, *, transposed: bool) -> Tensor:
    """x @ weight[slot]' with weight [slots, out, in], or x @ weight[slot] if not `transposed`."""
    x = x.contiguous()
    outer = weight.shape[1 if transposed else 2]
    inner = x.shape[1]
    slot, row, column = weight.stride(0), weight.stride(2 if transposed else 1), weight.stride(1 if transposed else 2)
    out = torch.empty(x.shape[0], outer, device=x.device, dtype=x.dtype)
    exact = x.dtype == torch.float32
    blocks = _block(outer, 64 if exact else 128), _block(inner, 32 if exact else 64)
    grid = (layout.tokens // layout.align, triton.cdiv(outer, blocks[0]))
    _linear_product[grid](
        x, weight, weight if bias is None else bias, out, layout.tile_slot, slot, row, column,
        0 if bias is None else bias.stride(0), inner, outer, bias is not None, layout.align, *blocks, exact,
    )  # fmt: skip
    return out


def weight_gradient(g: Tensor, x: Tensor, layout: Layout, *, bias: bool) -> tuple[Tensor, Tensor | None]:
    """g' x over each slot's tokens [slots, out, in], and with `bias` the sums of g [slots, out]; in float32."""
    outer, inner = g.shape[1], x.shape[1]
    dw = torch.empty(layout.slots, outer, inner, device=g.device, dtype=torch.float32)
    db = torch.empty(layout.slots, outer, device=g.device, dtype=torch.float32) if bias else None
    exact = x.dtype == torch.float32
    blocks = _block(outer, 64), _block(inner, 64)
    grid = (layout.slots, triton.cdiv(outer, blocks[0]), triton.cdiv(inner, blocks[1]))
    _linear_weights[grid](
        g, x, dw, dw if db is None else db, layout.slot_start, layout.slot_end, outer, inner, bias, layout.align,
        *blocks, exact,
    )  # fmt: skip
    return dw, db


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, layout: Layout) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, low)
        ctx.layout, ctx.has_bias = layout, bias is not None
        return product(x, low, bias, layout, transposed=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, low = ctx.saved_tensors
        grad = grad.contiguous()
        dx = product(grad, low, None, ctx.layout, transposed=False) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:  # of a frozen inlay
            return dx, None, None, None, None
        dw, db = weight_gradient(grad, x, ctx.layout, bias=ctx.has_bias)
        return dx, dw, db, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, layout: Layout) -> Tensor:
    """x [tokens, in] → [tokens, out]. `weight` [slots, out, in] is in float32; `low` is its copy in x's type."""
    return _Linear.apply(x, weight, bias, low, layout)
