"""Attention over packed segments.

Families that use the `transformers` attention registry reach it through `attention_registry.py`. Families with their
own attention code use `cores.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, Bucket
from intarsia.encoder.static_shape import StaticBatch, StaticPrefixStates


def _blocks(x: Tensor, bucket: Bucket) -> Tensor:
    """[N, H, D] → [rows * H, length, D]."""
    _, heads, dim = x.shape
    rows = x.index_select(0, bucket.tokens).view(bucket.rows, bucket.length, heads, dim)
    return rows.transpose(1, 2).reshape(bucket.rows * heads, bucket.length, dim)


def _rows(blocks: Tensor, bucket: Bucket) -> Tensor:
    """[rows * H, length, D] → [rows * length, H, D]."""
    heads, dim = blocks.shape[0] // bucket.rows, blocks.shape[2]
    padded = blocks.view(bucket.rows, heads, bucket.length, dim).transpose(1, 2)
    return padded.reshape(bucket.rows * bucket.length, heads, dim)


def additive_bias(
    bucket: Bucket, heads: int, window: int | None, relative: Tensor | None, like: Tensor
) -> Tensor | None:
    """Return the bias for the scores [rows, H, length, length] of a bucket, or None if it would be 0.

    The bias is -inf at padding and outside the window, plus `relative`: [H, 2 * longest - 1] by key - query distance.
    """
    bias: Tensor | None = None
    if not bucket.full:
        bias = torch.zeros(bucket.rows, 1, 1, bucket.length, dtype=like.dtype, device=like.device)
        bias.masked_fill_(bucket.padding[:, None, None, :], float("-inf"))
    if relative is None and (window is None or bucket.length <= window):
        return bias
    steps = torch.arange(bucket.length, device=like.device)
    distance = steps[None, :] - steps[:, None]  # [length, length], key - query
    if relative is not None:
        middle = relative.shape[1] // 2
        places = (distance + middle).clamp(0, relative.shape[1] - 1)  # only padding is farther than the table goes
        spread = relative.to(like.dtype)[:, places][None]  # [1, H, length, length]
        bias = spread if bias is None else bias + spread
    if window is not None and bucket.length > window:
        near = torch.zeros(distance.shape, dtype=like.dtype, device=like.device)
        near.masked_fill_(distance.abs() >= window, float("-inf"))
        # A padded query far from every real key would have only -inf scores and give NaN, so it attends to itself.
        near.fill_diagonal_(0.0)
        bias = near[None, None] if bias is None else (bias + near).masked_fill_(_padded_diagonal(bucket), 0.0)
    return bias


@dataclass(frozen=True)
class PrefixStates:
    """Extra keys and values for the queries of each row, after the keys and values of its tokens."""

    keys: Tensor  # [R, P, H, D]
    values: Tensor
    absent: Tensor | None  # [R, P] True where a row has no prefix key; None: every row has all P keys

    def first(self, size: int) -> PrefixStates | None:
        """Return the first `size` keys, for rows that have just these; None for rows without a prefix."""
        return PrefixStates(self.keys[:, :size], self.values[:, :size], None) if size else None


def _prefix_blocks(x: Tensor, bucket: Bucket) -> Tensor:
    """[R, P, H, D] → [rows * H, P, D] for the rows of the bucket."""
    rows = x.index_select(0, bucket.members).transpose(1, 2)  # [rows, H, P, D]
    return rows.reshape(-1, *rows.shape[2:])


def _absent_bias(absent: Tensor, bucket: Bucket, like: Tensor) -> Tensor:
    """Return the bias [rows, 1, 1, P] for the prefix scores of a bucket: -inf where a row has no prefix key."""
    missing = absent.index_select(0, bucket.members)[:, None, None]
    return torch.zeros(missing.shape, dtype=like.dtype, device=like.device).masked_fill_(missing, float("-inf"))


def _padded_diagonal(bucket: Bucket) -> Tensor:
    """Return [rows, 1, length, length]: True where query and key are the same padded position."""
    return torch.diag_embed(bucket.padding)[:, None]


class _PackedAttention(torch.autograd.Function):
    """softmax(q k' * scale + bias) v by buckets, with dropout on the probabilities.

    The custom backward reuses the padded copies of the forward pass and reads memory as few times as possible.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,  # [N, H, D], as k and v
        k: Tensor,
        v: Tensor,
        relative: Tensor | None,  # [H, 2 * longest - 1]
        prefix_keys: Tensor | None,  # [R, P, H, D]
        prefix_values: Tensor | None,
        absent: Tensor | None,
        batch: Batch,
        scale: float,
        p: float,
        noise: Noise | None,
        window: int | None,
    ) -> Tensor:
        heads = q.shape[1]
        saved: list[Tensor] = []
        outputs: list[Tensor] = []
        for bucket in batch.buckets:
            qb, kb, vb = _blocks(q, bucket), _blocks(k, bucket), _blocks(v, bucket)  # [B*H, T, D]
            if prefix_keys is not None and prefix_values is not None:
                kb = torch.cat([kb, _prefix_blocks(prefix_keys, bucket)], 1)  # [B*H, T + P, D]
                vb = torch.cat([vb, _prefix_blocks(prefix_values, bucket)], 1)
            scores = torch.bmm(qb, kb.transpose(1, 2)).mul_(scale)
            by_row = scores.view(bucket.rows, heads, bucket.length, -1)
            bias = additive_bias(bucket, heads, window, relative, q)
            if bias is not None:
                by_row[..., : bucket.length].add_(bias)
            if absent is not None:
                by_row[..., bucket.length :].add_(_absent_bias(absent, bucket, scores))
            probabilities = torch.softmax(scores, -1)
            if noise is not None and p > 0.0:
                keep = noise.keep(probabilities.shape, p)
                weights = torch.ops.aten.native_dropout_backward(probabilities, keep, 1.0 / (1.0 - p))
                saved += [qb, kb, vb, probabilities, weights, keep]
            else:
                weights = probabilities
                saved += [qb, kb, vb, probabilities, weights, weights]
            outputs.append(_rows(torch.bmm(weights, vb), bucket))
        ctx.save_for_backward(*saved)
        ctx.batch, ctx.scale = batch, scale
        ctx.p = p if noise is not None else 0.0
        ctx.prefix = None if prefix_keys is None else prefix_keys.shape
        ctx.relative = None if relative is None else relative.shape
        return torch.cat(outputs).index_select(0, batch.unbucket)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        batch: Batch = ctx.batch
        grads: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        g_keys = g_values = g_relative = None
        if ctx.prefix is not None:
            g_keys, g_values = grad.new_zeros(ctx.prefix), grad.new_zeros(ctx.prefix)
        if ctx.needs_input_grad[3]:
            g_relative = grad.new_zeros(ctx.relative)
        for i, bucket in enumerate(batch.buckets):
            qb, kb, vb, probabilities, weights, keep = ctx.saved_tensors[6 * i : 6 * i + 6]
            rows = grad.index_select(0, bucket.tokens)
            rows.index_fill_(0, bucket.padded_places, 0.0)  # padded queries have no gradient
            gb = rows.view(bucket.rows, bucket.length, *grad.shape[1:]).transpose(1, 2).reshape(qb.shape)
            gv = torch.bmm(weights.transpose(1, 2), gb)
            gp = torch.bmm(gb, vb.transpose(1, 2))
            if ctx.p > 0.0:
                gp = torch.ops.aten.native_dropout_backward(gp, keep, 1.0 / (1.0 - ctx.p))
            gs = torch.ops.aten._softmax_backward_data(gp, probabilities, -1, probabilities.dtype)
            if g_relative is not None:
                _add_by_distance(g_relative, gs, bucket)
            gs.mul_(ctx.scale)
            gk = torch.bmm(gs.transpose(1, 2), qb)
            grads[0].append(_rows(torch.bmm(gs, kb), bucket))
            grads[1].append(_rows(gk[:, : bucket.length], bucket))
            grads[2].append(_rows(gv[:, : bucket.length], bucket))
            if g_keys is not None and g_values is not None:
                for total, part in ((g_keys, gk), (g_values, gv)):
                    part = part[:, bucket.length :].view(bucket.rows, -1, *part[:, bucket.length :].shape[1:])
                    total.index_copy_(0, bucket.members, part.transpose(1, 2))
        gq, gk, gv = (torch.cat(g).index_select(0, batch.unbucket) for g in grads)
        return gq, gk, gv, g_relative, g_keys, g_values, None, None, None, None, None, None


def _add_by_distance(total: Tensor, gs: Tensor, bucket: Bucket) -> None:
    """Add the gradient of the scores [rows * H, T, T + P] to `total`, the gradient of the bias table [H, distances]."""
    length, heads = bucket.length, total.shape[0]
    by_pair = gs[..., :length].reshape(bucket.rows, heads, length, length).sum(0)  # [H, T, T]
    steps = torch.arange(length, device=gs.device)
    distance = (steps[None, :] - steps[:, None]).view(-1) + total.shape[1] // 2
    total.index_add_(1, distance, by_pair.view(heads, -1))


def packed_attention(
    q: Tensor,  # [N, H, D]
    k: Tensor,
    v: Tensor,
    batch: Batch | StaticBatch,
    *,
    scale: float,
    p: float = 0.0,
    noise: Noise | None = None,
    window: int | None = None,
    relative: Tensor | None = None,
    prefix: PrefixStates | StaticPrefixStates | None = None,
) -> Tensor:
    """Return attention within each segment of `batch`: [N, H, D]."""
    if isinstance(batch, StaticBatch):
        assert not isinstance(prefix, PrefixStates) and window is None, "windows need an eager pass"
        return batch.attention(q, k, v, scale, p, noise, relative, prefix)
    assert not isinstance(prefix, StaticPrefixStates), "only a pass of fixed shape has prefixes by slot"
    if noise is None or not noise.dropout:
        noise, p = None, 0.0
    extra = (None, None, None) if prefix is None else (prefix.keys, prefix.values, prefix.absent)
    arguments = (q, k, v, relative, *extra, batch, scale, p, noise, window)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, relative, extra[0])):
        return _PackedAttention.apply(*arguments)
    if noise is not None and p > 0.0:  # training, in a layer below the lowest trained place
        return _PackedAttention.forward(_Discard(), *arguments)
    # Each row is padded to a length of its own, and sees a prefix only if it has one: its values do not depend on
    # the other rows of the batch.
    sizes = () if prefix is None or prefix.absent is None else tuple((~prefix.absent).sum(1).tolist())
    bucketed = batch.in_rungs(sizes)
    outputs = []
    for bucket, size in zip(bucketed.buckets, bucketed.kinds, strict=True):
        qb, kb, vb = (
            x.index_select(0, bucket.tokens).view(bucket.rows, bucket.length, *x.shape[1:]).transpose(1, 2)
            for x in (q, k, v)
        )  # [B, H, T, D]
        bias = additive_bias(bucket, q.shape[1], window, relative, q)
        own = prefix.first(size) if prefix is not None and sizes else prefix
        out = padded_attention(qb, kb, vb, bias, bucket, own, scale, 0.0)
        outputs.append(out.transpose(1, 2).reshape(bucket.rows * bucket.length, *q.shape[1:]))
    return torch.cat(outputs).index_select(0, bucketed.places)


def padded_attention(
    q: Tensor,  # [B, H, T, D]
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    bucket: Bucket,
    prefix: PrefixStates | None,
    scale: float,
    p: float,
) -> Tensor:
    """Return attention within each row of a padded block: [B, H, T, D]."""
    if prefix is not None:
        k, v = (
            torch.cat([x, extra.index_select(0, bucket.members).transpose(1, 2)], 2)
            for x, extra in ((k, prefix.keys), (v, prefix.values))
        )
        if bias is not None or prefix.absent is not None:
            own = q.new_zeros(1, 1, 1, bucket.length) if bias is None else bias
            size = prefix.keys.shape[1]
            absent = prefix.absent
            prefix_bias = q.new_zeros(1, 1, 1, size) if absent is None else _absent_bias(absent, bucket, q)
            common = torch.broadcast_shapes(own.shape[:3], prefix_bias.shape[:3])
            bias = torch.cat([own.expand(*common, -1), prefix_bias.expand(*common, -1)], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p, scale=scale)


class _Discard:
    """Replaces autograd's context if no gradient is needed."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass
