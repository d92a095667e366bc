"""Hard-concrete gates on a difference, with a backward that reads memory few times."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.noise import Noise

LEFT, RIGHT = -1.5, 1.5  # the concrete distribution is stretched to [LEFT, RIGHT], then clamped to [0, 1]
EDGE = 1e-4  # keeps uniform numbers away from 0 and 1, whose logits are infinite


def opened(alpha: Tensor, uniform: Tensor | None) -> Tensor:
    """Return gate values: a sample of the hard-concrete distribution, or its median without random numbers."""
    return _stretched(_concrete(alpha, uniform)).clamp_(0.0, 1.0)


def gated(
    theta: Tensor | float, difference: Tensor, alpha: Tensor, noise: Noise | None, penalty: float = 0.0
) -> Tensor:
    """Return theta + difference * gates, with gradients for the difference and alpha.

    If `adds_penalty_gradient(noise)`, the backward adds the gradient of `penalty` times the expected number of open
    gates. Otherwise the loss must contain this penalty.
    """
    if noise is not None and adds_penalty_gradient(noise) and isinstance(theta, Tensor):
        return noise.gated(theta, difference, alpha, EDGE, (LEFT, RIGHT), penalty)
    return _Gated.apply(theta, difference, alpha, None if noise is None else noise.uniform(alpha.shape))


def adds_penalty_gradient(noise: Noise | None) -> bool:
    """Return whether a kernel computes the gates and adds the gradient of their penalty in its backward pass."""
    return noise is not None and noise.fuses_gates


def expected(alpha: Tensor) -> Tensor:
    """Return the probability that each gate is open."""
    return (alpha - math.log(-LEFT / RIGHT)).sigmoid()


def _concrete(alpha: Tensor, uniform: Tensor | None) -> Tensor:
    if uniform is None:
        return alpha.sigmoid()
    return uniform.clamp_(EDGE, 1 - EDGE).logit_().to(alpha.dtype).add_(alpha).sigmoid_()


def _stretched(s: Tensor) -> Tensor:
    return s.mul(RIGHT - LEFT).add_(LEFT)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor | float, difference: Tensor, alpha: Tensor, uniform: Tensor | None) -> Tensor:
        s = _concrete(alpha, uniform)
        ctx.save_for_backward(s, difference)
        return _stretched(s).clamp_(0.0, 1.0).mul_(difference).add_(theta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        s, difference = ctx.saved_tensors
        stretched = _stretched(s)
        z = stretched.clamp(0.0, 1.0)
        inside = z == stretched
        by_alpha = torch.addcmul(s, s, s, value=-1.0).mul_(difference).mul_(grad).mul_(inside)
        return None, z.mul_(grad), by_alpha.mul_(RIGHT - LEFT), None
