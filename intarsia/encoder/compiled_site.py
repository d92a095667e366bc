"""What a method does in a layer, for passes whose layers are one compiled function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CompiledSite:
    """What a method does behind a sub-layer ("attention", "ffn"), to the output of a linear layer (by its site),
    to its input (by its site and ".input"), or to the attention ("attention.prefix").

    Its tensors have the names that `Bottleneck`, `LayerNorms`, `LoRA`, `DoRA`, `BitFit`, `IA3`, `Prefix` and `Fuse`
    give them. Keys and values of a prefix need no description.
    """

    # Behind a sub-layer.
    adapter: bool = False
    activation: str = "linear"  # of the adapter
    reads: Literal["output", "input", "normalised"] = "output"  # of the sub-layer, or the base's LayerNorm of their sum
    restarts: bool = False  # it is added to the sub-layer's own output, not to that of the part below (in a stack)
    norm: Literal["base", "own", "own bias"] = "base"  # the LayerNorm behind the adapter
    # To the output of a linear layer.
    difference: float | None = None  # the scale of a difference of low rank; None: there is none
    magnitude: bool = False  # of the rows of the changed weight, as DoRA has it
    bias: bool = False  # the method has a bias of its own
    # To the output of a linear layer, or to its input.
    gain: bool = False  # it is multiplied by a vector
    # Behind a sub-layer, in a fusion.
    fused: bool = False  # an adapter, to whose result the fusion attends
    fusion: bool = False  # the attention over them, whose query `reads`; nothing else
    # As a part of a mean.
    weight: float = 1.0  # of what it adds, and of its LayerNorm
    mean: Literal[0, 1, 2] = 0  # 1: the first part with an adapter here; 2: a further one
    norm_mean: Literal[0, 1, 2] = 0  # the same for its LayerNorm
    rest: float = 0.0  # of the base's LayerNorm, in the first norm
