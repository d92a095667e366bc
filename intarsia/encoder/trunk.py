"""The trunk: the layers below the lowest layer in which a method acts. A pass may skip the trunk or compute only it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from intarsia.encoder.routed import Switchboard


class SpannedLayer:
    """Replaces the `forward` of a layer's module: runs the layer, or returns its input if the pass skips the layer."""

    def __init__(self, plain: Callable[..., Any], switchboard: Switchboard) -> None:
        self.plain, self.switchboard = plain, switchboard
        self.extras: int | None = None  # values after the states in the layer's tuple; None: it returns no tuple

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        current = self.switchboard.current
        if current is None:
            return self.plain(hidden_states, *args, **kwargs)
        span = current.span
        span.now += 1  # a pass calls the layers in order; a shared module runs once for each layer that uses it
        if span.now == span.first and span.given is not None:
            hidden_states = span.given
        if span.now == span.end:
            span.entered = hidden_states
        if span.left_out:
            return hidden_states if self.extras is None else (hidden_states, *[None] * self.extras)
        out = self.plain(hidden_states, *args, **kwargs)
        self.extras = len(out) - 1 if isinstance(out, tuple) else None  # the self-check in `Encoder` sets it first
        return out


class SpannedEmbeddings:
    """Replaces the `forward` of the embeddings: runs them, or returns the given states if the pass skips them."""

    def __init__(self, plain: Callable[..., Any], switchboard: Switchboard) -> None:
        self.plain, self.switchboard = plain, switchboard

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current = self.switchboard.current
        if current is None or current.span.given is None:
            return self.plain(*args, **kwargs)
        return current.span.given  # the first layer that the pass computes reads it too


def skip_embeddings(module: nn.Module, switchboard: Switchboard) -> None:
    """Let passes that begin above the embeddings skip them. Their output must have the width of the layers."""
    module.forward = SpannedEmbeddings(module.forward, switchboard)


def replace_forward(module: nn.Module, switchboard: Switchboard) -> None:
    """Replace the `forward` of a layer's module with a `SpannedLayer`."""
    module.forward = SpannedLayer(module.forward, switchboard)
