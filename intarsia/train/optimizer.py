"""AdamW over all slots at once.

Epsilon is added outside the square root. Decoupled weight decay acts on matrices only. The gradient is clipped by each
slot's own global norm, and each slot has its own learning rate. Every operation runs over the whole flat buffer
[slots, parameters].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    # Corrects both moments, which start at 0. Houlsby et al. trained without it: early steps are then up to 6 times as
    # large.
    bias_correction: bool = True

    def corrections(self, step: int) -> tuple[float, float]:
        """Return the factors of the first moment and of the second moment's root in a step (counted from 0)."""
        if not self.bias_correction:
            return 1.0, 1.0
        return 1.0 / (1.0 - self.beta1 ** (step + 1)), (1.0 - self.beta2 ** (step + 1)) ** -0.5


class Adam:
    def __init__(
        self, parameters: Tensor, decay: Tensor, settings: AdamSettings, factors: Tensor | None = None
    ) -> None:
        """`decay` and `factors` [parameters]: the weight decay mask, and learning rate factors (None: all 1)."""
        self.parameters = parameters  # [slots, parameters], changed in place
        self.decay = decay * settings.weight_decay
        self.factors = None if factors is None or bool((factors == 1).all()) else factors
        self.settings = settings
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor, rates: Tensor, corrections: tuple[float, float] = (1.0, 1.0)) -> None:
        """Take one step with each slot's own learning rate [slots]; the gradient's memory is overwritten."""
        s = self.settings
        first, second = corrections
        norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)  # [slots, 1]
        gradient.mul_(s.clip / norms.clamp_min(s.clip))
        self.first.mul_(s.beta1).add_(gradient, alpha=1 - s.beta1)
        self.second.mul_(s.beta2).addcmul_(gradient, gradient, value=1 - s.beta2)
        update = torch.sqrt(self.second, out=gradient)  # reuses the gradient's memory
        update.add_(s.eps / second).reciprocal_().mul_(self.first)  # the factor first / second follows below
        update.addcmul_(self.parameters, self.decay, value=second / first)
        if self.factors is not None:
            update.mul_(self.factors)
        self.parameters.sub_(update.mul_(rates[:, None] * (first / second)))


def linear_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Return the learning rate of a step: linear warm-up in the share `warmup` of all steps, then linear decay to 0."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return peak * (step + 1) / rise
    return peak * max(0.0, (steps - step) / max(1, steps - rise))
