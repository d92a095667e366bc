"""AdamW over all slots at once.

Eps outside the root, decoupled decay on matrices only, the gradient clipped by
each slot's own global norm. Everything is a sweep over the flat buffer [slots, parameters]; each slot has a learning
rate of its own.
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
    # Of both means, which start at 0. The adapters' authors ran without it: early steps are up to 6 times as large.
    bias_correction: bool = True

    def corrections(self, step: int) -> tuple[float, float]:
        """What the first mean and the root of the second are multiplied by in a step, counted from 0."""
        if not self.bias_correction:
            return 1.0, 1.0
        return 1.0 / (1.0 - self.beta1 ** (step + 1)), (1.0 - self.beta2 ** (step + 1)) ** -0.5


class Adam:
    def __init__(
        self, parameters: Tensor, decay: Tensor, settings: AdamSettings, factors: Tensor | None = None
    ) -> None:
        self.parameters = parameters  # [slots, parameters], changed in place
        self.decay = decay * settings.weight_decay  # [parameters]
        self.factors = None if factors is None or bool((factors == 1).all()) else factors  # of the rate [parameters]
        self.settings = settings
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor, rates: Tensor, corrections: tuple[float, float] = (1.0, 1.0)) -> None:
        """One step with each slot's own learning rate [slots]; the gradient is used up."""
        s = self.settings
        first, second = corrections
        norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)  # [slots, 1]
        gradient.mul_(s.clip / norms.clamp_min(s.clip))
        self.first.mul_(s.beta1).add_(gradient, alpha=1 - s.beta1)
        self.second.mul_(s.beta2).addcmul_(gradient, gradient, value=1 - s.beta2)
        update = torch.sqrt(self.second, out=gradient)  # no memory of its own
        update.add_(s.eps / second).reciprocal_().mul_(self.first)  # times first / second, below
        update.addcmul_(self.parameters, self.decay, value=second / first)
        if self.factors is not None:
            update.mul_(self.factors)
        self.parameters.sub_(update.mul_(rates[:, None] * (first / second)))


def linear_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Linear warm-up over the first share of the steps, then linear decay to 0."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return peak * (step + 1) / rise
    return peak * max(0.0, (steps - step) / max(1, steps - rise))
