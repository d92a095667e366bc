"""The activation functions that a method option can name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import rowwise

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),  # the adapter authors' program uses the tanh form
    "relu": F.relu,
    "tanh": torch.tanh,
    "swish": F.silu,
}
EXACT = ("relu", "tanh")  # each value depends on its own element only, however PyTorch computes them


def activate(x: Tensor, activation: str) -> Tensor:
    """Return the named activation of `x`."""
    function = ACTIVATIONS[activation]
    return function(x) if activation in EXACT else rowwise.elementwise(function, x)
