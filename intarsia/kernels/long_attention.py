"""Attention within segments that are too long for one block: queries and keys are processed block by block.

The forward kernel computes the softmax online over the blocks of keys, and stores the logarithm of its sum. Backward,
`_long_queries` iterates over the keys for a block of queries, and `_long_keys` over the queries for a block of keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from intarsia.kernels.scores import kept_of, owned_by, scatter_by_distance, scores_of


@triton.jit
def _long_forward(
    q, k, v, out, sums, table, row_start, row_length, tile_slot, slot_start, seeds, site, limit, rescale, scale, middle,
    token_stride, RELATIVE: tl.constexpr, DROP: tl.constexpr, ALIGN: tl.constexpr, ABOVE: tl.constexpr,
    B: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row, head, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * B
    length = tl.load(row_length + row)
    if (length > ABOVE) & (first < length):
        start, seed, local = owned_by(row, row_start, tile_slot, slot_start, seeds, ALIGN)
        rows, d = first + tl.arange(0, B), tl.arange(0, WIDE)
        wide = (d < D)[None, :]
        mine = (rows < length)[:, None] & wide
        tokens = (start + rows)[:, None].to(tl.int64)
        qs = tl.load(q + tokens * token_stride + head * D + d[None, :], mask=mine, other=0.0)
        top = tl.full((B,), float("-inf"), tl.float32)
        total = tl.zeros((B,), tl.float32)
        y = tl.zeros((B, WIDE), tl.float32)
        for at in range(0, length, B):
            columns = at + tl.arange(0, B)
            place = (start + columns)[:, None].to(tl.int64) * token_stride + head * D + d[None, :]
            there = (columns < length)[:, None] & wide
            ks = tl.load(k + place, mask=there, other=0.0)
            scores = scores_of(qs, ks, table, head, rows, columns, length, scale, middle, RELATIVE, EXACT)
            higher = tl.maximum(top, tl.max(scores, 1))
            shrink = tl.exp2(top - higher)
            p = tl.exp2(scores - higher[:, None])
            total = total * shrink + tl.sum(p, 1)
            if DROP:
                p = tl.where(kept_of(seed, site, limit, local, rows, columns, head, HEADS), p * rescale, 0.0)
            vs = tl.load(v + place, mask=there, other=0.0)
            y = y * shrink[:, None] + tl.dot(p.to(vs.dtype), vs, input_precision="ieee" if EXACT else "tf32")
            top = higher
        y = y / total[:, None]
        tl.store(out + tokens * (HEADS * D) + head * D + d[None, :], y.to(out.dtype.element_ty), mask=mine)
        tl.store(sums + (start + rows).to(tl.int64) * HEADS + head, top + tl.log2(total), mask=rows < length)


@triton.jit
def _long_queries(
    q, k, v, out, sums, g, apart, dq, dk, dv, dtable, table, row_start, row_length, tile_slot, slot_start, seeds, site,
    limit, rescale, scale, middle, token_stride, grad_stride, TRAINED: tl.constexpr, JOINED: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr, ALIGN: tl.constexpr, ABOVE: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row, head, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * B
    length = tl.load(row_length + row)
    if (length > ABOVE) & (first < length):
        start, seed, local = owned_by(row, row_start, tile_slot, slot_start, seeds, ALIGN)
        rows, d = first + tl.arange(0, B), tl.arange(0, WIDE)
        wide = (d < D)[None, :]
        mine = (rows < length)[:, None] & wide
        tokens = (start + rows)[:, None].to(tl.int64)
        own = tokens * (HEADS * D) + head * D + d[None, :]
        qs = tl.load(q + tokens * token_stride + head * D + d[None, :], mask=mine, other=0.0)
        gs = tl.load(g + own, mask=mine, other=0.0)
        mean = tl.sum(gs.to(tl.float32) * tl.load(out + own, mask=mine, other=0.0).to(tl.float32), 1)
        logs = tl.load(sums + (start + rows).to(tl.int64) * HEADS + head, mask=rows < length, other=0.0)
        if JOINED:
            mean -= tl.load(apart + (start + rows).to(tl.int64) * HEADS + head, mask=rows < length, other=0.0)
        change = tl.zeros((B, WIDE), tl.float32)
        for at in range(0, length, B):
            columns = at + tl.arange(0, B)
            place = (start + columns)[:, None].to(tl.int64) * token_stride + head * D + d[None, :]
            there = (columns < length)[:, None] & wide
            ks, vs = tl.load(k + place, mask=there, other=0.0), tl.load(v + place, mask=there, other=0.0)
            scores = scores_of(qs, ks, table, head, rows, columns, length, scale, middle, RELATIVE, EXACT)
            dp = tl.dot(gs, tl.trans(vs), input_precision="ieee" if EXACT else "tf32")
            if DROP:
                dp = tl.where(kept_of(seed, site, limit, local, rows, columns, head, HEADS), dp * rescale, 0.0)
            ds = tl.exp2(scores - logs[:, None]) * (dp - mean[:, None])
            if TRAINED:
                scatter_by_distance(dtable, head, rows, columns, length, middle, ds)
            change += tl.dot((ds * scale).to(ks.dtype), ks, input_precision="ieee" if EXACT else "tf32")
        to = tokens * grad_stride + head * D + d[None, :]
        if JOINED:
            change += tl.load(dq + to, mask=mine, other=0.0).to(tl.float32)
        tl.store(dq + to, change.to(dq.dtype.element_ty), mask=mine)


@triton.jit
def _long_keys(
    q, k, v, out, sums, g, apart, dq, dk, dv, dtable, table, row_start, row_length, tile_slot, slot_start, seeds, site,
    limit, rescale, scale, middle, token_stride, grad_stride, TRAINED: tl.constexpr, JOINED: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr, ALIGN: tl.constexpr, ABOVE: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row, head, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * B
    length = tl.load(row_length + row)
    if (length > ABOVE) & (first < length):
        start, seed, local = owned_by(row, row_start, tile_slot, slot_start, seeds, ALIGN)
        columns, d = first + tl.arange(0, B), tl.arange(0, WIDE)
        wide = (d < D)[None, :]
        mine = (columns < length)[:, None] & wide
        tokens = (start + columns)[:, None].to(tl.int64)
        here = tokens * token_stride + head * D + d[None, :]
        ks, vs = tl.load(k + here, mask=mine, other=0.0), tl.load(v + here, mask=mine, other=0.0)
        for_keys = tl.zeros((B, WIDE), tl.float32)
        for_values = tl.zeros((B, WIDE), tl.float32)
        for at in range(0, length, B):
            rows = at + tl.arange(0, B)
            there = (rows < length)[:, None] & wide
            others = (start + rows)[:, None].to(tl.int64)
            own = others * (HEADS * D) + head * D + d[None, :]
            qs = tl.load(q + others * token_stride + head * D + d[None, :], mask=there, other=0.0)
            gs = tl.load(g + own, mask=there, other=0.0)
            mean = tl.sum(gs.to(tl.float32) * tl.load(out + own, mask=there, other=0.0).to(tl.float32), 1)
            logs = tl.load(sums + (start + rows).to(tl.int64) * HEADS + head, mask=rows < length, other=0.0)
            if JOINED:
                mean -= tl.load(apart + (start + rows).to(tl.int64) * HEADS + head, mask=rows < length, other=0.0)
            scores = scores_of(qs, ks, table, head, rows, columns, length, scale, middle, RELATIVE, EXACT)
            p = tl.where((rows < length)[:, None], tl.exp2(scores - logs[:, None]), 0.0)
            dropped, dp = p, tl.dot(gs, tl.trans(vs), input_precision="ieee" if EXACT else "tf32")
            if DROP:
                keep = kept_of(seed, site, limit, local, rows, columns, head, HEADS)
                dropped, dp = tl.where(keep, p * rescale, 0.0), tl.where(keep, dp * rescale, 0.0)
            for_values += tl.dot(tl.trans(dropped.to(gs.dtype)), gs, input_precision="ieee" if EXACT else "tf32")
            ds = (p * (dp - mean[:, None]) * scale).to(qs.dtype)
            for_keys += tl.dot(tl.trans(ds), qs, input_precision="ieee" if EXACT else "tf32")
        to = tokens * grad_stride + head * D + d[None, :]
        tl.store(dk + to, for_keys.to(dk.dtype.element_ty), mask=mine)
        tl.store(dv + to, for_values.to(dv.dtype.element_ty), mask=mine)
