"""Attention within segments. One program handles a head of a short segment; the scores stay on the chip."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout
from intarsia.kernels.long_attention import _long_forward, _long_keys, _long_queries
from intarsia.kernels.mixing import limit_of, site_of
from intarsia.kernels.prefix_attention import Joined, Seen
from intarsia.kernels.scores import kept_of, owned_by, scatter_by_distance, scores_of

# With this many segments or fewer the GPU is not full. A launch then costs more than the padding of a wider class, so
# the narrow classes are not used.
FEW = 160
_CLASSES = (16, 32, 64, 128)  # a segment runs in the narrowest class that fits it; longer segments go block by block
_LIGHT, _HEAVY = (128, 64), (64, 32)


def limits(exact: bool, width: int) -> tuple[int, int]:
    """The widest class, and the size of a block. In float32 or with wide heads less fits into smaller GPUs."""
    return _HEAVY if exact or width > 64 else _LIGHT


@triton.jit
def _probabilities(
    q, k, table, head, length, scale, middle, seed, site, limit, local,
    RELATIVE: tl.constexpr, DROP: tl.constexpr, T: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The probabilities [T, T] of a segment's queries over its keys, dropout's mask, and the log of the softmax sum."""
    steps = tl.arange(0, T)
    scores = scores_of(q, k, table, head, steps, steps, length, scale, middle, RELATIVE, EXACT)
    top = tl.max(scores, 1)
    scores = tl.exp2(scores - top[:, None])
    total = tl.sum(scores, 1)
    p = scores * (1.0 / total)[:, None]
    keep = p >= 0.0
    if DROP:
        keep = kept_of(seed, site, limit, local, steps, steps, head, HEADS)
    return p, keep, top + tl.log2(total)


@triton.jit
def _attention_forward(
    q, k, v, out, sums, table, row_start, row_length, tile_slot, slot_start, seeds, site, limit, rescale, scale, middle,
    token_stride, JOINED: tl.constexpr, RELATIVE: tl.constexpr, DROP: tl.constexpr, ALIGN: tl.constexpr,
    ABOVE: tl.constexpr, T: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(row_length + row)
    if (length > ABOVE) & (length <= T):
        start, seed, local = owned_by(row, row_start, tile_slot, slot_start, seeds, ALIGN)
        steps, d = tl.arange(0, T), tl.arange(0, WIDE)
        inside = (steps < length)[:, None] & (d < D)[None, :]
        place = (start + steps)[:, None].to(tl.int64) * token_stride + head * D + d[None, :]
        qs, ks = tl.load(q + place, mask=inside, other=0.0), tl.load(k + place, mask=inside, other=0.0)
        p, keep, log = _probabilities(
            qs, ks, table, head, length, scale, middle, seed, site, limit, local, RELATIVE, DROP, T, HEADS, EXACT,
        )  # fmt: skip
        if DROP:
            p = tl.where(keep, p * rescale, 0.0)
        vs = tl.load(v + place, mask=inside, other=0.0)
        y = tl.dot(p.to(vs.dtype), vs, input_precision="ieee" if EXACT else "tf32")
        to = (start + steps)[:, None].to(tl.int64) * (HEADS * D) + head * D + d[None, :]
        tl.store(out + to, y.to(out.dtype.element_ty), mask=inside)
        if JOINED:
            tl.store(sums + (start + steps).to(tl.int64) * HEADS + head, log, mask=steps < length)


@triton.jit
def _attention_backward(
    q, k, v, g, apart, dq, dk, dv, dtable, table, row_start, row_length, tile_slot, slot_start, seeds, site, limit,
    rescale, scale, middle, token_stride, grad_stride, TRAINED: tl.constexpr, JOINED: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr, ALIGN: tl.constexpr, ABOVE: tl.constexpr,
    T: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(row_length + row)
    if (length > ABOVE) & (length <= T):
        start, seed, local = owned_by(row, row_start, tile_slot, slot_start, seeds, ALIGN)
        steps, d = tl.arange(0, T), tl.arange(0, WIDE)
        inside = (steps < length)[:, None] & (d < D)[None, :]
        place = (start + steps)[:, None].to(tl.int64) * token_stride + head * D + d[None, :]
        to = (start + steps)[:, None].to(tl.int64) * (HEADS * D) + head * D + d[None, :]
        qs, ks = tl.load(q + place, mask=inside, other=0.0), tl.load(k + place, mask=inside, other=0.0)
        vs, gs = tl.load(v + place, mask=inside, other=0.0), tl.load(g + to, mask=inside, other=0.0)
        p, keep, _ = _probabilities(
            qs, ks, table, head, length, scale, middle, seed, site, limit, local, RELATIVE, DROP, T, HEADS, EXACT,
        )  # fmt: skip
        dropped, dp = p, tl.dot(gs, tl.trans(vs), input_precision="ieee" if EXACT else "tf32")
        if DROP:
            dropped = tl.where(keep, p * rescale, 0.0)
            dp = tl.where(keep, dp * rescale, 0.0)
        to = (start + steps)[:, None].to(tl.int64) * grad_stride + head * D + d[None, :]
        change = tl.dot(tl.trans(dropped.to(gs.dtype)), gs, input_precision="ieee" if EXACT else "tf32")
        tl.store(dv + to, change.to(dv.dtype.element_ty), mask=inside)
        mean = tl.sum(dp * p, 1)
        if JOINED:
            mean -= tl.load(apart + (start + steps).to(tl.int64) * HEADS + head, mask=steps < length, other=0.0)
        ds = p * (dp - mean[:, None])
        if TRAINED:
            scatter_by_distance(dtable, head, steps, steps, length, middle, ds)
        ds = (ds * scale).to(qs.dtype)
        change = tl.dot(ds, ks, input_precision="ieee" if EXACT else "tf32")
        if JOINED:
            change += tl.load(dq + to, mask=inside, other=0.0).to(tl.float32)
        tl.store(dq + to, change.to(dq.dtype.element_ty), mask=inside)
        change = tl.dot(tl.trans(ds), qs, input_precision="ieee" if EXACT else "tf32")
        tl.store(dk + to, change.to(dk.dtype.element_ty), mask=inside)


class _Call:
    """The settings of one call of `attention`, and the launches of its kernels."""

    def __init__(
        self,
        relative: Tensor | None,
        scale: float,
        p: float,
        site: int,
        layout: Layout,
        limits: tuple[int, int],
        joined: Joined | None,
    ) -> None:
        self.relative, self.scale, self.p, self.site, self.layout = relative, scale, p, site, layout
        self.widest, self.block = limits
        self.joined = joined

    @property
    def long(self) -> bool:
        return self.layout.longest > self.widest

    def launch(self, kernel: Any, tensors: tuple[Tensor, ...], *further: int) -> None:
        """Launch a kernel for the segments that fit into one block, once for each class of lengths."""
        layout, above = self.layout, 0
        classes = tuple(t for t in _CLASSES if t <= min(layout.longest, self.widest))
        if layout.row_start.shape[0] <= FEW:
            classes = tuple(t for t in classes if t >= min(64, classes[-1]))
        for most in classes:
            self._launch_class(kernel, 1, above, most, max(1, most // 16), tensors, *further)
            above = most

    def launch_long(self, kernel: Any, tensors: tuple[Tensor, ...], *further: int) -> None:
        """Launch a kernel for the longer segments."""
        blocks = triton.cdiv(self.layout.longest, self.block)
        self._launch_class(kernel, blocks, self.widest, self.block, 4, tensors, *further)

    def _launch_class(
        self, kernel: Any, blocks: int, above: int, most: int, warps: int, tensors: tuple[Tensor, ...], *further: int
    ) -> None:
        """Launch a kernel for the segments with more than `above` and (if short) at most `most` tokens."""
        layout = self.layout
        _, heads, width = tensors[0].shape
        table = tensors[0] if self.relative is None else self.relative
        kernel[(layout.row_start.shape[0], heads, blocks)](
            *tensors, table, layout.row_start, layout.row_length, layout.tile_slot, layout.slot_start, layout.seeds,
            site_of(self.site), limit_of(self.p), 1.0 / (1.0 - self.p), self.scale, table.shape[-1] // 2, *further,
            self.relative is not None, self.p > 0.0, layout.align, above, most, width,
            max(16, triton.next_power_of_2(width)), heads, tensors[0].dtype == torch.float32, num_warps=warps,
        )  # fmt: skip


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        relative: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        call: _Call,
    ) -> Tensor:
        if not q.stride() == k.stride() == v.stride() or q.stride()[1:] != (q.shape[2], 1):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        own = torch.empty(q.shape, device=q.device, dtype=q.dtype)
        joined, kept = call.joined, tuple[Tensor, ...]()
        sums = own
        if call.long or joined is not None:
            sums = torch.empty(q.shape[:2], device=q.device, dtype=torch.float32)
            kept = own, sums
        call.launch(_attention_forward, (q, k, v, own, sums), q.stride(0), joined is not None)
        if call.long:
            call.launch_long(_long_forward, (q, k, v, own, sums), q.stride(0))
        ctx.save_for_backward(q, k, v, *kept)
        ctx.call = call
        return own if joined is None else joined.forward(q, own, sums)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        call, trained = ctx.call, ctx.needs_input_grad[3]
        g = g.contiguous()
        tokens, heads, width = g.shape
        # The three gradients share one tensor, so that one matrix product can take all of them back.
        joint = torch.empty(tokens, 3, heads, width, device=g.device, dtype=g.dtype)
        dq, dk, dv = joint.unbind(1)
        apart, d_keys, d_values = g, None, None
        if call.joined is not None:
            g, apart, d_keys, d_values = call.joined.backward(q, *kept, g, dq)
        dtable = torch.zeros_like(call.relative, dtype=torch.float32) if trained else dq
        further = q.stride(0), 3 * heads * width, trained, call.joined is not None
        call.launch(_attention_backward, (q, k, v, g, apart, dq, dk, dv, dtable), *further)
        if call.long:
            for kernel in (_long_queries, _long_keys):
                call.launch_long(kernel, (q, k, v, *kept, g, apart, dq, dk, dv, dtable), *further)
        return dq, dk, dv, dtable.to(call.relative.dtype) if trained else None, d_keys, d_values, None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    scale: float,
    p: float,
    site: int,
    relative: Tensor | None,
    prefix: tuple[Tensor, Tensor, Seen] | None = None,
) -> Tensor:
    """The attention output: q, k, v [tokens, heads, width] → the same shape.

    `relative` [heads, distances] is added to the scores. `prefix` has keys and values [slots, P, heads * width] that
    a slot's tokens also attend to: in float32 for the gradients, and as `Seen` for the computation.
    """
    bias = None if relative is None else relative.detach()
    keys, values, seen = prefix or (None, None, None)
    joined = None if seen is None else Joined(seen, scale, p, layout)
    call = _Call(bias, scale, p, site, layout, limits(q.dtype == torch.float32, q.shape[2]), joined)
    return _Attention.apply(q, k, v, relative, keys, values, call)
