"""The data that a method sees at a site: its own tokens, sorted by owner, and its own tensors by slot.

Every operation here applies each owner's tensors to that owner's slice of tokens. A slice never reads another slice, so
neither values nor gradients can cross between owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.activations import activate
from intarsia.encoder.attention import packed_attention
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.ownership import Ownership
from intarsia.encoder.packed import Batch
from intarsia.encoder.parts import Part
from intarsia.encoder.static_shape import StaticBatch


@dataclass(frozen=True)
class GroupSegments:
    """The segments of a group as a separate batch."""

    batch: Batch | StaticBatch
    tokens: int  # in the current layout, including padding
    real: Tensor | None  # [real tokens] their indices in the padded layout; None: packed layout


def _outside_pass(*_: object) -> Any:
    raise RuntimeError("this value of a SiteView exists only inside a pass; run the method through Encoder.forward")


@dataclass
class SiteView:
    """One method's tokens at one site in the current pass."""

    site: str
    layer: int
    tensors: Mapping[str, Tensor]  # each [slots, …]
    owners: Ownership
    parts: tuple[Part, ...] = ()  # if the method is a composition
    group_owners: Ownership | None = None  # of the whole method, in the view of a part
    module: Any = None  # the frozen base's module at this site
    module_at: Callable[[str], Any] = _outside_pass  # the base's module at another site of this layer
    segments: Callable[[], GroupSegments] = _outside_pass  # the segments of these tokens
    memory: dict[Any, Any] = field(default_factory=dict)  # states that the method stores during the pass
    read: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # what `normalised` last gave, by norm
    noise: Noise | None = None  # set if dropout is on
    training: bool = False
    dtype: torch.dtype = torch.float32  # of the base's states; `tensors` may have a higher precision
    columns: slice | None = None  # the columns of this site if the base's module implements several sites
    undropped: float = 0.0  # the probability of the dropout that `bottleneck` must apply
    input: Tensor | None = None  # [tokens, in] the input of the linear layer
    sublayer_input: Tensor | None = None  # [tokens, d], if the method wants it
    layer_input: Tensor | None = None  # [tokens, d], if the method wants it

    def part(self, number: int) -> SiteView:
        """Return the view of a part of a composition: its own tensors, and their owners."""
        part, owners = self.parts[number], self.group_owners or self.owners
        return replace(
            self,
            tensors=part.tensors,
            owners=owners.of(part),
            parts=part.parts,
            group_owners=owners,
            memory=self.memory.setdefault(number, {}),
        )

    def acts(self, number: int) -> bool:
        """Return whether a part of a composition acts here."""
        return (self.site, self.layer) in self.parts[number].places

    def normalised(self, norm: str, h: Tensor) -> Tensor:
        """Return the base's frozen LayerNorm of h + x at the output of a sub-layer; its parts read it too."""
        assert self.sublayer_input is not None
        last = self.read.get(norm)
        if last is None or last[0] is not h:
            last = self.read[norm] = (h, self.module_at(norm)(h + self.sublayer_input))
        return last[1]

    def in_second_text(self) -> Tensor:
        """Return [tokens, 1] bool, True for the tokens of the segments' second texts."""
        rows = self.segments()
        assert isinstance(rows.batch, Batch), "a pass of fixed shape does not know the second texts"
        inside = rows.batch.in_second_text
        if rows.real is not None:
            inside = inside.new_zeros(rows.tokens).index_copy(0, rows.real, inside)
        return inside[:, None]

    def base_bias(self) -> Tensor:
        """Return the bias of the base's linear layer at this site."""
        bias: Tensor = self.module.bias
        return bias if self.columns is None else bias[self.columns]

    def drop(self, x: Tensor, p: float) -> Tensor:
        """Return `x` after dropout in training, else `x`."""
        return drop(x, p, self.noise)

    def each(self, name: str) -> Tensor:
        """Return the vector `name` of each token's owner: [tokens, width], or [width] for a single owner."""
        return self.for_each_token(self.tensors[name])

    def for_each_token(self, by_slot: Tensor) -> Tensor:
        """Return the row of each token's owner in a tensor [slots, width]: see `each`."""
        return self.owners.for_each_token(by_slot, self.dtype)

    def activate(self, x: Tensor, activation: str) -> Tensor:
        """Return the named activation of `x`."""
        return activate(x, activation)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, heads: int, p: float = 0.0) -> Tensor:
        """Return attention within each of the method's own segments; all tensors are [tokens, width]."""
        width, rows = q.shape[1], self.segments()
        real = rows.real
        if real is not None:  # padded layout: attention ignores padding
            q, k, v = (x.index_select(0, real) for x in (q, k, v))
        q, k, v = (x.view(-1, heads, width // heads) for x in (q, k, v))
        scale = (width // heads) ** -0.5
        out = packed_attention(q, k, v, rows.batch, scale=scale, p=p, noise=self.noise).reshape(-1, width)
        return out if real is None else out.new_zeros(rows.tokens, width).index_copy(0, real, out)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x [tokens, in] → [tokens, out] with `name.weight` [slots, out, in] and, if it exists, `name.bias`."""
        return self.owners.linear(x, self.tensors, name)

    def linear_transposed(self, x: Tensor, name: str) -> Tensor:
        """x [tokens, out] → [tokens, in] with the transpose of `name.weight` [slots, out, in]."""
        return self.owners.linear_transposed(x, self.tensors, name)

    def bottleneck(self, h: Tensor, x: Tensor, name: str, activation: str) -> Tensor:
        """Return h + W_up act(W_down x + b_down) + b_up, with `name.down` and `name.up`."""
        return self.owners.bottleneck(h, x, self.tensors, name, activation, self.undropped, self.noise)

    def base_norm(self, x: Tensor, name: str) -> Tensor:
        """Return the base's LayerNorm of `x`, with each owner's own `name.weight` and `name.bias` if they exist."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        if weight in self.tensors and (bias in self.tensors or self.module.bias is None):
            return self.layer_norm(x, name, self.module.eps)
        x = self.module(x)
        return x + (self.each(bias) - self.module.bias) if bias in self.tensors else x  # the task trains only biases

    def layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """Return LayerNorm of `x` with each owner's `name.weight` and, if it exists, `name.bias` [slots, width]."""
        return self.owners.layer_norm(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"), eps)

    def batch_norm(self, x: Tensor, name: str, eps: float = 1e-5, momentum: float = 0.1) -> Tensor:
        """Return BatchNorm over the tokens of each owner; `tensors` holds its running statistics."""
        return self.owners.batch_norm(x, self.tensors, name, self.training, eps, momentum)
