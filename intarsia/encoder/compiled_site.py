"""What a method does behind a sub-layer, for passes whose layers are one compiled function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CompiledSite:
    """An adapter at the output of a sub-layer, its tensors named as in `Bottleneck`, and a LayerNorm behind it."""

    adapter: bool = False
    activation: str = "linear"  # of the adapter
    reads: Literal["output", "input", "normalised"] = "output"  # of the sub-layer, or the base's LayerNorm of their sum
    norm: bool = False  # the method has a LayerNorm of its own; otherwise the base's acts
