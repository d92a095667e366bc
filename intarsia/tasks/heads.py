"""A task's output layer, and which vector of a row it reads.

Reproductions differ silently in the pooling, so it is a visible choice: the mean over the row's tokens, the first
token's state, the base's own pooler kept frozen (the paper's program), or a pooler trained with the task. Heads of
kinds that ask about words read every token's state: no pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.sites import OUTSIDE, Shape
from intarsia.encoder.spec import Spec
from intarsia.errors import IntarsiaError, check_choice

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.packed import Batch

Pooling = Literal["mean", "cls", "pooler", "trained-pooler", "none"]
STD = 0.02  # of a start that is drawn


@dataclass(frozen=True)
class Head:
    """A linear layer of `outputs` on the pooled row, or each token, with the base's hidden dropout in front of it."""

    outputs: int
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, get_args(Pooling))

    def tensors(self, shape: Shape, width: int | None = None) -> dict[str, Spec]:
        """`width` of what it reads, where that is not the base's."""
        d = shape.width
        specs: dict[str, Spec] = {}
        if self.pooling == "pooler" and not shape.pooler:
            raise IntarsiaError(
                f"this base ({shape.family}) has no pooler of its own; choose the pooling mean, cls or trained-pooler."
            )
        if self.pooling == "trained-pooler":
            own = ("pooler", OUTSIDE)
            weight = Spec((d, d), "base", site=own, decay=True)
            bias = Spec((d,), "base", site=own, tensor="bias")
            specs["pooler.weight"] = weight if shape.pooler else Spec((d, d), "normal", STD, decay=True)
            specs["pooler.bias"] = bias if shape.pooler else Spec((d,), "zeros")
        specs["output.weight"] = Spec((self.outputs, width or d), "normal", STD, decay=True)
        specs["output.bias"] = Spec((self.outputs,), "zeros")
        return specs

    def count(self, shape: Shape, width: int | None = None) -> int:
        d = shape.width
        return self.outputs * ((width or d) + 1) + (d * d + d if self.pooling == "trained-pooler" else 0)

    def starts(self, encoder: Encoder) -> dict[str, Tensor]:
        """Tensors that start as the checkpoint has them, and not as `tensors` says."""
        return {}

    def logits(
        self,
        tensors: Mapping[str, Tensor],
        rows: Tensor,
        encoder: Encoder,
        noise: Noise | None = None,
        own: Callable[[Tensor], Tensor] | None = None,
        pooler: Mapping[str, Tensor] | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """[rows, d] as `pool` gives them → [rows, outputs].

        `own` is what the method does to pooled rows; `pooler` has the `weight` and `bias` that the method holds in
        place of the base pooler's, `weights` all that stand for the base's in the pass, for heads that read others.
        """
        if self.pooling == "pooler":
            assert encoder.pooler is not None
            weight, bias = encoder.pooler
            instead = pooler or {}
            weight, bias = instead.get("weight", weight), instead.get("bias", bias)
            rows = torch.tanh(F.linear(rows.to(weight.dtype), weight, bias.to(weight.dtype)))
        elif self.pooling == "trained-pooler":
            rows = torch.tanh(
                F.linear(rows.to(tensors["pooler.weight"].dtype), tensors["pooler.weight"], tensors["pooler.bias"])
            )
        if own is not None:
            rows = own(rows)
        rows = rows.to(tensors["output.weight"].dtype)
        rows = drop(rows, encoder.hidden_dropout, noise)
        return F.linear(rows, tensors["output.weight"], tensors["output.bias"])

    def to_dict(self) -> dict[str, Any]:
        return {"outputs": self.outputs, "pooling": self.pooling}


def pool(states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """One vector a row [R, d]: the mean over its tokens, or its first token's state; in float32 at least.

    Without pooling, one a token [N, d].
    """
    states = states.float() if states.dtype in (torch.bfloat16, torch.float16) else states
    if pooling == "none":
        return states
    if pooling != "mean":
        return states.index_select(0, batch.starts)
    sums = torch.segment_reduce(states, "sum", lengths=batch.row_lengths, axis=0, unsafe=True)
    return sums / batch.row_lengths[:, None].to(states.dtype)


def pooler_instead(encoder: Encoder, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What one owner holds in place of the base pooler's `weight` and `bias`: among its own tensors, or among the
    weights that stand for the base's in its pass."""
    found = {kind: weights.get(f"{encoder.family.pooler}.{kind}") for kind in ("weight", "bias")}
    found = {kind: tensors.get(f"{OUTSIDE}.pooler.{kind}", tensor) for kind, tensor in found.items()}
    return {kind: tensor for kind, tensor in found.items() if tensor is not None}
