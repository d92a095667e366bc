"""Dropout with cheap random numbers that depend only on (seed, step).

On CPUs PyTorch's dropout spends more time on Bernoulli numbers than a small layer spends on a matrix product. Here
NumPy's SFC64 draws 16 random bits for each element, so probabilities are exact to 1/65536. Each pass draws from a new
stream: a resumed training step repeats exactly, and no generator state is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Noise:
    """The random numbers of one training pass."""

    fuses_gates = False  # whether `gated` computes hard-concrete gates in one kernel

    def __init__(self, entropy: Sequence[int], device: torch.device, *, dropout: bool = True) -> None:
        """Seed the random numbers with `entropy`: usually the seed and step of each job in the pass."""
        self.device, self.dropout = device, dropout
        sequence = np.random.SeedSequence(list(entropy))
        if device.type == "cpu":
            self._bits = np.random.SFC64(sequence)
        else:
            seed = int(sequence.generate_state(1, np.uint64)[0]) >> 1
            self._generator = torch.Generator(device).manual_seed(seed)

    def keep(self, shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
        """Return a boolean mask that is True with probability 1 - p."""
        if self.device.type != "cpu":
            return torch.rand(shape, device=self.device, generator=self._generator) >= p
        count = int(np.prod(shape))
        words = self._bits.random_raw((count + 3) // 4)  # each word holds four 16-bit numbers
        bits = torch.from_numpy(words.view(np.int16))[:count].view(shape)
        return bits >= round(p * 65536) - 32768

    def drop(self, x: Tensor, p: float) -> Tensor:
        """Return `x` after dropout."""
        return _Drop.apply(x, self.keep(x.shape, p), 1.0 / (1.0 - p))

    def uniform(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Return uniform numbers in [0, 1). On CPUs they are midpoints of intervals of width 2^-16."""
        if self.device.type != "cpu":
            return torch.rand(shape, device=self.device, generator=self._generator)
        count = int(np.prod(shape))
        words = self._bits.random_raw((count + 3) // 4).view(np.uint16)[:count]
        return torch.from_numpy((words.astype(np.float32) + 0.5) / 65536).view(shape)

    def gated(
        self,
        theta: Tensor,
        difference: Tensor,
        alpha: Tensor,
        edge: float,
        stretch: tuple[float, float],
        penalty: float,
    ) -> Tensor:
        """Return theta + difference * hard-concrete gates of alpha, in one kernel. Requires `fuses_gates`."""
        raise TypeError("only the noise of a recorded pass fuses gates; check `fuses_gates` first")


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.ops.aten.native_dropout_backward(x, keep, scale)  # x * keep * scale, in one pass over memory

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grad, keep, ctx.scale), None, None


def drop(x: Tensor, p: float, noise: Noise | None) -> Tensor:
    """Return `x` after dropout, or `x` itself without noise (outside training), with dropout off, or with p = 0."""
    if noise is None or not noise.dropout or p == 0.0:
        return x
    return noise.drop(x, p)
