"""A task's output layer, and the pooling that makes one vector per row.

Reproductions differ silently in the pooling, so it is an explicit choice: the mean over the row's tokens, the first
token's state, the base's own frozen pooler (the paper's program), or a pooler trained with the task. Heads that read
tokens use no pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import rowwise
from intarsia.encoder.activation_names import ACTIVATION_NAMES, Activation
from intarsia.encoder.activations import activate
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.shape import Shape
from intarsia.encoder.sites import OUTSIDE
from intarsia.encoder.spec import Spec
from intarsia.errors import IntarsiaError, check_choice

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.packed import Batch

Pooling = Literal["mean", "cls", "pooler", "trained-pooler", "none"]
STD = 0.02  # of randomly initialised tensors


@dataclass(frozen=True)
class Hidden:
    """A dense layer of the task's own in front of the output, as the heads of other systems have it: DistilBERT's with
    relu, ELECTRA's with gelu, ModernBERT's with gelu and a LayerNorm."""

    activation: Activation = "tanh"
    norm: bool = False  # a LayerNorm behind the activation, with the epsilon of the base's

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATION_NAMES)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Hidden | None:
        """Return the hidden layer of a stored head, if it has one."""
        return cls(**stored["hidden"]) if stored.get("hidden") else None


@dataclass(frozen=True)
class Head:
    """A linear layer with `outputs` outputs on each pooled row or token, after the base's hidden dropout. In front of
    it there may be a `hidden` layer."""

    outputs: int
    pooling: Pooling = "mean"
    hidden: Hidden | None = None

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, get_args(Pooling))

    def tensors(self, shape: Shape, width: int | None = None) -> dict[str, Spec]:
        """The head's tensors. `width`: the width of its input, if it is not the base's."""
        d = shape.width
        specs: dict[str, Spec] = {}
        if self.pooling == "pooler" and not shape.pooler:
            raise IntarsiaError(
                f"this base ({shape.family}) has no pooler; choose the pooling mean, cls or trained-pooler."
            )
        if self.pooling == "trained-pooler":
            site = ("pooler", OUTSIDE)
            weight = Spec((d, d), "base", site=site, decay=True)
            bias = Spec((d,), "base", site=site, tensor="bias")
            specs["pooler.weight"] = weight if shape.pooler else Spec((d, d), "normal", STD, decay=True)
            specs["pooler.bias"] = bias if shape.pooler else Spec((d,), "zeros")
        if self.hidden:
            specs["hidden.weight"] = Spec((d, width or d), "normal", STD, decay=True)
            specs["hidden.bias"] = Spec((d,), "zeros")
            width = d
            if self.hidden.norm:
                specs["norm.weight"], specs["norm.bias"] = Spec((d,), "ones"), Spec((d,), "zeros")
        specs["output.weight"] = Spec((self.outputs, width or d), "normal", STD, decay=True)
        specs["output.bias"] = Spec((self.outputs,), "zeros")
        return specs

    def count(self, shape: Shape, width: int | None = None) -> int:
        """The number of the head's parameters, in closed form."""
        d = shape.width
        layers = d * d + d if self.pooling == "trained-pooler" else 0
        if self.hidden:
            layers += d * (width or d) + d + (2 * d if self.hidden.norm else 0)
            width = d
        return self.outputs * ((width or d) + 1) + layers

    def starts(self, encoder: Encoder) -> dict[str, Tensor]:
        """Tensors that are initialised from the checkpoint instead of the initialisation in `tensors`."""
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
        words: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The logits: rows [rows, d] from `pool` → [rows, outputs].

        `own` is the method's own transform of pooled rows. `pooler` has the `weight` and `bias` with which the method
        replaces the base pooler's. `weights` has all base weights that the method replaces in this pass, and `words`
        is the method's transform of what is compared with the word embeddings; subclasses may read them.
        """
        if self.pooling == "pooler":
            assert encoder.pooler is not None
            weight, bias = encoder.pooler
            replaced = pooler or {}
            weight, bias = replaced.get("weight", weight), replaced.get("bias", bias)
            rows = torch.tanh(rowwise.linear(rows.to(weight.dtype), weight, bias.to(weight.dtype)))
        elif self.pooling == "trained-pooler":
            rows = torch.tanh(
                rowwise.linear(
                    rows.to(tensors["pooler.weight"].dtype), tensors["pooler.weight"], tensors["pooler.bias"]
                )
            )
        if own is not None:
            rows = own(rows)
        rows = rows.to(tensors["output.weight"].dtype)
        if self.hidden:
            rows = activate(
                rowwise.linear(rows, tensors["hidden.weight"], tensors["hidden.bias"]), self.hidden.activation
            )
            if self.hidden.norm:
                norm = tensors["norm.weight"], tensors["norm.bias"]
                rows = F.layer_norm(rows, rows.shape[-1:], *norm, norm_eps(encoder))
        rows = drop(rows, encoder.hidden_dropout, noise)
        return rowwise.linear(rows, tensors["output.weight"], tensors["output.bias"])

    def to_dict(self) -> dict[str, Any]:
        hidden = {"hidden": asdict(self.hidden)} if self.hidden else {}
        return {"outputs": self.outputs, "pooling": self.pooling, **hidden}


class NoHead(Head):
    """No output layer: the inlay has vectors, pooled as `pooling` says, but no answers."""

    def tensors(self, shape: Shape, width: int | None = None) -> dict[str, Spec]:
        return {}

    def count(self, shape: Shape, width: int | None = None) -> int:
        return 0


def norm_eps(encoder: Encoder) -> float:
    """The epsilon of the base's LayerNorm."""
    config = encoder.model.config
    return float(getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12)))


def pool(states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """One vector per row [R, d]: the mean over its tokens, or its first token's state; in float32 or wider.

    With the pooling none, one vector per token [N, d].
    """
    states = states.float() if states.dtype in (torch.bfloat16, torch.float16) else states
    if pooling == "none":
        return states
    if pooling != "mean":
        return states.index_select(0, batch.starts)
    sums = torch.segment_reduce(states, "sum", lengths=batch.row_lengths, axis=0, unsafe=True)
    return sums / batch.row_lengths[:, None].to(states.dtype)


def pooler_instead(encoder: Encoder, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The `weight` and `bias` with which one owner replaces the base pooler's.

    They are among its own tensors, or among the base weights that it replaces in this pass.
    """
    found = {kind: weights.get(f"{encoder.family.pooler}.{kind}") for kind in ("weight", "bias")}
    found = {kind: tensors.get(f"{OUTSIDE}.pooler.{kind}", tensor) for kind, tensor in found.items()}
    return {kind: tensor for kind, tensor in found.items() if tensor is not None}
