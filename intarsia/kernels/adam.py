"""One sweep of AdamW over all slots' parameters; slots that rest are left alone."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _adam(
    parameters, low, gradient, first, second, decay, factors, rates, corrections, norms, active, count,
    beta1, beta2, eps, clip, FACTORS: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(1)  # of the two the short one: a whole model has more blocks than the second may count
    if tl.load(active + slot) != 0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        place = slot.to(tl.int64) * count + at
        g = tl.load(gradient + place, mask=inside, other=0.0) * (clip / tl.maximum(tl.load(norms + slot), clip))
        m = tl.load(first + place, mask=inside, other=0.0) * beta1 + g * (1.0 - beta1)
        v = tl.load(second + place, mask=inside, other=0.0) * beta2 + g * g * (1.0 - beta2)
        p = tl.load(parameters + place, mask=inside, other=0.0)
        root = tl.sqrt(v) * tl.load(corrections + 2 * slot + 1)
        update = m * tl.load(corrections + 2 * slot) / (root + eps) + p * tl.load(decay + at, mask=inside, other=0.0)
        if FACTORS:
            update *= tl.load(factors + at, mask=inside, other=0.0)
        p -= tl.load(rates + slot) * update
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
        factors is not None, low is not None, 2048, num_warps=8,
    )  # fmt: skip
