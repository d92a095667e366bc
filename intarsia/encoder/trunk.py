"""The trunk: the layers below the lowest one in which a method acts. A pass may skip them, or compute only them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from intarsia.encoder.routed import Switchboard


class SpannedLayer:
    """Stands for the `forward` of a layer's module: does what it did, or hands its input on where it is left out."""

    def __init__(self, plain: Callable[..., Any], switchboard: Switchboard) -> None:
        self.plain, self.switchboard = plain, switchboard
        self.beside: int | None = None  # what the layer gives beside its states, as a tuple; None: it gives no tuple

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        current = self.switchboard.current
        if current is None:
            return self.plain(hidden_states, *args, **kwargs)
        span = current.span
        span.now += 1  # every layer is called once in a pass, in order; a shared module as often as it serves
        if span.now == span.first and span.given is not None:
            hidden_states = span.given
        if span.now == span.end:
            span.entered = hidden_states
        if span.left_out:
            return hidden_states if self.beside is None else (hidden_states, *[None] * self.beside)
        out = self.plain(hidden_states, *args, **kwargs)
        self.beside = len(out) - 1 if isinstance(out, tuple) else None  # known since the self-check at attaching
        return out


def stand_for(module: nn.Module, switchboard: Switchboard) -> None:
    module.forward = SpannedLayer(module.forward, switchboard)
