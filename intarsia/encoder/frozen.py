"""Linear layers whose weights never change, so that a CPU may lay them out once and for all.

A plain matrix product rearranges its weights for the processor at every call. Frozen weights are rearranged once, for
the forward and (in training) for the backward product: 1.05 to 1.3 times faster for usual batches, 2 to 4 times for a
single short text. Elsewhere than on x86 CPUs in float32 this is a plain linear layer.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 512  # the number of rows that the layout is chosen for; others run with it too

# oneDNN, and PyTorch beside it, keep what they prepared for each number of rows, 1,024 of them; batches differ, and few
# are asked for again. So many take 0.1 GB, not 0.4. Both read this when they are first used.
for _kept in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_kept, "256")


@cache
def available() -> bool:
    """Whether this machine's PyTorch can lay out weights ahead."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        laid_out = torch.ops.mkldnn._reorder_linear_weight(torch.eye(16), _ROWS)
        x = torch.arange(32.0).view(2, 16)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(x, laid_out, None, "none", [], ""), x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


class _Product(torch.autograd.Function):
    """x W' + b for a frozen W: no gradient but that of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: FrozenLinear) -> Tensor:
        ctx.linear = linear
        return linear.product(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.product_back(grad), None


class FrozenLinear(nn.Module):
    """Computes what the `nn.Linear` it stands for computes, with that layer's own weights."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        self._own = (plain.weight, plain.bias)  # in a tuple: no second registration
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.projections: Projections | None = None  # that it is one of
        self._laid_out: dict[bool, tuple[tuple[int, int], Tensor]] = {}  # by direction, with what it was made from

    @property
    def stands_for_itself(self) -> bool:
        """Whether no other weight or bias stands in for its own in this pass, and none is being trained."""
        trained = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        return self.weight is self._own[0] and self.bias is self._own[1] and not trained

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.projections is not None and x.is_cuda and self.projections.ready():
            return self.projections.product(self, x)
        plain = not self.stands_for_itself
        if plain or x.dtype != torch.float32 or x.device.type != "cpu" or not available():
            return F.linear(x, weight, self.bias)
        if x.requires_grad and torch.is_grad_enabled():
            return _Product.apply(x, self)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._layout(back=False), self.bias, "none", [], "")

    def product_back(self, grad: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(grad, self._layout(back=True), None, "none", [], "")

    def _layout(self, *, back: bool) -> Tensor:
        """The laid-out weight, made anew only if the weight was moved or written to."""
        weight = self.weight
        made_from = (weight.data_ptr(), weight._version)
        known = self._laid_out.get(back)
        if known is None or known[0] != made_from:
            source = weight.detach().t().contiguous() if back else weight.detach()
            known = self._laid_out[back] = (made_from, torch.ops.mkldnn._reorder_linear_weight(source, _ROWS))
        return known[1]


class Projections:
    """Query, key and value of one attention: on a GPU one product instead of three, while all read the same input."""

    def __init__(self, linears: tuple[FrozenLinear, FrozenLinear, FrozenLinear]) -> None:
        self.linears = linears
        self.stacked: tuple[Tensor, Tensor | None] | None = None
        self.made_from: tuple[tuple[int, int], ...] = ()
        self.last: tuple[Tensor, dict[int, Tensor]] | None = None  # an input, and what has not been asked for yet
        for linear in linears:
            linear.projections = self

    def ready(self) -> bool:
        return all(linear.stands_for_itself for linear in self.linears)

    def product(self, linear: FrozenLinear, x: Tensor) -> Tensor:
        if self.last is None or self.last[0] is not x or id(linear) not in self.last[1]:
            outputs = _Projected.apply(x, *self._stacked())
            self.last = (x, {id(one): out for one, out in zip(self.linears, outputs, strict=True)})
        waiting = self.last[1]
        out = waiting.pop(id(linear))
        if not waiting:
            self.last = None
        return out

    def _stacked(self) -> tuple[Tensor, Tensor | None]:
        made_from = tuple((one.weight.data_ptr(), one.weight._version) for one in self.linears)
        if self.stacked is None or self.made_from != made_from:
            biases = [one.bias for one in self.linears]
            bias = None if any(b is None for b in biases) else torch.cat([b.detach() for b in biases])
            self.stacked = torch.cat([one.weight.detach() for one in self.linears]), bias
            self.made_from = made_from
        return self.stacked


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias).chunk(3, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        third = weight.shape[0] // 3
        beside = _side_by_side(grads, third)
        if beside is not None:
            return beside @ weight, None, None
        total: Tensor | None = None
        for grad, part in zip(grads, weight.split(third), strict=True):
            if grad is not None:
                total = grad @ part if total is None else total + grad @ part
        return total, None, None


def _side_by_side(grads: tuple[Tensor | None, ...], width: int) -> Tensor | None:
    """Three gradients [.., width] that lie side by side in memory, as one [.., 3 * width]."""
    first = grads[0]
    if first is None or first.stride(-1) != 1 or first.stride(-2) != 3 * width:
        return None
    for i, grad in enumerate(grads):
        if grad is None or grad.stride() != first.stride():
            return None
        if grad.data_ptr() != first.data_ptr() + i * width * first.element_size():
            return None
    return first.as_strided((*first.shape[:-1], 3 * width), first.stride(), first.storage_offset())
