"""The layers that one pass computes.

The states that enter a layer do not depend on the methods in that layer or above it. `Encoder.states_below` computes
only the layers below a given layer. `Encoder.forward(above=…)` takes these states and computes only the layers above.
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
class LayerSpan:
    """The layers that a pass computes, and the layer that is running."""

    first: int = OUTSIDE  # the lowest computed layer; OUTSIDE: the pass starts with the embeddings
    given: Tensor | None = None  # the states that enter `first`, in the layout of the pass
    end: int | None = None  # the lowest layer above the computed ones; None: all are computed
    entered: Tensor | None = None  # the states that would enter `end`
    now: int = OUTSIDE  # the layer that is running

    @classmethod
    def above(cls, layer: int, states: Tensor, batch: Batch | StaticBatch, padded: bool) -> LayerSpan:
        """Return the span that starts at a layer, with the states [N, d] that enter it."""
        if states.shape[0] != batch.tokens:
            raise ValueError(
                f"got {states.shape[0]} states for a batch of {batch.tokens} tokens; expected one state for each token"
            )
        if not padded:
            return cls(layer, states[None])
        assert isinstance(batch, Batch), "a pass of fixed shape is never padded"
        whole = batch.whole
        return cls(layer, states.index_select(0, whole.tokens).view(whole.rows, whole.length, -1))

    @property
    def left_out(self) -> bool:
        """Whether the pass skips the layer that is running, so that nothing reads its values."""
        return self.now < self.first or (self.end is not None and self.now >= self.end)
