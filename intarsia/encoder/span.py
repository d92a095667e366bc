"""The layers that one pass computes.

What enters a layer does not depend on what acts in that layer or above it. `Encoder.states_below` computes only the
layers below one layer; a pass that is given these states (`Encoder.forward(above=…)`) computes only the layers above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from intarsia.encoder.packed import Batch
from intarsia.encoder.sites import OUTSIDE

if TYPE_CHECKING:
    from intarsia.encoder.static_shape import StaticBatch


@dataclass
class Span:
    """The layers that a pass computes, and how far it has come."""

    first: int = OUTSIDE  # the lowest of them; OUTSIDE: the embeddings come first
    given: Tensor | None = None  # what enters the first, in the layout of the pass
    end: int | None = None  # the lowest that is not computed any more
    entered: Tensor | None = None  # what would have entered that one
    now: int = OUTSIDE  # the layer under way

    @classmethod
    def above(cls, layer: int, states: Tensor, batch: Batch | StaticBatch, padded: bool) -> Span:
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
