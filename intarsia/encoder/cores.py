"""Attention modules of families that do not use the attention registry of `transformers`.

MPNet's own attention code adds a relative position bias; `MPNetCore` replaces it. DeBERTa's disentangled attention (and
its optional convolution) runs unchanged on a padded block inside `PaddedIsland`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.encoder.attention import packed_attention
from intarsia.encoder.attention_registry import prefix_of
from intarsia.encoder.routed import Pass, Switchboard


class MPNetCore(nn.Module):
    """MPNet's attention over packed segments: its own projections, and the relative position bias that layers share."""

    def __init__(self, plain: Any, bias: MPNetBias, switchboard: Switchboard, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.q, self.k, self.v, self.o = plain.q, plain.k, plain.v, plain.o
        self.heads, self.p = plain.num_attention_heads, plain.dropout.p
        self.bias, self.switchboard = [bias], switchboard  # a list, so that the bias is not a submodule of the core

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        current = self.switchboard.current
        assert current is not None, "MPNet's attention runs only inside a pass"
        batch = current.batch
        shape = hidden_states.shape
        q, k, v = (
            linear(hidden_states).view(shape[0] * shape[1], self.heads, -1) for linear in (self.q, self.k, self.v)
        )
        if current.padded:
            q, k, v = (x.index_select(0, current.packed.unpad) for x in (q, k, v))  # [N, H, D]
        out = packed_attention(
            q,
            k,
            v,
            batch,
            scale=1.0 / math.sqrt(q.shape[-1]),
            p=self.p,
            noise=current.noise,
            relative=self.bias[0](batch.longest, current),
            prefix=prefix_of(current, self.layer, self.heads, q.dtype),
        )
        if current.padded:
            out = out.index_select(0, current.packed.whole.tokens)
        return (self.o(out.reshape(shape)),)


class MPNetBias:
    """MPNet's relative position bias as a table by distance: [heads, 2 * longest - 1]."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.table: Tensor | None = None
        self.made_from: Tensor | None = None
        self.older: list[Tensor] = []  # keeps earlier tables alive: a recorded pass may still read them

    def __call__(self, longest: int, current: Pass) -> Tensor:
        weight = self.encoder.relative_attention_bias.weight  # [buckets, heads]
        known = self.table if self.made_from is weight else current.relative
        if known is not None and known.device == weight.device and known.shape[1] >= 2 * longest - 1:
            return known
        distance = torch.arange(-longest + 1, longest, device=weight.device)
        buckets = self.encoder.relative_position_bucket(distance, num_buckets=weight.shape[0])
        table = weight[buckets].t().contiguous()
        if isinstance(weight, nn.Parameter):  # the base's weight, not a weight that replaces it in this pass
            self.older += [] if self.table is None else [self.table]
            self.table, self.made_from = table, weight
        else:
            current.relative = table
        return table


class PaddedIsland(nn.Module):
    """Runs a module that needs padded input (DeBERTa's attention) inside a packed pass.

    No other module receives padding.
    """

    def __init__(self, inner: Any, switchboard: Switchboard, *, convolution: bool = False) -> None:
        super().__init__()
        self.inner, self.switchboard, self.convolution = inner, switchboard, convolution

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        current = self.switchboard.current
        if current is None or current.padded:
            return self.inner(hidden_states, *args, **kwargs)
        if self.convolution and current.span.left_out:
            return args[0]
        batch = current.packed
        mask = ~batch.whole.padding  # [B, T]

        def pad(x: Tensor) -> Tensor:
            block = x[0].index_select(0, batch.whole.tokens)
            block = block.index_fill(0, batch.whole.padded_places, 0.0)  # the convolution reads neighbouring positions
            return block.view(*mask.shape, -1)

        def unpad(x: Tensor) -> Tensor:
            return x.reshape(-1, x.shape[-1]).index_select(0, batch.unpad)[None]

        with current.as_padded():
            if self.convolution:  # conv(hidden states, residual states, mask)
                return unpad(self.inner(pad(hidden_states), pad(args[0]), mask.to(torch.long)))
            square = mask[:, None, None, :] & mask[:, None, :, None]  # [B, 1, T, T]
            kwargs.update(relative_pos=None)  # the module then builds relative positions for the padded length
            out = self.inner(pad(hidden_states), square, *args[1:], **kwargs)
        return (unpad(out[0]), *out[1:])
