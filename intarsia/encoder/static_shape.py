"""Passes of a fixed shape, for GPUs.

Tables on the device map tokens to slots, so a pass that is recorded once can run every batch that fits. All slots of
the pass share one method and one tensor shape. The kernels in `intarsia/kernels` compute the same values as
`attention.py`, `owners.py` and `noise.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from intarsia.encoder.activations import ACTIVATIONS
from intarsia.encoder.noise import Noise
from intarsia.encoder.parts import Part

if TYPE_CHECKING:
    from intarsia.kernels import Layout


@dataclass(frozen=True)
class DeviceOwners:
    """The owners of the tokens in a pass of fixed shape: the `Ownership` of recorded passes."""

    layout: Layout
    low_precision: Mapping[str, Tensor]  # copies of the slots' tensors in the base's precision, [slots, …]
    layouts: tuple[Layout, ...] = ()  # for the parts of a composition, by the number of the table that has their slots

    @property
    def slots(self) -> range:
        return range(self.layout.slots)  # the host does not know which slots own tokens

    @cached_property
    def owner_of_token(self) -> Tensor:
        """[tokens]; padding also has an owner."""
        slot_of_tile = self.layout.tile_slot.long()  # all tokens of a tile have the same owner
        return slot_of_tile[:, None].expand(-1, self.layout.align).reshape(-1)

    def of(self, part: Part) -> DeviceOwners:
        return DeviceOwners(self.layouts[part.table], part.low_precision, self.layouts)

    def for_each_token(self, by_slot: Tensor, dtype: torch.dtype) -> Tensor:
        from intarsia.kernels import rows

        return rows.spread(by_slot, dtype, self.layout)

    def linear(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        from intarsia.kernels import linear

        weight = f"{name}.weight"
        return linear.linear(x, tensors[weight], tensors.get(f"{name}.bias"), self.low_precision[weight], self.layout)

    def linear_transposed(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        from intarsia.kernels import linear

        weight, low = (t[f"{name}.weight"].transpose(1, 2) for t in (tensors, self.low_precision))
        return linear.linear(x, weight, None, low, self.layout)

    def bottleneck(
        self,
        h: Tensor,
        x: Tensor,
        tensors: Mapping[str, Tensor],
        name: str,
        activation: str,
        p: float = 0.0,
        noise: Noise | None = None,
    ) -> Tensor:
        from intarsia.kernels import bottleneck

        down, up = f"{name}.down", f"{name}.up"
        site = noise.site() if p > 0.0 and isinstance(noise, DeviceNoise) else 0
        if tensors[f"{down}.weight"].shape[1] > bottleneck.WIDEST or activation not in bottleneck.ACTIVATIONS:
            if p > 0.0:
                from intarsia.kernels import dropout

                h = x = dropout.dropout(h, p, site, self.layout)
            return h + self.linear(ACTIVATIONS[activation](self.linear(x, tensors, down)), tensors, up)
        weights = tuple(tensors[f"{part}.{kind}"] for part in (down, up) for kind in ("weight", "bias"))
        low = self.low_precision[f"{down}.weight"], self.low_precision[f"{up}.weight"]
        return bottleneck.bottleneck(h, None if x is h else x, weights, low, activation, self.layout, p, site)  # type: ignore[arg-type]

    def prefix(self, tensors: Mapping[str, Tensor], name: str) -> StaticPrefixStates:
        """Return the prefix keys and values of every slot."""
        key, value = f"{name}.key", f"{name}.value"
        return StaticPrefixStates(tensors[key], tensors[value], self.low_precision[key], self.low_precision[value])

    def layer_norm(self, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        from intarsia.kernels import norm

        return norm.layer_norm(x, gain, bias, eps, self.layout)

    def batch_norm(
        self, x: Tensor, tensors: Mapping[str, Tensor], name: str, training: bool, eps: float, momentum: float
    ) -> Tensor:
        raise RuntimeError("a recorded pass has no BatchNorm: `recordable` of a method that uses it must be False")


@dataclass(frozen=True)
class StaticPrefixStates:
    """Extra keys and values for the tokens of each slot: `attention.PrefixStates` by slot instead of by row."""

    keys: Tensor  # [slots, P, d]
    values: Tensor
    low_keys: Tensor  # in the base's precision
    low_values: Tensor


class DeviceNoise(Noise):
    """Dropout with a separate seed for each slot, so that it does not depend on the other jobs in the pass."""

    fuses_gates = True

    def __init__(self, layout: Layout, *, dropout: bool) -> None:
        self.layout, self.dropout = layout, dropout
        self.calls = 0

    def site(self) -> int:
        """Return the number of this call in the pass. It is the same in every replay of the recorded pass."""
        self.calls += 1
        return self.calls

    def drop(self, x: Tensor, p: float) -> Tensor:
        from intarsia.kernels import dropout

        return dropout.dropout(x, p, self.site(), self.layout)

    def gated(
        self,
        theta: Tensor,
        difference: Tensor,
        alpha: Tensor,
        edge: float,
        stretch: tuple[float, float],
        penalty: float,
    ) -> Tensor:
        from intarsia.kernels import gates

        return gates.gated(theta, difference, alpha, self.site(), self.layout, edge, *stretch, penalty)

    def uniform(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Return uniform numbers, for a job that runs exclusively in its pass."""
        from intarsia.kernels import uniform

        return uniform.uniform(shape, self.site(), self.layout)


@dataclass(frozen=True)
class StaticBatch:
    """Tokens at fixed addresses. A recorded pass uses it instead of `packed.Batch`."""

    ids: Tensor  # [tokens]
    types: Tensor
    positions: Tensor
    owners: DeviceOwners

    @property
    def tokens(self) -> int:
        return self.owners.layout.tokens

    @property
    def longest(self) -> int:
        return self.owners.layout.longest

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        p: float,
        noise: Noise | None,
        relative: Tensor | None,
        prefix: StaticPrefixStates | None = None,
    ) -> Tensor:
        """Return attention within each segment: [tokens, H, D]."""
        from intarsia.kernels import attention
        from intarsia.kernels.prefix_attention import Seen

        drops = noise if isinstance(noise, DeviceNoise) and noise.dropout and p > 0.0 else None
        site = drops.site() if drops else 0
        static_prefix = None
        if prefix is not None:
            seen = Seen(prefix.low_keys, prefix.low_values, drops.site() if drops else 0)
            static_prefix = prefix.keys, prefix.values, seen
        p = p if drops else 0.0
        return attention.attention(
            q, k, v, self.owners.layout, scale=scale, p=p, site=site, relative=relative, prefix=static_prefix
        )  # fmt: skip
