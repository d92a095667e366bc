"""Passes that begin or end inside the base.

What enters a layer does not depend on what acts in that layer or above it. `Encoder.states_below` computes it and
nothing above; a pass that is given it (`Encoder.forward(above=…)`) computes nothing below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from intarsia.encoder.packed import Batch
from intarsia.encoder.sites import OUTSIDE

if TYPE_CHECKING:
    from intarsia.encoder.fixed import FixedBatch
    from intarsia.encoder.routed import Switchboard


@dataclass
class Span:
    """The layers that a pass computes, and how far it has come."""

    first: int = OUTSIDE  # the lowest of them; OUTSIDE: the embeddings come first
    given: Tensor | None = None  # what enters the first, in the layout of the pass
    end: int | None = None  # the lowest that is not computed any more
    entered: Tensor | None = None  # what would have entered that one
    now: int = OUTSIDE  # the layer under way

    @classmethod
    def above(cls, layer: int, states: Tensor, batch: Batch | FixedBatch, padded: bool) -> Span:
        """From a layer on, with the states [N, d] that enter it."""
        if states.shape[0] != batch.tokens:
            raise ValueError(f"{states.shape[0]} states were given for a batch of {batch.tokens} tokens")
        if not padded:
            return cls(layer, states[None])
        assert isinstance(batch, Batch), "a pass of fixed shape is never padded"
        whole = batch.whole
        return cls(layer, states.index_select(0, whole.tokens).view(whole.rows, whole.length, -1))

    @property
    def left_out(self) -> bool:
        """Whether what runs now is not part of the pass: its values reach nothing."""
        return self.now < self.first or (self.end is not None and self.now >= self.end)


class Layer:
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
    module.forward = Layer(module.forward, switchboard)
