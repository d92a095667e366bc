"""The names of the activation functions that a method option can have; `activations.py` computes them."""

from __future__ import annotations

from typing import Literal, get_args

Activation = Literal[
    "gelu", "relu", "tanh", "swish", "gelu_exact", "leaky_relu", "quick_gelu", "relu6", "mish", "sigmoid", "linear"
]
ACTIVATION_NAMES: tuple[str, ...] = get_args(Activation)
