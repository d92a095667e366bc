"""Low-rank differences of another library as one LoRA method.

Other libraries allow another rank and scale for each layer. LoRA has one rank and one alpha: smaller ranks are padded
with zeros, and scales that differ are multiplied into B. Both are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.shape import Shape
from intarsia.errors import ExchangeError
from intarsia.exchange.modules import Part
from intarsia.methods import Method

HIGHEST_RANK = 4096
Key = tuple[str, int]  # site, layer


@dataclass(frozen=True)
class LowRank:
    """One difference: scale * b @ a, with a [r, in] and b [out, r]; with DoRA also the norms [out] of the new rows."""

    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None = None

    def rows(self, chosen: slice) -> LowRank:
        """Return the difference of some outputs."""
        magnitude = None if self.magnitude is None else self.magnitude[chosen]
        return LowRank(self.a, self.b[chosen], self.scale, magnitude)

    def merged(self, weight: Tensor) -> Tensor:
        """Return a weight of the base with the difference."""
        changed = weight.detach().float().cpu() + self.scale * (self.b @ self.a)
        if self.magnitude is None:
            return changed
        return changed * (self.magnitude / changed.norm(dim=1))[:, None]


def split(difference: LowRank, parts: tuple[Part, ...]) -> dict[Key, LowRank]:
    """Return the difference of a module for each site and layer that the module is."""
    return {(part.site, part.layer): difference.rows(part.rows) for part in parts}


def layout(keys: Mapping[Key, Any], shape: Shape) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Return the sites and layers (None: all) that cover these keys."""
    sites = {site for site, _ in keys}
    order = tuple(dict.fromkeys(n.site for n in shape.linears))
    layers = tuple(sorted({layer for _, layer in keys}))
    return tuple(s for s in order if s in sites), None if layers == tuple(range(shape.layers)) else layers


def as_lora(
    found: Mapping[Key, LowRank], shape: Shape, kind: type[Method], **options: Any
) -> tuple[Method, dict[str, Tensor], tuple[str, ...]]:
    """Return the method, its `a` and `b` tensors, and a note for each thing that was folded."""
    if not found:
        raise ExchangeError("the adapter has no low-rank difference on a linear layer of this base.")
    ranks, scales = {d.a.shape[0] for d in found.values()}, {d.scale for d in found.values()}
    rank = max(ranks)
    if not 1 <= rank <= HIGHEST_RANK:
        raise ExchangeError(f"the adapter has the rank {rank}; expected 1 to {HIGHEST_RANK}.")
    if not all(map(math.isfinite, scales)):
        raise ExchangeError("the adapter's scale is not a finite number.")
    same_scale = len(scales) == 1
    alpha = next(iter(scales)) * rank if same_scale else float(rank)
    targets, layers = layout(found, shape)
    method = kind(rank=rank, alpha=alpha, targets=targets, layers=layers, **options)  # type: ignore[call-arg]
    tensors: dict[str, Tensor] = {}
    absent = 0
    for n in shape.linears:
        if n.site not in targets or (layers is not None and n.layer not in layers):
            continue
        a, b = torch.zeros(rank, n.inputs), torch.zeros(n.outputs, rank)
        difference = found.get((n.site, n.layer))
        if difference is None:
            absent += 1
        else:
            own = difference.a.shape[0]
            a[:own] = difference.a
            b[:, :own] = difference.b if same_scale else difference.b * difference.scale
        tensors[f"{n.layer}.{n.site}.a.weight"], tensors[f"{n.layer}.{n.site}.b.weight"] = a, b
    notes = [f"ranks {min(ranks)} to {rank} padded with zeros to {rank}"] if len(ranks) > 1 else []
    notes += ["scales that differ multiplied into B"] if not same_scale else []
    notes += [f"{absent} layers and sites without a difference hold zeros"] if absent else []
    return method, tensors, tuple(notes)
