"""Attention over packed segments.

Families whose attention comes from the `transformers` attention registry call `registered_attention` below; those with
attention code of their own are served by `cores.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.fixed import FixedBatch, FixedPrefix
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, Bucket
from intarsia.encoder.sites import PREFIX

if TYPE_CHECKING:
    from intarsia.encoder.routed import Pass

NAME = "intarsia"


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


def _bias(bucket: Bucket, heads: int, window: int | None, relative: Tensor | None, like: Tensor) -> Tensor | None:
    """What is added to the scores [rows, H, length, length] of a bucket: -inf at padding and outside the window, plus
    a relative position bias given as [H, 2 * longest - 1] over key - query distances."""
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
        spread = relative.to(like.dtype)[:, distance + middle][None]  # [1, H, length, length]
        bias = spread if bias is None else bias + spread
    if window is not None and bucket.length > window:
        near = torch.zeros(distance.shape, dtype=like.dtype, device=like.device)
        near.masked_fill_(distance.abs() >= window, float("-inf"))
        # A padded query far from every real key would see nothing at all and turn to NaN: let it see itself.
        near.fill_diagonal_(0.0)
        bias = near[None, None] if bias is None else (bias + near).masked_fill_(_own_place(bucket), 0.0)
    return bias


@dataclass(frozen=True)
class Prefix:
    """Extra keys and values that a row's queries see behind its own tokens."""

    keys: Tensor  # [R, P, H, D]
    values: Tensor
    absent: Tensor | None  # [R, P] True where a row has no such key; None: all rows have all


def prefix_of(current: Pass, layer: int, heads: int, dtype: torch.dtype) -> Prefix | FixedPrefix | None:
    """What the methods of a pass put in front of each row in a layer."""
    found = [g for g in current.groups if (PREFIX, layer) in g.places]
    if not found:
        return None
    if isinstance(current.batch, FixedBatch):
        return current.batch.runs.prefix(found[0].tensors, f"{layer}.{PREFIX}")
    size = max(g.tensors[f"{layer}.{PREFIX}.key"].shape[1] for g in found)
    rows = current.packed.rows
    pieces: tuple[list[Tensor], list[Tensor]] = ([], [])
    absent = torch.ones(rows, size, dtype=torch.bool)
    at = 0
    for group in found:
        own = [slot for slot, count in zip(group.slots, group.rows, strict=True) for _ in range(count)]
        owners = torch.tensor(own, device=current.batch.ids.device)
        for which, parts in zip(("key", "value"), pieces, strict=True):
            stacked = group.tensors[f"{layer}.{PREFIX}.{which}"]  # [slots, P, d]
            mine = stacked.index_select(0, owners).to(dtype)
            if group.first > at:
                parts.append(mine.new_zeros(group.first - at, size, mine.shape[2]))
            parts.append(F.pad(mine, (0, 0, 0, size - mine.shape[1])))
        at = group.first + len(own)
        absent[group.first : at, : mine.shape[1]] = False
    for parts in pieces:
        if at < rows:
            parts.append(parts[0].new_zeros(rows - at, *parts[0].shape[1:]))
    keys, values = (torch.cat(parts).view(rows, size, heads, -1) for parts in pieces)
    return Prefix(keys, values, absent.to(keys.device) if absent.any() else None)


def _prefix_blocks(x: Tensor, bucket: Bucket) -> Tensor:
    """[R, P, H, D] → [rows * H, P, D], the bucket's rows."""
    rows = x.index_select(0, bucket.members).transpose(1, 2)  # [rows, H, P, D]
    return rows.reshape(-1, *rows.shape[2:])


def _absent(absent: Tensor, bucket: Bucket, like: Tensor) -> Tensor:
    """[rows, 1, 1, P] what is added to the scores of a bucket's prefix."""
    missing = absent.index_select(0, bucket.members)[:, None, None]
    return torch.zeros(missing.shape, dtype=like.dtype, device=like.device).masked_fill_(missing, float("-inf"))


def _own_place(bucket: Bucket) -> Tensor:
    """[rows, 1, length, length] True where a padded query meets itself."""
    return torch.diag_embed(bucket.padding)[:, None]


class _PackedAttention(torch.autograd.Function):
    """softmax(q k' * scale + bias) v by buckets, with dropout on the probabilities.

    Written with its own backward so that a bucket's padded copies are made once, in as few sweeps as possible.
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
            bias = _bias(bucket, heads, window, relative, q)
            if bias is not None:
                by_row[..., : bucket.length].add_(bias)
            if absent is not None:
                by_row[..., bucket.length :].add_(_absent(absent, bucket, scores))
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
            rows.index_fill_(0, bucket.padded_places, 0.0)  # padded queries send nothing back
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
    """Sum the gradient of the scores [rows * H, T, T + P] into the bias table [H, distances] it came from."""
    length, heads = bucket.length, total.shape[0]
    by_place = gs[..., :length].reshape(bucket.rows, heads, length, length).sum(0)  # [H, T, T]
    steps = torch.arange(length, device=gs.device)
    distance = (steps[None, :] - steps[:, None]).view(-1) + total.shape[1] // 2
    total.index_add_(1, distance, by_place.view(heads, -1))


def packed_attention(
    q: Tensor,  # [N, H, D]
    k: Tensor,
    v: Tensor,
    batch: Batch | FixedBatch,
    *,
    scale: float,
    p: float = 0.0,
    noise: Noise | None = None,
    window: int | None = None,
    relative: Tensor | None = None,
    prefix: Prefix | FixedPrefix | None = None,
) -> Tensor:
    """Attention within each segment of `batch`; returns [N, H, D]."""
    if isinstance(batch, FixedBatch):
        assert not isinstance(prefix, Prefix) and window is None, "no pass of fixed shape was to be made of this"
        return batch.attention(q, k, v, scale, p, noise, relative, prefix)
    assert not isinstance(prefix, FixedPrefix), "this is for passes of fixed shape"
    if noise is None or not noise.dropout:
        noise, p = None, 0.0
    extra = (None, None, None) if prefix is None else (prefix.keys, prefix.values, prefix.absent)
    arguments = (q, k, v, relative, *extra, batch, scale, p, noise, window)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, relative, extra[0])):
        return _PackedAttention.apply(*arguments)
    if noise is not None and p > 0.0:  # training below the lowest trainable place
        return _PackedAttention.forward(_Discard(), *arguments)
    outputs = []
    for bucket in batch.buckets:
        qb, kb, vb = (
            x.index_select(0, bucket.tokens).view(bucket.rows, bucket.length, *x.shape[1:]).transpose(1, 2)
            for x in (q, k, v)
        )  # [B, H, T, D]
        bias = _bias(bucket, q.shape[1], window, relative, q)
        out = _sdpa(qb, kb, vb, bias, bucket, prefix, scale, 0.0)
        outputs.append(out.transpose(1, 2).reshape(bucket.rows * bucket.length, *q.shape[1:]))
    return torch.cat(outputs).index_select(0, batch.unbucket)


def _sdpa(
    q: Tensor,  # [B, H, T, D]
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    bucket: Bucket,
    prefix: Prefix | None,
    scale: float,
    p: float,
) -> Tensor:
    if prefix is not None:
        k, v = (
            torch.cat([x, more.index_select(0, bucket.members).transpose(1, 2)], 2)
            for x, more in ((k, prefix.keys), (v, prefix.values))
        )
        if bias is not None or prefix.absent is not None:
            own = q.new_zeros(1, 1, 1, bucket.length) if bias is None else bias
            size = prefix.keys.shape[1]
            absent = prefix.absent
            behind = q.new_zeros(1, 1, 1, size) if absent is None else _absent(absent, bucket, q)
            common = torch.broadcast_shapes(own.shape[:3], behind.shape[:3])
            bias = torch.cat([own.expand(*common, -1), behind.expand(*common, -1)], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p, scale=scale)


class _Discard:
    """Stands in for autograd's context where no gradient is wanted."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass


def registered_attention(
    module: Any,
    query: Tensor,  # [1, H, N, D] packed, [B, H, T, D] padded
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention that Intarsia puts into the `transformers` attention registry."""
    current: Pass | None = module.intarsia_switchboard.current
    if current is None:
        raise RuntimeError("this model belongs to an intarsia.Encoder: call the encoder's forward, not the model")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    prefix = prefix_of(current, current.layer(module.intarsia_layers), query.shape[1], query.dtype)
    if current.padded:
        whole = current.packed.whole
        bias = _bias(whole, query.shape[1], sliding_window, None, query)
        assert not isinstance(prefix, FixedPrefix), "a pass of fixed shape is never padded"
        p = dropout if current.noise is not None and current.noise.dropout else 0.0
        out = _sdpa(query, key, value, bias, whole, prefix, scale, p)
        return out.transpose(1, 2).contiguous(), None
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [N, H, D]
    out = packed_attention(
        q, k, v, current.batch, scale=scale, p=dropout, noise=current.noise, window=sliding_window, prefix=prefix
    )
    return out[None], None


def register() -> None:
    """Make `registered_attention` known to `transformers`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, registered_attention)
