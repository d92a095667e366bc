"""Maps slots to the tokens they own, and applies each owner's tensors to that owner's slice of tokens.

A slice never reads another slice, so neither values nor gradients can cross between owners.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.activations import activate
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.parts import Part
from intarsia.encoder.rowwise import ROWS

LONG = 48  # an owner's slice with at least this many tokens gets its own matrix product
BLOCK = 8  # how many short slices of similar length share one batched product


@dataclass(frozen=True)
class ShortBlock:
    """Short slices of several owners, padded to one length: one batched product replaces many small products."""

    slots: Tensor  # [owners]
    length: int
    tokens: Tensor  # [owners * length] index into the group's tokens; padding repeats the first token of a slice
    where: slice  # the rows of this block in the padded rows of all blocks


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
    def _slices(self) -> list[slice]:
        ends = list(accumulate(self.sizes))
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    @cached_property
    def long(self) -> list[tuple[int, slice]]:
        """The slot and slice of each owner with at least `LONG` tokens."""
        return [(s, w) for s, w in zip(self.slots, self._slices, strict=True) if w.stop - w.start >= LONG]

    @cached_property
    def _short(self) -> tuple[list[ShortBlock], Tensor, Tensor]:
        sized = [(w.stop - w.start, w.start, s) for s, w in zip(self.slots, self._slices, strict=True)]
        short = sorted(entry for entry in sized if entry[0] < LONG)
        blocks: list[ShortBlock] = []
        place_of = torch.full((sum(self.sizes),), -1)
        at = 0
        for i in range(0, len(short), BLOCK):
            sizes, starts, slots = (torch.tensor(column) for column in zip(*short[i : i + BLOCK], strict=True))
            steps = torch.arange(max(ROWS, int(sizes.max())))
            real = steps[None, :] < sizes[:, None]  # [owners, length]
            tokens = starts[:, None] + torch.where(real, steps[None, :], 0)
            place_of[tokens[real]] = at + real.view(-1).nonzero()[:, 0]
            where = slice(at, at + real.numel())
            blocks.append(ShortBlock(slots.to(self.device), len(steps), tokens.view(-1).to(self.device), where))
            at = where.stop
        tokens = (place_of >= 0).nonzero()[:, 0]
        return blocks, tokens.to(self.device), place_of[tokens].to(self.device)

    @property
    def short(self) -> list[ShortBlock]:
        return self._short[0]

    @property
    def short_tokens(self) -> Tensor:
        """[tokens of all short slices] their indices in the group, ascending."""
        return self._short[1]

    @property
    def short_places(self) -> Tensor:
        """The row of each of `short_tokens` in the padded rows of the blocks."""
        return self._short[2]

    @cached_property
    def _buffers(self) -> dict[str, Tensor]:
        return {}

    def scratch(self, name: str, *shape: int, like: Tensor) -> Tensor:
        """Return a buffer that every site reuses: allocating it each time costs more than the computation in it."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size or buffer.dtype != like.dtype:
            buffer = self._buffers[name] = like.new_empty(size)
        return buffer[:size].view(shape)

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
        if torch.is_grad_enabled():
            pieces = [
                F.layer_norm(piece, width, gain[slot], None if bias is None else bias[slot], eps)
                for slot, piece in zip(slots, self.pieces(x), strict=True)
            ]
            return torch.cat(pieces)
        normal = F.layer_norm(x, width, eps=eps)
        gains = self._spread("gains", gain)
        if bias is None:
            return normal.mul_(gains)
        return torch.addcmul(self._spread("biases", bias), normal, gains, out=normal)

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

    def _spread(self, name: str, by_slot: Tensor) -> Tensor:
        """[slots, width] → [tokens, width], the owner's row for each token, in a reused buffer."""
        out = self.scratch(name, sum(self.sizes), by_slot.shape[1], like=by_slot)
        return torch.index_select(by_slot, 0, self.owner_of_token, out=out)


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
        gx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        gw = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        gb = grad.new_zeros(weight.shape[:2]) if ctx.has_bias and ctx.needs_input_grad[2] else None
        start = 0
        for slot, size, g, piece in zip(owners.slots, owners.sizes, owners.pieces(grad), owners.pieces(x), strict=True):
            if gx is not None:
                torch.mm(g, weight[slot], out=gx[start : start + size])
            if gw is not None:
                gw[slot].addmm_(g.t(), piece)  # adds, because a slot may own several slices
            if gb is not None:
                gb[slot] += g.sum(0)
            start += size
        return gx, gw, gb, None


def _grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, owners: Owners) -> Tensor:
    if len(owners.slots) == 1 and x.shape[0] >= ROWS:
        slot = owners.slots[0]
        return F.linear(x, weight[slot], None if bias is None else bias[slot])
    out = x.new_empty(x.shape[0], weight.shape[1])
    for slot, where in owners.long:
        if bias is None:
            torch.mm(x[where], weight[slot].t(), out=out[where])
        else:
            torch.addmm(bias[slot], x[where], weight[slot].t(), out=out[where])
    if not owners.short:
        return out
    wide, tall = weight.shape[2], weight.shape[1]
    padded = owners.scratch("products", owners.short[-1].where.stop, tall, like=x)
    for block in owners.short:
        count = block.slots.shape[0]
        rows = owners.scratch("rows", count * block.length, wide, like=x)
        torch.index_select(x, 0, block.tokens, out=rows)
        weights = owners.scratch("weights", count, tall, wide, like=weight)
        torch.index_select(weight, 0, block.slots, out=weights)  # copying whole matrices is fast
        factors = rows.view(count, block.length, wide), weights.transpose(1, 2)
        place = padded[block.where].view(count, block.length, tall)
        if bias is None:
            torch.bmm(*factors, out=place)
        else:
            torch.baddbmm(bias.index_select(0, block.slots)[:, None], *factors, out=place)
    if not owners.long:
        return padded.index_select(0, owners.short_places)
    return out.index_copy_(0, owners.short_tokens, padded.index_select(0, owners.short_places))
