"""What a method sees at a site: its own tokens, sorted by owner, and its own tensors, stacked by slot.

Every operation here applies each owner's tensors to that owner's slice of tokens. A slice never reads another, so
neither values nor gradients can cross between owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.activations import ACTIVATIONS
from intarsia.encoder.attention import packed_attention
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.ownership import Ownership
from intarsia.encoder.packed import Batch
from intarsia.encoder.static_shape import StaticBatch


@dataclass(frozen=True)
class GroupSegments:
    """The segments of a group as a batch of their own."""

    batch: Batch | StaticBatch
    tokens: int  # in the present layout, padding included
    real: Tensor | None  # [real tokens] their places in the padded layout; None: packed


def _nowhere(*_: object) -> Any:
    raise RuntimeError("known within a pass only")


@dataclass
class SiteView:
    """One method's tokens at one site in the pass under way."""

    site: str
    layer: int
    tensors: Mapping[str, Tensor]  # each [slots, …]
    owners: Ownership
    module: Any = None  # the frozen base's module at this site
    module_at: Callable[[str], Any] = _nowhere  # the base's module at another site of this layer
    segments: Callable[[], GroupSegments] = _nowhere  # the segments that these tokens are
    memory: dict[Any, Tensor] = field(default_factory=dict)  # the method's own, for the length of a pass
    noise: Noise | None = None  # set where dropout is on
    training: bool = False
    dtype: torch.dtype = torch.float32  # of the base's states; tensors are kept in more precision
    columns: slice | None = None  # of the base's module, where it is several sites in one
    undropped: float = 0.0  # the probability of the dropout that is left to `bottleneck`
    input: Tensor | None = None  # [tokens, in] what a linear layer read
    sublayer_input: Tensor | None = None  # [tokens, d], where the method wants it
    layer_input: Tensor | None = None  # [tokens, d], where the method wants it

    def base_bias(self) -> Tensor:
        """The bias of the base's linear layer at this site."""
        bias: Tensor = self.module.bias
        return bias if self.columns is None else bias[self.columns]

    def drop(self, x: Tensor, p: float) -> Tensor:
        """Dropout, in training."""
        return drop(x, p, self.noise)

    def each(self, name: str) -> Tensor:
        """An owner's vector `name` [slots, width] for each of its tokens: [tokens, width], or [width] for one owner."""
        return self.for_each_token(self.tensors[name])

    def for_each_token(self, stacked: Tensor) -> Tensor:
        """The same for any tensor [slots, width]."""
        return self.owners.for_each_token(stacked, self.dtype)

    def activate(self, x: Tensor, activation: str) -> Tensor:
        return ACTIVATIONS[activation](x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, heads: int, p: float = 0.0) -> Tensor:
        """Attention within each of the method's own segments; all [tokens, width]."""
        width, rows = q.shape[1], self.segments()
        real = rows.real
        if real is not None:  # the padded layout: padding takes no part
            q, k, v = (x.index_select(0, real) for x in (q, k, v))
        q, k, v = (x.view(-1, heads, width // heads) for x in (q, k, v))
        scale = (width // heads) ** -0.5
        out = packed_attention(q, k, v, rows.batch, scale=scale, p=p, noise=self.noise).reshape(-1, width)
        return out if real is None else out.new_zeros(rows.tokens, width).index_copy(0, real, out)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x [tokens, in] → [tokens, out] with `name.weight` [slots, out, in] and, if there, `name.bias`."""
        return self.owners.linear(x, self.tensors, name)

    def bottleneck(self, h: Tensor, x: Tensor, name: str, activation: str) -> Tensor:
        """h + W_up act(W_down x + b_down) + b_up, with `name.down` and `name.up`."""
        return self.owners.bottleneck(h, x, self.tensors, name, activation, self.undropped, self.noise)

    def base_norm(self, x: Tensor, name: str) -> Tensor:
        """The base's LayerNorm of this site, with each owner's own `name.weight` and `name.bias` where it has them."""
        own = f"{name}.weight", f"{name}.bias"
        if own[0] in self.tensors and (own[1] in self.tensors or self.module.bias is None):
            return self.layer_norm(x, name, self.module.eps)
        x = self.module(x)
        return x + (self.each(own[1]) - self.module.bias) if own[1] in self.tensors else x  # own biases alone

    def layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """LayerNorm with each owner's own `name.weight` and, if there, `name.bias` [slots, width]."""
        return self.owners.layer_norm(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"), eps)

    def batch_norm(self, x: Tensor, name: str, eps: float = 1e-5, momentum: float = 0.1) -> Tensor:
        """BatchNorm over each owner's own tokens; its running statistics are stored with the other tensors."""
        return self.owners.batch_norm(x, self.tensors, name, self.training, eps, momentum)
