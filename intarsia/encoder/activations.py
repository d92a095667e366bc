"""The activation functions that a method option can name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import rowwise


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),  # the adapter authors' program uses the tanh form
    "relu": F.relu,
    "tanh": torch.tanh,
    "swish": F.silu,
    "gelu_exact": F.gelu,  # x times the normal distribution's cumulative probability
    "leaky_relu": F.leaky_relu,  # slope 0.01 below 0
    "quick_gelu": _quick_gelu,
    "relu6": F.relu6,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "linear": _linear,
}
# Each value depends on its own element only, however PyTorch computes them.
EXACT = ("relu", "tanh", "leaky_relu", "relu6", "linear")


def activate(x: Tensor, activation: str) -> Tensor:
    """Return the named activation of `x`."""
    function = ACTIVATIONS[activation]
    return function(x) if activation in EXACT else rowwise.elementwise(function, x)
