"""Attention of a slot's tokens to the slot's own keys and values (prefix tuning).

All tokens of a slot attend to the same prefix, so a program handles a tile of tokens of any segments. It combines the
attention within the segment and the attention to the prefix, weighted by the sums of their softmaxes. Backward, it
splits the gradient between the two, and gives the segments' kernels the gradient of their softmax sums (`apart`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout
from intarsia.kernels.mixing import limit_of, site_of
from intarsia.kernels.scores import LOG2_E, kept_of


class Seen(NamedTuple):
    """The prefixes of all slots in one layer, in the base's precision."""

    keys: Tensor  # [slots, P, heads * width]
    values: Tensor  # the same shape
    site: int  # of the dropout on the attention probabilities


@triton.jit
def _over_prefix(
    qs, ks, size, scale, seed, site, limit, local, head, DROP: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The probabilities [T, P] of a tile's queries over the prefix only, dropout's mask, and the log of the softmax
    sum."""
    columns = tl.arange(0, P)
    scores = tl.dot(qs, tl.trans(ks), input_precision="ieee" if EXACT else "tf32") * (scale * LOG2_E)
    scores = tl.where((columns < size)[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    p = tl.exp2(scores - top[:, None])
    total = tl.sum(p, 1)
    p = p * (1.0 / total)[:, None]
    keep = p >= 0.0
    if DROP:
        keep = kept_of(seed, site, limit, local, tl.arange(0, T), columns, head, HEADS)
    return p, keep, top + tl.log2(total)


@triton.jit
def _parted(p, keep, log, others, gs, first, vs, rescale, DROP: tl.constexpr, EXACT: tl.constexpr):
    """The prefix's share of the output, its probabilities after dropout, and the gradients of the log of the segments'
    softmax sums (`others`) and of the prefix's scores. `first` is the output of the attention within segments."""
    share = 1.0 / (1.0 + tl.exp2(others - log))
    dropped, dp = p, tl.dot(gs, tl.trans(vs), input_precision="ieee" if EXACT else "tf32")
    if DROP:
        dropped = tl.where(keep, p * rescale, 0.0)
        dp = tl.where(keep, dp * rescale, 0.0)
    mean = tl.sum(dp * p, 1)
    change = share * (1.0 - share) * (tl.sum(gs.to(tl.float32) * first.to(tl.float32), 1) - mean)
    return share, dropped, change, p * ((dp - mean[:, None]) * share[:, None] - change[:, None])


@triton.jit
def _prefix_forward(
    q, own, sums, keys, values, out, tile_slot, slot_start, seeds, site, limit, rescale, scale, size, token_stride,
    slot_stride, DROP: tl.constexpr, T: tl.constexpr, P: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tile_slot + tile)
    seed, local = tl.load(seeds + slot), tile * T - tl.load(slot_start + slot)
    rows, d = (tile * T + tl.arange(0, T)).to(tl.int64), tl.arange(0, WIDE)
    wide = (d < D)[None, :]
    here = slot.to(tl.int64) * slot_stride + tl.arange(0, P)[:, None] * (HEADS * D) + head * D + d[None, :]
    there = (tl.arange(0, P) < size)[:, None] & wide
    qs = tl.load(q + rows[:, None] * token_stride + head * D + d[None, :], mask=wide, other=0.0)
    ks = tl.load(keys + here, mask=there, other=0.0)
    p, keep, log = _over_prefix(
        qs, ks, size, scale, seed, site, limit, local, head, DROP, T, P, HEADS, EXACT,
    )  # fmt: skip
    if DROP:
        p = tl.where(keep, p * rescale, 0.0)
    vs = tl.load(values + here, mask=there, other=0.0)
    y = tl.dot(p.to(vs.dtype), vs, input_precision="ieee" if EXACT else "tf32")
    share = 1.0 / (1.0 + tl.exp2(tl.load(sums + rows * HEADS + head) - log))
    to = rows[:, None] * (HEADS * D) + head * D + d[None, :]
    first = tl.load(own + to, mask=wide, other=0.0).to(tl.float32)
    y = first + share[:, None] * (y - first)
    tl.store(out + to, y.to(out.dtype.element_ty), mask=wide)


@triton.jit
def _prefix_backward(
    q, own, sums, keys, values, g, g_own, apart, dq, tile_slot, slot_start, seeds, site, limit, rescale, scale, size,
    token_stride, grad_stride, slot_stride, DROP: tl.constexpr, T: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The gradients of the segments' output and of the log of their softmax sums, and the prefix's part of the
    queries' gradient."""
    tile, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tile_slot + tile)
    seed, local = tl.load(seeds + slot), tile * T - tl.load(slot_start + slot)
    rows, d = (tile * T + tl.arange(0, T)).to(tl.int64), tl.arange(0, WIDE)
    wide = (d < D)[None, :]
    here = slot.to(tl.int64) * slot_stride + tl.arange(0, P)[:, None] * (HEADS * D) + head * D + d[None, :]
    there = (tl.arange(0, P) < size)[:, None] & wide
    qs = tl.load(q + rows[:, None] * token_stride + head * D + d[None, :], mask=wide, other=0.0)
    ks = tl.load(keys + here, mask=there, other=0.0)
    vs = tl.load(values + here, mask=there, other=0.0)
    p, keep, log = _over_prefix(
        qs, ks, size, scale, seed, site, limit, local, head, DROP, T, P, HEADS, EXACT,
    )  # fmt: skip
    to = rows[:, None] * (HEADS * D) + head * D + d[None, :]
    gs, first = tl.load(g + to, mask=wide, other=0.0), tl.load(own + to, mask=wide, other=0.0)
    others = tl.load(sums + rows * HEADS + head)
    share, _, change, ds = _parted(p, keep, log, others, gs, first, vs, rescale, DROP, EXACT)
    tl.store(g_own + to, (gs.to(tl.float32) * (1.0 - share)[:, None]).to(g_own.dtype.element_ty), mask=wide)
    tl.store(apart + rows * HEADS + head, change)
    y = tl.dot((ds * scale).to(ks.dtype), ks, input_precision="ieee" if EXACT else "tf32")
    tl.store(dq + rows[:, None] * grad_stride + head * D + d[None, :], y.to(dq.dtype.element_ty), mask=wide)


@triton.jit
def _prefix_weights(
    q, own, sums, keys, values, g, d_keys, d_values, slot_start, slot_end, seeds, site, limit, rescale, scale, size,
    token_stride, slot_stride, DROP: tl.constexpr, T: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The gradients of a slot's keys and values, summed over its tiles one after another."""
    slot, head = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(slot_start + slot), tl.load(slot_end + slot)
    seed = tl.load(seeds + slot)
    d = tl.arange(0, WIDE)
    wide = (d < D)[None, :]
    inner = tl.arange(0, P)[:, None] * (HEADS * D) + head * D + d[None, :]
    there = (tl.arange(0, P) < size)[:, None] & wide
    ks = tl.load(keys + slot.to(tl.int64) * slot_stride + inner, mask=there, other=0.0)
    vs = tl.load(values + slot.to(tl.int64) * slot_stride + inner, mask=there, other=0.0)
    for_keys = tl.zeros((P, WIDE), tl.float32)
    for_values = tl.zeros((P, WIDE), tl.float32)
    for at in range(start, end, T):
        rows = (at + tl.arange(0, T)).to(tl.int64)
        qs = tl.load(q + rows[:, None] * token_stride + head * D + d[None, :], mask=wide, other=0.0)
        p, keep, log = _over_prefix(
            qs, ks, size, scale, seed, site, limit, at - start, head, DROP, T, P, HEADS, EXACT,
        )  # fmt: skip
        to = rows[:, None] * (HEADS * D) + head * D + d[None, :]
        gs, first = tl.load(g + to, mask=wide, other=0.0), tl.load(own + to, mask=wide, other=0.0)
        others = tl.load(sums + rows * HEADS + head)
        share, dropped, _, ds = _parted(p, keep, log, others, gs, first, vs, rescale, DROP, EXACT)
        weights = tl.trans((dropped * share[:, None]).to(gs.dtype))
        for_values += tl.dot(weights, gs, input_precision="ieee" if EXACT else "tf32")
        turned = tl.trans((ds * scale).to(qs.dtype))
        for_keys += tl.dot(turned, qs, input_precision="ieee" if EXACT else "tf32")
    to = slot.to(tl.int64) * size * (HEADS * D) + inner
    tl.store(d_keys + to, for_keys, mask=there)
    tl.store(d_values + to, for_values, mask=there)


class Joined:
    """One call of attention with a prefix."""

    def __init__(self, seen: Seen, scale: float, p: float, layout: Layout) -> None:
        self.seen, self.scale, self.p, self.layout = seen, scale, p, layout

    def forward(self, q: Tensor, own: Tensor, sums: Tensor) -> Tensor:
        """The output of segment and prefix; `own` and `sums` are the segments' output and logs of softmax sums."""
        out = torch.empty_like(own)
        keys, values, _ = self.seen
        layout = self.layout
        _prefix_forward[(layout.tokens // layout.align, q.shape[1])](
            q, own, sums, keys, values, out, layout.tile_slot, layout.slot_start, layout.seeds, *self._numbers(),
            q.stride(0), keys.stride(0), *self._constants(q), num_warps=self._warps(),
        )  # fmt: skip
        return out

    def backward(self, q: Tensor, own: Tensor, sums: Tensor, g: Tensor, dq: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the segments' output and of the log of their sums, and of the prefix's keys and values.

        Writes the prefix's part of the queries' gradient to dq; the segments' kernels add theirs.
        """
        keys, values, _ = self.seen
        layout, heads = self.layout, q.shape[1]
        g_own, apart = torch.empty_like(g), torch.empty_like(sums)
        _prefix_backward[(layout.tokens // layout.align, heads)](
            q, own, sums, keys, values, g, g_own, apart, dq, layout.tile_slot, layout.slot_start, layout.seeds,
            *self._numbers(), q.stride(0), dq.stride(0), keys.stride(0), *self._constants(q), num_warps=self._warps(),
        )  # fmt: skip
        d_keys, d_values = (torch.empty(x.shape, device=x.device, dtype=torch.float32) for x in (keys, values))
        _prefix_weights[(layout.slots, heads)](
            q, own, sums, keys, values, g, d_keys, d_values, layout.slot_start, layout.slot_end, layout.seeds,
            *self._numbers(), q.stride(0), keys.stride(0), *self._constants(q), num_warps=4,
            num_stages=1,  # more stages would not fit smaller GPUs
        )  # fmt: skip
        return g_own, apart, d_keys, d_values

    def _numbers(self) -> tuple[int | float, ...]:
        """site, limit, rescale, scale, size."""
        rescale = 1.0 / (1.0 - self.p)
        return site_of(self.seen.site), limit_of(self.p), rescale, self.scale, self.seen.keys.shape[1]

    def _constants(self, q: Tensor) -> tuple[bool | int, ...]:
        """DROP, T, P, D, WIDE, HEADS, EXACT."""
        _, heads, width = q.shape
        size, wide = (max(16, triton.next_power_of_2(n)) for n in (self.seen.keys.shape[1], width))
        return self.p > 0.0, self.layout.align, size, width, wide, heads, q.dtype == torch.float32

    def _warps(self) -> int:
        return max(1, self.layout.align // 16)
