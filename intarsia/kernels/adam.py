"""An AdamW step for the parameters of all active slots, in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _adam(
    parameters, low, gradient, first, second, decay, factors, rates, corrections, norms, active, count,
    beta1, beta2, eps, clip, FACTORS: tl.constexpr, LOW: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(1)  # on the second axis, whose size is limited: a whole model has too many blocks for it
    if tl.load(active + slot) != 0:
        start = tl.program_id(0).to(tl.int64) * BLOCK
        at = start + tl.arange(0, BLOCK)
        numbers = (tl.load(rates + slot), tl.load(corrections + 2 * slot), tl.load(corrections + 2 * slot + 1),
                   clip / tl.maximum(tl.load(norms + slot), clip), beta1, beta2, eps)  # fmt: skip
        tensors = parameters, low, gradient, first, second, decay, factors
        if ALONE:  # a whole model, of any size: with a mask its parameters would be loaded one at a time
            if start + BLOCK <= count:
                _update(tensors, at, at, tl.full((BLOCK,), 1, tl.int1), numbers, FACTORS, LOW)
            else:
                _update(tensors, at, at, at < count, numbers, FACTORS, LOW)
        else:
            _update(tensors, at, slot.to(tl.int64) * count + at, at < count, numbers, FACTORS, LOW)


@triton.jit
def _update(tensors, at, place, inside, numbers, FACTORS: tl.constexpr, LOW: tl.constexpr):
    parameters, low, gradient, first, second, decay, factors = tensors
    rate, first_correction, second_correction, scale, beta1, beta2, eps = numbers
    g = tl.load(gradient + place, mask=inside, other=0.0) * scale
    m = tl.load(first + place, mask=inside, other=0.0) * beta1 + g * (1.0 - beta1)
    v = tl.load(second + place, mask=inside, other=0.0) * beta2 + g * g * (1.0 - beta2)
    p = tl.load(parameters + place, mask=inside, other=0.0)
    root = tl.sqrt(v) * second_correction
    update = m * first_correction / (root + eps) + p * tl.load(decay + at, mask=inside, other=0.0)
    if FACTORS:
        update *= tl.load(factors + at, mask=inside, other=0.0)
    p -= rate * update
    tl.store(first + place, m, mask=inside)
    tl.store(second + place, v, mask=inside)
    tl.store(parameters + place, p, mask=inside)
    if LOW:
        tl.store(low + place, p.to(low.dtype.element_ty), mask=inside)


def step(
    parameters: Tensor,  # [slots, count] in float32, as are gradient, first and second
    low: Tensor | None,  # a copy of the parameters in the base's type, updated too
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    decay: Tensor,  # [count] weight decay
    factors: Tensor | None,  # [count] of the learning rate
    rates: Tensor,  # [slots] learning rates
    corrections: Tensor,  # [slots, 2] bias corrections of both moments
    norms: Tensor,  # [slots] gradient norms
    active: Tensor,  # [slots] int32, 0: the slot is not updated
    *,
    betas: tuple[float, float],
    eps: float,
    clip: float,
) -> None:
    """Update parameters and both moments of the active slots in place; gradients are clipped to the norm `clip`."""
    slots, count = parameters.shape
    _adam[(triton.cdiv(count, 2048), slots)](
        parameters, parameters if low is None else low, gradient, first, second, decay,
        decay if factors is None else factors, rates, corrections, norms, active, count, *betas, eps, clip,
        factors is not None, low is not None, slots == 1, 2048, num_warps=8,
    )  # fmt: skip
