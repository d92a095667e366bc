"""Linear layers with frozen weights, which a CPU needs to lay out in memory only once.

A plain matrix product rearranges its weights for the processor in every call. `FrozenLinear` rearranges them once for
the forward product and (in training) once for the backward product. Usual batches run 1.05 to 1.3 times faster, a
single short text 2 to 4 times. Except on x86 CPUs in float32, this is a plain linear layer. An encoder can switch its
layers to int8 (`int8.py`) for serving.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intarsia.encoder import onednn, rowwise
from intarsia.encoder.int8 import Int8Linears, Int8Weight


class _Product(torch.autograd.Function):
    """x W' + b for frozen W and b: only x has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: FrozenLinear) -> Tensor:
        ctx.linear = linear
        return linear.product(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.product_back(grad), None


class FrozenLinear(nn.Module):
    """Replaces an `nn.Linear`: uses the same weights and computes the same output."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        self._own = (plain.weight, plain.bias)  # a tuple, so that PyTorch does not register them twice
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.projections: Projections | None = None  # the query, key and value group of this layer, if any
        self.int8: Int8Linears | None = None  # set while the encoder computes in int8
        self._laid_out: dict[bool, tuple[tuple[int, int], Tensor]] = {}  # by `back`: (address, version), layout
        self._quantized: tuple[tuple[int, int], Int8Weight] | None = None

    @property
    def is_original(self) -> bool:
        """Whether the layer uses its own weight and bias in this pass, and neither is trained."""
        weight, bias = self._parameters["weight"], self._parameters.get("bias")  # faster than by attribute
        if weight is not self._own[0] or bias is not self._own[1]:
            return False
        return not (weight.requires_grad or (bias is not None and bias.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        weight = self._parameters["weight"]
        assert weight is not None
        together = self.projections is not None and (x.is_cuda or self.int8 is not None)
        if self.projections is not None and together and self.projections.ready():
            return self.projections.product(self, x)
        plain = not self.is_original
        if self.int8 is not None and not plain:
            return self.int8.product(x, self._int8_weight())[0]
        if plain or x.dtype != torch.float32 or x.device.type != "cpu" or not onednn.available():
            return rowwise.linear(x, weight, self._parameters.get("bias"))
        if x.requires_grad and torch.is_grad_enabled():
            return _Product.apply(x, self)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        return onednn.product(x, self._layout(back=False), self._own[1])

    def product_back(self, grad: Tensor) -> Tensor:
        return onednn.product(grad, self._layout(back=True), None)

    @property
    def state(self) -> tuple[int, int]:
        """The weight's address and PyTorch's write counter: they change if the weight is moved or written to."""
        weight = self._own[0]
        return weight.data_ptr(), weight._version

    def _int8_weight(self) -> Int8Weight:
        if self._quantized is None or self._quantized[0] != self.state:
            self._quantized = self.state, Int8Weight.of((self.weight,), (self.bias,))
        return self._quantized[1]

    def _layout(self, *, back: bool) -> Tensor:
        """Return the laid-out weight; rebuild it only if the weight was moved or written to."""
        weight, made_from = self._own[0], self.state
        known = self._laid_out.get(back)
        if known is None or known[0] != made_from:
            source = weight.detach().t().contiguous() if back else weight.detach()
            known = self._laid_out[back] = (made_from, onednn.laid_out(source))
        return known[1]


class Projections:
    """The query, key and value layers of one attention module: one product on a GPU or in int8 if all read the same
    input."""

    def __init__(self, linears: tuple[FrozenLinear, FrozenLinear, FrozenLinear]) -> None:
        self.linears = linears
        self.fused: tuple[Tensor, Tensor | None] | None = None
        self.made_from: tuple[tuple[int, int], ...] = ()
        self.quantized: tuple[tuple[tuple[int, int], ...], Int8Weight] | None = None
        self.last: tuple[Tensor, dict[int, Tensor]] | None = None  # an input, and its outputs that are not read yet
        for linear in linears:
            linear.projections = self

    def ready(self) -> bool:
        return all(linear.is_original for linear in self.linears)

    def product(self, linear: FrozenLinear, x: Tensor) -> Tensor:
        if self.last is None or self.last[0] is not x or id(linear) not in self.last[1]:
            int8 = linear.int8
            outputs = _Projected.apply(x, *self._fused()) if int8 is None else int8.product(x, self._int8_weight())
            self.last = (x, {id(layer): out for layer, out in zip(self.linears, outputs, strict=True)})
        waiting = self.last[1]
        out = waiting.pop(id(linear))
        if not waiting:
            self.last = None
        return out

    def _int8_weight(self) -> Int8Weight:
        made_from = tuple(layer.state for layer in self.linears)
        if self.quantized is None or self.quantized[0] != made_from:
            weights = tuple(layer.weight for layer in self.linears)
            self.quantized = made_from, Int8Weight.of(weights, tuple(layer.bias for layer in self.linears))
        return self.quantized[1]

    def _fused(self) -> tuple[Tensor, Tensor | None]:
        made_from = tuple(layer.state for layer in self.linears)
        if self.fused is None or self.made_from != made_from:
            biases = [layer.bias for layer in self.linears]
            bias = None if any(b is None for b in biases) else torch.cat([b.detach() for b in biases])
            self.fused = torch.cat([layer.weight.detach() for layer in self.linears]), bias
            self.made_from = made_from
        return self.fused


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias).chunk(3, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        third = weight.shape[0] // 3
        joined = _joined(grads, third)
        if joined is not None:
            return joined @ weight, None, None
        total: Tensor | None = None
        for grad, part in zip(grads, weight.split(third), strict=True):
            if grad is not None:
                total = grad @ part if total is None else total + grad @ part
        return total, None, None


def _joined(grads: tuple[Tensor | None, ...], width: int) -> Tensor | None:
    """Return three gradients [.., width] as one view [.., 3 * width] if they are adjacent in memory; else None."""
    first = grads[0]
    if first is None or first.stride(-1) != 1 or first.stride(-2) != 3 * width:
        return None
    for i, grad in enumerate(grads):
        if grad is None or grad.stride() != first.stride():
            return None
        if grad.data_ptr() != first.data_ptr() + i * width * first.element_size():
            return None
    return first.as_strided((*first.shape[:-1], 3 * width), first.stride(), first.storage_offset())
