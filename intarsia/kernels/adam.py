"""One sweep of AdamW over all slots' parameters; slots that rest are left alone."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _adam(
    parameters, low, gradient, first, second, decay, factors, rates, corrections, norms, active, count,
    beta1, beta2, eps, clip, FACTORS: tl.constexpr, LOW: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(1)  # of the two the short one: a whole model has more blocks than the second may count
    if tl.load(active + slot) != 0:
        start = tl.program_id(0).to(tl.int64) * BLOCK
        at = start + tl.arange(0, BLOCK)
        numbers = (tl.load(rates + slot), tl.load(corrections + 2 * slot), tl.load(corrections + 2 * slot + 1),
                   clip / tl.maximum(tl.load(norms + slot), clip), beta1, beta2, eps)  # fmt: skip
        tensors = parameters, low, gradient, first, second, decay, factors
        if ALONE:  # a whole model, of any number of parameters: with a mask they would be loaded one at a time
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
    low: Tensor | None,  # the same in the base's type
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    decay: Tensor,  # [count]
    factors: Tensor | None,
    rates: Tensor,  # [slots]
    corrections: Tensor,  # [slots, 2] of the means
    norms: Tensor,  # [slots] of the gradient
    active: Tensor,  # [slots] int32
    *,
    betas: tuple[float, float],
    eps: float,
    clip: float,
) -> None:
    slots, count = parameters.shape
    _adam[(triton.cdiv(count, 2048), slots)](
        parameters, parameters if low is None else low, gradient, first, second, decay,
        decay if factors is None else factors, rates, corrections, norms, active, count, *betas, eps, clip,
        factors is not None, low is not None, slots == 1, 2048, num_warps=8,
    )  # fmt: skip
