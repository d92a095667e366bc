"""What a method sees at a site: its own tokens, sorted by owner, and its own tensors, stacked by slot.

Every operation here applies each owner's tensors to that owner's slice of tokens. A slice never reads another, so
neither values nor gradients can cross between owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Runs:
    """Which slot owns which slice of a group's tokens."""

    slots: tuple[int, ...]
    sizes: tuple[int, ...]  # tokens of each

    @cached_property
    def owner_of_token(self) -> Tensor:
        return torch.tensor(self.slots).repeat_interleave(torch.tensor(self.sizes))  # [tokens]

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(self.sizes) if len(self.sizes) > 1 else (x,)


class _GroupedLinear(torch.autograd.Function):
    """x[slice] @ weight[slot]' + bias[slot] for every owner's slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, runs: Runs) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        ctx.runs, ctx.has_bias = runs, bias is not None
        return _grouped_linear(x, weight, bias, runs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        runs: Runs = ctx.runs
        grad = grad.contiguous()
        gx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        gw = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        gb = grad.new_zeros(weight.shape[:2]) if ctx.has_bias and ctx.needs_input_grad[2] else None
        start = 0
        for slot, size, g, piece in zip(runs.slots, runs.sizes, runs.pieces(grad), runs.pieces(x), strict=True):
            if gx is not None:
                torch.mm(g, weight[slot], out=gx[start : start + size])
            if gw is not None:
                gw[slot].addmm_(g.t(), piece)  # adds: one slot may own several slices
            if gb is not None:
                gb[slot] += g.sum(0)
            start += size
        return gx, gw, gb, None


def _grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, runs: Runs) -> Tensor:
    if len(runs.slots) == 1:
        slot = runs.slots[0]
        return F.linear(x, weight[slot], None if bias is None else bias[slot])
    out = x.new_empty(x.shape[0], weight.shape[1])
    weights = weight.transpose(1, 2).unbind(0)
    biases = None if bias is None else bias.unbind(0)
    for slot, piece, place in zip(runs.slots, runs.pieces(x), runs.pieces(out), strict=True):
        if biases is None:
            torch.mm(piece, weights[slot], out=place)
        else:
            torch.addmm(biases[slot], piece, weights[slot], out=place)
    return out


@dataclass
class Owned:
    """One method's tokens at one site in the pass under way."""

    site: str
    layer: int
    tensors: Mapping[str, Tensor]  # each [slots, …]
    runs: Runs
    training: bool
    base: Any  # the site's own module in the frozen base
    sublayer_input: Tensor | None = None  # [tokens, d], where the method asked for it

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x [tokens, in] → [tokens, out] with `name.weight` [slots, out, in] and, if there, `name.bias`."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        if torch.is_grad_enabled():
            return _GroupedLinear.apply(x, weight, bias, self.runs)
        return _grouped_linear(x, weight, bias, self.runs)

    def layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """LayerNorm with each owner's own `name.weight` and, if there, `name.bias` [slots, width]."""
        gain, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        width = (gain.shape[1],)
        slots = self.runs.slots
        if len(slots) == 1:
            return F.layer_norm(x, width, gain[slots[0]], None if bias is None else bias[slots[0]], eps)
        if torch.is_grad_enabled():
            pieces = [
                F.layer_norm(piece, width, gain[slot], None if bias is None else bias[slot], eps)
                for slot, piece in zip(slots, self.runs.pieces(x), strict=True)
            ]
            return torch.cat(pieces)
        owner = self.runs.owner_of_token.to(x.device)
        out = F.layer_norm(x, width, eps=eps).mul_(gain.index_select(0, owner))
        return out if bias is None else out.add_(bias.index_select(0, owner))

    def batch_norm(self, x: Tensor, name: str, eps: float = 1e-5, momentum: float = 0.1) -> Tensor:
        """BatchNorm over each owner's own tokens; its running statistics are stored with the other tensors."""
        t = self.tensors
        pieces = []
        for slot, piece in zip(self.runs.slots, self.runs.pieces(x), strict=True):
            batch_statistics = self.training and piece.shape[0] > 1  # one token has no variance
            mean, variance = t[f"{name}.mean"][slot], t[f"{name}.variance"][slot]
            weight, bias = t[f"{name}.weight"][slot], t[f"{name}.bias"][slot]
            pieces.append(F.batch_norm(piece, mean, variance, weight, bias, batch_statistics, momentum, eps))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
