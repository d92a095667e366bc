"""What a method sees at a site: its own tokens, sorted by owner, and its own tensors, stacked by slot.

Every operation here applies each owner's tensors to that owner's slice of tokens. A slice never reads another, so
neither values nor gradients can cross between owners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.attention import packed_attention
from intarsia.encoder.fixed import FixedBatch, FixedRuns
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.packed import Batch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),  # as the adapters' authors have it
    "relu": F.relu,
    "tanh": torch.tanh,
    "swish": F.silu,
}
LONG = 48  # tokens from which an owner's slice is worth a matrix product of its own
BLOCK = 8  # short slices of similar length that are multiplied together


@dataclass(frozen=True)
class ShortBlock:
    """Short slices of several owners, padded to the longest: one batched product instead of many tiny ones."""

    slots: Tensor  # [owners]
    length: int
    tokens: Tensor  # [owners * length] into the group's tokens; padding repeats a slice's first
    where: slice  # of the padded rows of all blocks


@dataclass(frozen=True)
class Runs:
    """Which slot owns which slice of a group's tokens."""

    slots: tuple[int, ...]
    sizes: tuple[int, ...]  # tokens of each
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
        return [(s, w) for s, w in zip(self.slots, self._slices, strict=True) if w.stop - w.start >= LONG]

    @cached_property
    def _short(self) -> tuple[list[ShortBlock], Tensor, Tensor]:
        few = [(w.stop - w.start, w.start, s) for s, w in zip(self.slots, self._slices, strict=True)]
        few = sorted(run for run in few if run[0] < LONG)
        blocks: list[ShortBlock] = []
        place_of = torch.full((sum(self.sizes),), -1)
        at = 0
        for i in range(0, len(few), BLOCK):
            sizes, starts, slots = (torch.tensor(column) for column in zip(*few[i : i + BLOCK], strict=True))
            steps = torch.arange(int(sizes.max()))
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
        """The tokens of all short slices, in order."""
        return self._short[1]

    @property
    def short_places(self) -> Tensor:
        """Where each of `short_tokens` stands in the padded rows of the blocks."""
        return self._short[2]

    @cached_property
    def _memory(self) -> dict[str, Tensor]:
        return {}

    def scratch(self, name: str, *shape: int, like: Tensor) -> Tensor:
        """Memory that is used again at every site: fresh memory of this size costs more than the work done in it."""
        size = math.prod(shape)
        known = self._memory.get(name)
        if known is None or known.numel() < size or known.dtype != like.dtype:
            known = self._memory[name] = like.new_empty(size)
        return known[:size].view(shape)

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(self.sizes) if len(self.sizes) > 1 else (x,)

    def for_each_token(self, stacked: Tensor, dtype: torch.dtype) -> Tensor:
        """[slots, width] → [tokens, width], each token its owner's; [width] for one owner."""
        stacked = stacked.to(dtype)
        if len(self.slots) == 1:
            return stacked[self.slots[0]]
        return stacked.index_select(0, self.owner_of_token)

    def linear(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        weight, bias = tensors[f"{name}.weight"].to(x.dtype), tensors.get(f"{name}.bias")
        bias = None if bias is None else bias.to(x.dtype)
        if torch.is_grad_enabled():
            return _GroupedLinear.apply(x, weight, bias, self)
        return _grouped_linear(x, weight, bias, self)

    def bottleneck(self, h: Tensor, x: Tensor, tensors: Mapping[str, Tensor], name: str, activation: str) -> Tensor:
        hidden = ACTIVATIONS[activation](self.linear(x, tensors, f"{name}.down"))  # [tokens, m]
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

    def _spread(self, name: str, stacked: Tensor) -> Tensor:
        """[slots, width] → [tokens, width], each token its owner's, in memory that is used again."""
        out = self.scratch(name, sum(self.sizes), stacked.shape[1], like=stacked)
        return torch.index_select(stacked, 0, self.owner_of_token, out=out)


class _GroupedLinear(torch.autograd.Function):
    """x[slice] @ weight[slot]' + bias[slot] for every owner's slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, runs: Runs) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.runs, ctx.has_bias = runs, bias is not None
        return _grouped_linear(x, weight, bias, runs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
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
    for slot, where in runs.long:
        if bias is None:
            torch.mm(x[where], weight[slot].t(), out=out[where])
        else:
            torch.addmm(bias[slot], x[where], weight[slot].t(), out=out[where])
    if not runs.short:
        return out
    wide, tall = weight.shape[2], weight.shape[1]
    padded = runs.scratch("products", runs.short[-1].where.stop, tall, like=x)
    for block in runs.short:
        count = block.slots.shape[0]
        rows = runs.scratch("rows", count * block.length, wide, like=x)
        torch.index_select(x, 0, block.tokens, out=rows)
        theirs = runs.scratch("weights", count, tall, wide, like=weight)
        torch.index_select(weight, 0, block.slots, out=theirs)  # whole matrices are copied fast
        factors = rows.view(count, block.length, wide), theirs.transpose(1, 2)
        place = padded[block.where].view(count, block.length, tall)
        if bias is None:
            torch.bmm(*factors, out=place)
        else:
            torch.baddbmm(bias.index_select(0, block.slots)[:, None], *factors, out=place)
    if not runs.long:
        return padded.index_select(0, runs.short_places)
    return out.index_copy_(0, runs.short_tokens, padded.index_select(0, runs.short_places))


@dataclass(frozen=True)
class Rows:
    """The segments of a group as a batch of their own."""

    batch: Batch | FixedBatch
    tokens: int  # in the present layout, padding included
    real: Tensor | None  # [real tokens] their places in the padded layout; None: packed


def _nowhere(*_: object) -> Any:
    raise RuntimeError("known within a pass only")


@dataclass
class Owned:
    """One method's tokens at one site in the pass under way."""

    site: str
    layer: int
    tensors: Mapping[str, Tensor]  # each [slots, …]
    runs: Runs | FixedRuns
    base: Any = None  # the site's own module in the frozen base
    module: Callable[[str], Any] = _nowhere  # the base's module at another site of this layer
    segments: Callable[[], Rows] = _nowhere  # the segments that these tokens are
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
        bias: Tensor = self.base.bias
        return bias if self.columns is None else bias[self.columns]

    def drop(self, x: Tensor, p: float) -> Tensor:
        """Dropout, in training."""
        return drop(x, p, self.noise)

    def each(self, name: str) -> Tensor:
        """An owner's vector `name` [slots, width] for each of its tokens: [tokens, width], or [width] for one owner."""
        return self.for_each_token(self.tensors[name])

    def for_each_token(self, stacked: Tensor) -> Tensor:
        """The same for any tensor [slots, width]."""
        return self.runs.for_each_token(stacked, self.dtype)

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
        return self.runs.linear(x, self.tensors, name)

    def bottleneck(self, h: Tensor, x: Tensor, name: str, activation: str) -> Tensor:
        """h + W_up act(W_down x + b_down) + b_up, with `name.down` and `name.up`."""
        if isinstance(self.runs, FixedRuns):
            return self.runs.bottleneck(h, x, self.tensors, name, activation, self.undropped, self.noise)
        return self.runs.bottleneck(h, x, self.tensors, name, activation)

    def base_norm(self, x: Tensor, name: str) -> Tensor:
        """The base's LayerNorm of this site, with each owner's own `name.weight` and `name.bias` where it has them."""
        own = f"{name}.weight", f"{name}.bias"
        if own[0] in self.tensors and (own[1] in self.tensors or self.base.bias is None):
            return self.layer_norm(x, name, self.base.eps)
        x = self.base(x)
        return x + (self.each(own[1]) - self.base.bias) if own[1] in self.tensors else x  # own biases alone

    def layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """LayerNorm with each owner's own `name.weight` and, if there, `name.bias` [slots, width]."""
        return self.runs.layer_norm(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"), eps)

    def batch_norm(self, x: Tensor, name: str, eps: float = 1e-5, momentum: float = 0.1) -> Tensor:
        """BatchNorm over each owner's own tokens; its running statistics are stored with the other tensors."""
        t = self.tensors
        assert isinstance(self.runs, Runs), "no pass of fixed shape was to be made of this"
        pieces = []
        for slot, piece in zip(self.runs.slots, self.runs.pieces(x), strict=True):
            batch_statistics = self.training and piece.shape[0] > 1  # one token has no variance
            mean, variance = t[f"{name}.mean"][slot], t[f"{name}.variance"][slot]
            weight, bias = t[f"{name}.weight"][slot], t[f"{name}.bias"][slot]
            wide = piece.to(weight.dtype)
            pieces.append(F.batch_norm(wide, mean, variance, weight, bias, batch_statistics, momentum, eps))
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).to(x.dtype)
