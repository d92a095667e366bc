"""Maps slots to the tokens they own, and applies each owner's tensors to that owner's slice of tokens.

No value of a slice depends on another slice, so neither values nor gradients can cross between owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import onednn, rowwise
from intarsia.encoder.activations import activate
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.parts import Part

FEW, SHORT = 4, 128  # on a GPU, the slices of at least `FEW` owners, of up to `SHORT` tokens, share one batched product


@dataclass(frozen=True)
class Owners:
    """The slots and sizes of the token slices of a group: the `Ownership` of eager passes."""

    slots: tuple[int, ...]
    sizes: tuple[int, ...]  # tokens in each slice
    device: str = "cpu"

    @cached_property
    def owner_of_token(self) -> Tensor:
        sizes = torch.tensor(self.sizes)
        return torch.tensor(self.slots).repeat_interleave(sizes).to(self.device)  # [tokens]

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of each slice, padded to one length by its first token, and which of them are real; both
        [owners, length]."""
        sizes = torch.tensor(self.sizes)
        steps = torch.arange(int(sizes.max()))
        real = steps[None, :] < sizes[:, None]
        rows = (sizes.cumsum(0) - sizes)[:, None] + torch.where(real, steps[None, :], 0)
        return rows.to(self.device), real.to(self.device)

    @cached_property
    def _of_slots(self) -> dict[tuple[int, ...], Owners]:
        return {}

    def of(self, part: Part) -> Owners:
        """Return the owners in the slots of a part: adjacent owners that use the same slot become one."""
        if part.slots == self.slots:
            return self
        if part.slots not in self._of_slots:
            runs = groupby(zip(part.slots, self.sizes, strict=True), key=itemgetter(0))
            merged = [(slot, sum(size for _, size in run)) for slot, run in runs]
            slots, sizes = (tuple(column) for column in zip(*merged, strict=True))
            self._of_slots[part.slots] = Owners(slots, sizes, self.device)
        return self._of_slots[part.slots]

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the slice of each owner."""
        return x.split(self.sizes) if len(self.sizes) > 1 else (x,)

    def for_each_token(self, by_slot: Tensor, dtype: torch.dtype) -> Tensor:
        """[slots, width] → [tokens, width], the owner's row for each token; [width] for a single owner."""
        by_slot = by_slot.to(dtype)
        if len(self.slots) == 1:
            return by_slot[self.slots[0]]
        return by_slot.index_select(0, self.owner_of_token)

    def linear(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        weight, bias = tensors[f"{name}.weight"].to(x.dtype), tensors.get(f"{name}.bias")
        bias = None if bias is None else bias.to(x.dtype)
        if torch.is_grad_enabled():
            return _GroupedLinear.apply(x, weight, bias, self)
        return _grouped_linear(x, weight, bias, self)

    def linear_transposed(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        return self.linear(x, {"transposed.weight": tensors[f"{name}.weight"].transpose(1, 2)}, "transposed")

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
        if p > 0.0:
            h = x = drop(h, p, noise)
        hidden = activate(self.linear(x, tensors, f"{name}.down"), activation)  # [tokens, m]
        return h + self.linear(hidden, tensors, f"{name}.up")

    def layer_norm(self, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        width, slots = (gain.shape[1],), self.slots
        gain, bias = gain.to(x.dtype), None if bias is None else bias.to(x.dtype)
        if len(slots) == 1:
            return F.layer_norm(x, width, gain[slots[0]], None if bias is None else bias[slots[0]], eps)
        pieces = [
            F.layer_norm(piece, width, gain[slot], None if bias is None else bias[slot], eps)
            for slot, piece in zip(slots, self.pieces(x), strict=True)
        ]
        return torch.cat(pieces)

    def batch_norm(
        self, x: Tensor, tensors: Mapping[str, Tensor], name: str, training: bool, eps: float, momentum: float
    ) -> Tensor:
        pieces = []
        for slot, piece in zip(self.slots, self.pieces(x), strict=True):
            batch_statistics = training and piece.shape[0] > 1  # a single token has no variance
            mean, variance, weight, bias = (
                tensors[f"{name}.{part}"][slot] for part in ("mean", "variance", "weight", "bias")
            )
            wide = piece.to(weight.dtype)
            pieces.append(F.batch_norm(wide, mean, variance, weight, bias, batch_statistics, momentum, eps))
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).to(x.dtype)


class _GroupedLinear(torch.autograd.Function):
    """x[slice] @ weight[slot]' + bias[slot] for every owner's slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, owners: Owners) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.owners, ctx.has_bias = owners, bias is not None
        return _grouped_linear(x, weight, bias, owners)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        owners: Owners = ctx.owners
        grad = grad.contiguous()
        gx: Tensor | None = None
        if ctx.needs_input_grad[0]:
            back = weight.transpose(1, 2)
            if rowwise.by_onednn(grad, back[0]):
                gx = torch.cat(onednn.by_slices(grad, back, None, owners.slots, owners.sizes))
            else:
                pieces = zip(owners.slots, owners.pieces(grad), strict=True)
                gx = torch.cat([torch.mm(g, weight[slot]) for slot, g in pieces])
        gw = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        gb = grad.new_zeros(weight.shape[:2]) if ctx.has_bias and ctx.needs_input_grad[2] else None
        for slot, g, piece in zip(owners.slots, owners.pieces(grad), owners.pieces(x), strict=True):
            if gw is not None:
                gw[slot].addmm_(g.t(), piece)  # adds, because a slot may own several slices
            if gb is not None:
                gb[slot] += g.sum(0)
        return gx, gw, gb, None


def _grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, owners: Owners) -> Tensor:
    if x.is_cuda and len(owners.slots) >= FEW and max(owners.sizes) <= SHORT:
        return batched(x, weight, bias, owners)
    if rowwise.by_onednn(x, weight[0]):
        outputs = onednn.by_slices(x, weight, bias, owners.slots, owners.sizes)
    else:
        outputs = [
            rowwise.linear(piece, weight[slot], None if bias is None else bias[slot])
            for slot, piece in zip(owners.slots, owners.pieces(x), strict=True)
        ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def batched(x: Tensor, weight: Tensor, bias: Tensor | None, owners: Owners) -> Tensor:
    """x[slice] @ weight[slot]' + bias[slot] for every owner's slice, as one product of slices padded to one length."""
    rows, real = owners.padded
    slots = torch.tensor(owners.slots, device=x.device)
    products = torch.bmm(x[rows], weight[slots].transpose(1, 2))
    return (products if bias is None else products + bias[slots][:, None])[real]
