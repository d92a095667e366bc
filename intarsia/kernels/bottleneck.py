"""h + W_up act(W_down x + b_down) + b_up with each slot's own tensors: one kernel forward, two backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout, fences
from intarsia.kernels.gelu import _below
from intarsia.kernels.mixing import kept, limit_of, site_of

fences.mend()
# The activations that the kernel computes; a bottleneck with another activation takes several kernels.
ACTIVATIONS = {"gelu": 0, "relu": 1, "tanh": 2, "swish": 3, "gelu_exact": 4, "leaky_relu": 5}
WIDEST = 256  # the most hidden units


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _act(z, KIND: tl.constexpr):
    if KIND == 0:
        return 0.5 * z * (1.0 + _tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)))
    elif KIND == 1:
        return tl.maximum(z, 0.0)
    elif KIND == 2:
        return _tanh(z)
    elif KIND == 3:
        return z / (1.0 + tl.exp(-z))
    elif KIND == 4:
        share, _ = _below(z)
        return z * share
    else:
        return tl.where(z > 0.0, z, 0.01 * z)


@triton.jit
def _slope(z, KIND: tl.constexpr):
    if KIND == 0:
        y = _tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))
        steep = 0.7978845608028654 * (1.0 + 0.134145 * z * z)
        return 0.5 * (1.0 + y) + 0.5 * z * (1.0 - y * y) * steep
    elif KIND == 1:
        return tl.where(z > 0.0, 1.0, 0.0)
    elif KIND == 2:
        y = _tanh(z)
        return 1.0 - y * y
    elif KIND == 4:
        share, density = _below(z)
        return share + z * density
    elif KIND == 5:
        return tl.where(z > 0.0, 1.0, 0.01)
    else:
        s = 1.0 / (1.0 + tl.exp(-z))
        return s * (1.0 + z * (1.0 - s))


@triton.jit
def _thinned(value, rows, k, start, seed, site, limit, width, DROP: tl.constexpr):
    """A block of h with dropped values (those of `dropout.py`) set to 0; kept values are not rescaled yet."""
    if DROP:
        keep = kept(seed, site, (rows - start).to(tl.int32)[:, None] * width + k[None, :], limit)
        value = tl.where(keep, value, 0.0)
    return value


@triton.jit
def _bottleneck_forward(
    h, x, hidden, acted, out, down, down_bias, up, up_bias, tile_slot, slot_start, seeds, site, limit, rescale,
    stride, low_stride, width, size, share, DROP: tl.constexpr, KIND: tl.constexpr, ALIGN: tl.constexpr,
    M: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    slot = tl.load(tile_slot + tile).to(tl.int64)
    rows = (tile * ALIGN + tl.arange(0, ALIGN)).to(tl.int64)
    units = tl.arange(0, M)
    real = units < size
    start, seed = tl.load(slot_start + slot), tl.load(seeds + slot)
    # The weights are the left operand: in a loop like this the left operand must not be a computed value (the block
    # after dropout). Triton before 3.7 reads it from registers that the next iteration already overwrites.
    turned = tl.zeros((M, ALIGN), tl.float32)
    for at in range(0, width, BLOCK):
        k = at + tl.arange(0, BLOCK)
        inside = k < width
        read = tl.load(x + rows[:, None] * width + k[None, :], mask=inside[None, :], other=0.0)
        read = _thinned(read, rows, k, start, seed, site, limit, width, DROP)
        weight = tl.load(
            down + slot * low_stride + units[:, None] * width + k[None, :],
            mask=real[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        turned = tl.dot(weight, tl.trans(read), turned, input_precision="ieee" if EXACT else "tf32")
    z = tl.trans(turned) * rescale + tl.load(down_bias + slot * stride + units, mask=real, other=0.0)[None, :]
    z = z.to(hidden.dtype.element_ty)
    narrow = rows[:, None] * size + units[None, :]
    if tl.program_id(1) == 0:
        tl.store(hidden + narrow, z, mask=real[None, :])
    a = tl.where(real[None, :], _act(z.to(tl.float32), KIND), 0.0).to(hidden.dtype.element_ty)
    if tl.program_id(1) == 0:
        tl.store(acted + narrow, a, mask=real[None, :])
    for at in range(tl.program_id(1) * share, tl.minimum(width, (tl.program_id(1) + 1) * share), BLOCK):
        k = at + tl.arange(0, BLOCK)
        inside = k < width
        weight = tl.load(
            up + slot * low_stride + k[None, :] * size + units[:, None],
            mask=inside[None, :] & real[:, None], other=0.0,
        )  # fmt: skip
        u = tl.dot(a, weight, input_precision="ieee" if EXACT else "tf32")
        u += tl.load(up_bias + slot * stride + k, mask=inside, other=0.0)[None, :]
        place = rows[:, None] * width + k[None, :]
        skip = tl.load(h + place, mask=inside[None, :], other=0.0)
        u += _thinned(skip, rows, k, start, seed, site, limit, width, DROP).to(tl.float32) * rescale
        tl.store(out + place, u.to(out.dtype.element_ty), mask=inside[None, :])


@triton.jit
def _bottleneck_backward(
    g, hidden, dz, dx, down, up, tile_slot, slot_start, seeds, site, limit, rescale, low_stride, width, size, share,
    DROP: tl.constexpr, SKIP: tl.constexpr, KIND: tl.constexpr, ALIGN: tl.constexpr, M: tl.constexpr,
    BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    slot = tl.load(tile_slot + tile).to(tl.int64)
    rows = (tile * ALIGN + tl.arange(0, ALIGN)).to(tl.int64)
    units = tl.arange(0, M)
    real = units < size
    start, seed = tl.load(slot_start + slot), tl.load(seeds + slot)
    da = tl.zeros((ALIGN, M), tl.float32)
    for at in range(0, width, BLOCK):
        k = at + tl.arange(0, BLOCK)
        inside = k < width
        back = tl.load(g + rows[:, None] * width + k[None, :], mask=inside[None, :], other=0.0)
        weight = tl.load(
            up + slot * low_stride + k[:, None] * size + units[None, :],
            mask=inside[:, None] & real[None, :], other=0.0,
        )  # fmt: skip
        da = tl.dot(back, weight, da, input_precision="ieee" if EXACT else "tf32")
    narrow = rows[:, None] * size + units[None, :]
    z = tl.load(hidden + narrow, mask=real[None, :], other=0.0).to(tl.float32)
    change = tl.where(real[None, :], da * _slope(z, KIND), 0.0).to(dz.dtype.element_ty)
    if tl.program_id(1) == 0:
        tl.store(dz + narrow, change, mask=real[None, :])
    for at in range(tl.program_id(1) * share, tl.minimum(width, (tl.program_id(1) + 1) * share), BLOCK):
        k = at + tl.arange(0, BLOCK)
        inside = k < width
        weight = tl.load(
            down + slot * low_stride + units[:, None] * width + k[None, :],
            mask=real[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(change, weight, input_precision="ieee" if EXACT else "tf32")
        place = rows[:, None] * width + k[None, :]
        if SKIP:
            total += tl.load(g + place, mask=inside[None, :], other=0.0).to(tl.float32)
        total = _thinned(total * rescale, rows, k, start, seed, site, limit, width, DROP)
        tl.store(dx + place, total.to(dx.dtype.element_ty), mask=inside[None, :])


@triton.jit
def _bottleneck_weights(
    g, x, acted, dz, d_down, d_down_bias, d_up, d_up_bias, slot_start, slot_end, seeds, site, limit, rescale,
    width, size, WHICH: tl.constexpr, DROP: tl.constexpr, CHUNK: tl.constexpr, M: tl.constexpr,
    BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The weight gradients over a slot's tokens: dz' x for the matrix down (WHICH 0), acted' g for the matrix up (1),
    or both (2), in alternating programs."""
    slot = tl.program_id(0)
    if WHICH == 2:
        up, part = tl.program_id(2) % 2, tl.program_id(2) // 2
    else:
        up, part = WHICH, tl.program_id(2)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    units = part * M + tl.arange(0, M)
    inside, real = k < width, units < size
    total = tl.zeros((M, BLOCK), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    narrow_sums = tl.zeros((M,), tl.float32)
    wide_from, narrow_from = x, dz
    if up == 1:
        wide_from, narrow_from = g, acted
    start, end, seed = tl.load(slot_start + slot), tl.load(slot_end + slot), tl.load(seeds + slot)
    for at in range(start, end, CHUNK):
        rows = (at + tl.arange(0, CHUNK)).to(tl.int64)
        mine = (rows < end)[:, None]
        wide = tl.load(wide_from + rows[:, None] * width + k[None, :], mask=mine & inside[None, :], other=0.0)
        narrow = tl.load(narrow_from + rows[:, None] * size + units[None, :], mask=mine & real[None, :], other=0.0)
        wide = tl.where(mine, wide, 0.0)  # no change in value, but a computed operand; see `linear.py`
        if up == 1:
            sums += tl.sum(wide.to(tl.float32), 0)
        else:
            wide = _thinned(wide, rows, k, start, seed, site, limit, width, DROP)
            narrow_sums += tl.sum(narrow.to(tl.float32), 0)
        total = tl.dot(tl.trans(narrow), wide, total, input_precision="ieee" if EXACT else "tf32")
    own = slot.to(tl.int64) * width * size
    both = real[:, None] & inside[None, :]
    if up == 1:
        tl.store(d_up + own + k[None, :] * size + units[:, None], total, mask=both)
        if part == 0:
            tl.store(d_up_bias + slot.to(tl.int64) * width + k, sums, mask=inside)
    else:
        tl.store(d_down + own + units[:, None] * width + k[None, :], total * rescale, mask=both)
        if tl.program_id(1) == 0:
            tl.store(d_down_bias + slot.to(tl.int64) * size + units, narrow_sums, mask=real)


# About the number of programs that a large GPU runs in parallel. With few tokens, several programs share the columns of
# a tile.
PROGRAMS = 128


def _tile(tiles: int, width: int, units: int, exact: bool) -> tuple[int, int, int, int]:
    """The columns of a block, the columns of a program, warps and stages.

    For up to 64 units in bf16 they were the fastest for BERT-base on an H200. Otherwise they fit into the registers and
    shared memory of smaller GPUs too.
    """
    if exact:
        block, warps, stages = (32, 8, 2) if units <= 64 else (16, 4, 2)
    else:
        block, warps, stages = (64, 4, 3) if units <= 64 else (64, 8, 2)
    blocks = triton.cdiv(width, block)
    programs = max(1, min(blocks, PROGRAMS // tiles))
    return block, triton.cdiv(blocks, programs) * block, warps, stages


def _chunks(slots: int, units: int, exact: bool) -> tuple[int, int, int, int, tuple[int, ...]]:
    """For the weight gradients: tokens and columns of a block, warps, stages, and the values of WHICH to launch.

    They were the fastest on an H200. With much work, each matrix gets its own launch, which takes fewer registers.
    """
    if exact:
        return 32, 32, 4, 2, (2,)
    if slots <= 4:
        return 128, 64, 4, 3, (2,)
    return (64, 64, 4, 3, (2,)) if units <= 64 else (64, 128, 4, 3, (0, 1))


def _padded_units(size: int) -> int:
    """The hidden units as a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))


def _dropout(p: float, site: int) -> tuple[int, int, float]:
    """The kernel arguments site, limit and rescale."""
    return site_of(site), limit_of(p), 1.0 / (1.0 - p)


class _Bottleneck(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        x: Tensor | None,  # None: x is h
        down: Tensor,
        down_bias: Tensor,
        up: Tensor,
        up_bias: Tensor,
        low_down: Tensor,
        low_up: Tensor,
        kind: int,
        layout: Layout,
        p: float,
        site: int,
    ) -> Tensor:
        h = h.contiguous()
        read = h if x is None else x.contiguous()
        tokens, width = h.shape
        size = down.shape[1]
        exact = h.dtype == torch.float32
        hidden, acted = torch.empty(2, tokens, size, device=h.device, dtype=h.dtype).unbind()
        out = torch.empty_like(h)
        m = _padded_units(size)
        tiles = tokens // layout.align
        block, share, warps, stages = _tile(tiles, width, m, exact)
        _bottleneck_forward[(tiles, triton.cdiv(width, share))](
            h, read, hidden, acted, out, low_down, down_bias, low_up, up_bias, layout.tile_slot, layout.slot_start,
            layout.seeds, *_dropout(p, site), down_bias.stride(0), low_down.stride(0), width, size, share, p > 0.0,
            kind, layout.align, m, block, exact, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        ctx.save_for_backward(read, hidden, acted, low_down, low_up)
        ctx.layout, ctx.kind, ctx.skip, ctx.drop = layout, kind, x is None, (p, site)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        read, hidden, acted, low_down, low_up = ctx.saved_tensors
        layout: Layout = ctx.layout
        g = g.contiguous()
        tokens, width = g.shape
        size = hidden.shape[1]
        exact = g.dtype == torch.float32
        dz, dx = torch.empty_like(hidden), torch.empty_like(g)
        m = _padded_units(size)
        tiles = tokens // layout.align
        block, share, warps, stages = _tile(tiles, width, m, exact)
        _bottleneck_backward[(tiles, triton.cdiv(width, share))](
            g, hidden, dz, dx, low_down, low_up, layout.tile_slot, layout.slot_start, layout.seeds,
            *_dropout(*ctx.drop), low_down.stride(0), width, size, share, ctx.drop[0] > 0.0, ctx.skip, ctx.kind,
            layout.align, m, block, exact, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        dh, dread = (dx, None) if ctx.skip else (g, dx)
        if not ctx.needs_input_grad[2]:  # of a frozen inlay
            return dh, dread, *[None] * 10
        like: dict[str, Any] = {"device": g.device, "dtype": torch.float32}
        d_down, d_up = (torch.empty(layout.slots, *s, **like) for s in ((size, width), (width, size)))
        d_down_bias, d_up_bias = (torch.empty(layout.slots, s, **like) for s in (size, width))
        part = min(m, 64)
        chunk, block, warps, stages, launches = _chunks(layout.slots, m, exact)
        for which in launches:
            programs = triton.cdiv(size, part) * (2 if which == 2 else 1)
            _bottleneck_weights[(layout.slots, triton.cdiv(width, block), programs)](
                g, read, acted, dz, d_down, d_down_bias, d_up, d_up_bias, layout.slot_start, layout.slot_end,
                layout.seeds, *_dropout(*ctx.drop), width, size, which, ctx.drop[0] > 0.0, chunk, part, block,
                exact, num_warps=warps, num_stages=stages,
            )  # fmt: skip
        return dh, dread, d_down, d_down_bias, d_up, d_up_bias, *[None] * 6


def bottleneck(
    h: Tensor,
    x: Tensor | None,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    low: tuple[Tensor, Tensor],
    activation: str,
    layout: Layout,
    p: float = 0.0,
    site: int = 0,
) -> Tensor:
    """h + adapter(x): h, x [tokens, width] → [tokens, width]; x is h if it is None.

    `weights` are down, its bias, up and its bias, [slots, …] in float32, views of one buffer. `low` has both matrices
    in h's type, views of another buffer. If `p` > 0, dropout is applied to h first, as by
    `dropout.dropout(h, p, site, layout)`; x must be None then.
    """
    assert p == 0.0 or x is None
    return _Bottleneck.apply(h, x, *weights, *low, ACTIVATIONS[activation], layout, p, site)
