"""The names that other libraries give to activation functions, and Intarsia's names for the same functions."""

from __future__ import annotations

from intarsia.encoder.activation_names import Activation
from intarsia.errors import ExchangeError

OURS: dict[str, Activation] = {
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_accurate": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "relu": "relu",
    "relu6": "relu6",
    "tanh": "tanh",
    "swish": "swish",
    "silu": "swish",
    "leakyrelu": "leaky_relu",
    "leaky_relu": "leaky_relu",
    "quick_gelu": "quick_gelu",
    "mish": "mish",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
THEIRS: dict[str, str] = {
    "gelu_exact": "gelu", "gelu": "gelu_new", "leaky_relu": "leakyrelu", "swish": "swish",
    **{name: name for name in ("relu", "relu6", "tanh", "quick_gelu", "mish", "sigmoid", "linear")},
}  # fmt: skip


def activation_of(name: object, where: str) -> Activation:
    """Return Intarsia's name of an activation function of `transformers`."""
    known = name.lower() if isinstance(name, str) else ""
    if known not in OURS:
        raise ExchangeError(f"{where}: the activation {name!r:.60} is not known; known: {', '.join(OURS)}.")
    return OURS[known]
