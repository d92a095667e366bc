"""Hard-concrete gates on a difference (`intarsia/methods/gates.py`), drawn by hashing. One kernel forward, one back.

The backward kernel also adds the gradient of the penalty on the expected number of open gates.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout
from intarsia.kernels.mixing import bits, fraction, site_of

BLOCK = 1024


@triton.jit
def _concrete(alpha, seeds, site, index, edge):
    u = fraction(bits(tl.load(seeds), site, index))
    u = tl.minimum(tl.maximum(u, edge), 1.0 - edge)
    return 1.0 / (1.0 + tl.exp(-(tl.log(u) - tl.log(1.0 - u) + alpha)))


@triton.jit
def _forward(theta, difference, alpha, out, seeds, site, count, edge, left, right, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    s = _concrete(tl.load(alpha + index, mask=inside, other=0.0), seeds, site, index, edge)
    z = tl.minimum(tl.maximum(s * (right - left) + left, 0.0), 1.0)
    w = tl.load(theta + index, mask=inside, other=0.0).to(tl.float32)
    w += z * tl.load(difference + index, mask=inside, other=0.0)
    tl.store(out + index, w.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad, difference, alpha, d_difference, d_alpha, seeds, site, count, edge, left, right, penalty, shift,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    a = tl.load(alpha + index, mask=inside, other=0.0)
    s = _concrete(a, seeds, site, index, edge)
    stretched = s * (right - left) + left
    g = tl.load(grad + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_difference + index, tl.minimum(tl.maximum(stretched, 0.0), 1.0) * g, mask=inside)
    slope = tl.where((stretched >= 0.0) & (stretched <= 1.0), s * (1.0 - s) * (right - left), 0.0)
    by_alpha = slope * tl.load(difference + index, mask=inside, other=0.0) * g
    expected = 1.0 / (1.0 + tl.exp(shift - a))
    tl.store(d_alpha + index, by_alpha + penalty * expected * (1.0 - expected), mask=inside)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, difference: Tensor, alpha: Tensor, seeds: Tensor, *numbers: Any) -> Tensor:
        theta, difference, alpha = theta.contiguous(), difference.contiguous(), alpha.contiguous()
        ctx.save_for_backward(difference, alpha, seeds)
        ctx.numbers = numbers
        site, edge, left, right, *_ = numbers
        out = torch.empty_like(theta)
        _forward[_grid(out)](theta, difference, alpha, out, seeds, site, out.numel(), edge, left, right, BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        difference, alpha, seeds = ctx.saved_tensors
        gradients = torch.empty_like(difference), torch.empty_like(alpha)
        size, (site, *numbers) = alpha.numel(), ctx.numbers
        _backward[_grid(alpha)](grad.contiguous(), difference, alpha, *gradients, seeds, site, size, *numbers, BLOCK)
        return None, *gradients, None, *(None for _ in ctx.numbers)


def _grid(x: Tensor) -> tuple[int]:
    return (math.ceil(x.numel() / BLOCK),)


def gated(
    theta: Tensor, difference: Tensor, alpha: Tensor, site: int, layout: Layout, edge: float, left: float, right: float,
    penalty: float,
) -> Tensor:  # fmt: skip
    """theta + difference * gates in theta's type, with the seed of the pass's first slot.

    `site` distinguishes the calls in a pass. The gradient of alpha includes `penalty` times that of the expected number
    of open gates.
    """
    shift = math.log(-left / right)
    return _Gated.apply(theta, difference, alpha, layout.seeds, site_of(site), edge, left, right, penalty, shift)
