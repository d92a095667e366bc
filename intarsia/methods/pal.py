"""Projected attention layers (Stickland & Murray 2019), over a frozen base.

A projected attention layer runs in parallel to each layer: LN(FFN(a) + a + TS(x)) with TS(x) = gelu(V_D MHA(V_E x)).
x is the input of the layer's attention; in a post-norm base that is the layer's input. MHA is multi-head attention of
reduced width with its own queries, keys and values, and without an output projection. All layers share V_E and V_D. The
method also trains the LayerNorms. Without them, BERT-base has 1,819,836 trained parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.shape import NormShape
from intarsia.encoder.sites import FFN_OUTPUT
from intarsia.errors import IntarsiaError
from intarsia.methods.method import (
    Layers,
    Method,
    Preset,
    Spec,
    check_dropout,
    check_least,
    chosen_layers,
    sorted_layers,
)
from intarsia.methods.norms import norm_count, norm_specs, trained_norms

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView


@dataclass(frozen=True)
class PAL(Method):
    """Attention of `width` units in `heads` heads (12 in the paper, 6 in the authors' program)."""

    width: int = 204
    heads: int = 12
    layers: Layers = None  # None: all
    dropout: float = 0.1  # on the attention, in training
    norms: bool = True  # train the LayerNorms of these layers
    std: float = 0.02

    name: ClassVar[str] = "pal"
    paper: ClassVar[str] = "Stickland & Murray 2019"
    trains: ClassVar[str] = "a narrow attention beside each layer, LayerNorms"
    presets: ClassVar[Mapping[str, Preset]] = {"pal": Preset("width")}
    training_only: ClassVar[tuple[str, ...]] = ("std", "dropout")

    def __post_init__(self) -> None:
        check_least(width=(self.width, 1), heads=(self.heads, 1), std=(self.std, 0))
        check_dropout(self.dropout)
        if self.width % self.heads:
            raise IntarsiaError(f"width {self.width} cannot be divided into {self.heads} heads. Use a multiple.")
        sorted_layers(self)

    @property
    def wants(self) -> tuple[str, ...]:
        return ("layer_input",)

    @property
    def reads_beside(self) -> bool:
        return True

    def recordable(self, shape: Shape) -> bool:
        return True

    def matrices(self, shape: Shape) -> int:
        d, w = shape.width, self.width  # each layer multiplies a token by the shared V_E and V_D
        return len(chosen_layers(self.layers, shape)) * (2 * d * w + 3 * w * w)

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        attention = {(FFN_OUTPUT, layer) for layer in chosen_layers(self.layers, shape)}
        return frozenset(attention | {(n.site, n.layer) for n in self._norms(shape)})

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        d, w = shape.width, self.width
        specs = self._linear("encode", d, w) | self._linear("decode", w, d)
        for layer in chosen_layers(self.layers, shape):
            for part in ("query", "key", "value"):
                specs |= self._linear(f"{layer}.pal.{part}", w, w)
        return specs | norm_specs(self._norms(shape))

    def count(self, shape: Shape) -> int:
        d, w = shape.width, self.width
        inside = len(chosen_layers(self.layers, shape)) * 3 * (w * w + w)
        return 2 * d * w + w + d + inside + norm_count(self._norms(shape))

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        import torch.nn.functional as F

        assert view.layer_input is not None
        narrow = view.linear(view.layer_input, "encode")  # [tokens, w]
        q, k, v = (view.linear(narrow, f"{view.layer}.pal.{part}") for part in ("query", "key", "value"))
        attended = view.attend(q, k, v, self.heads, self.dropout)
        return h + F.gelu(view.linear(attended, "decode"))

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        return view.base_norm(x, f"{view.layer}.{view.site}")

    def _linear(self, name: str, inputs: int, outputs: int) -> dict[str, Spec]:
        weight = Spec((outputs, inputs), "normal", self.std, decay=True)
        return {f"{name}.weight": weight, f"{name}.bias": Spec((outputs,), "zeros")}

    def _norms(self, shape: Shape) -> list[NormShape]:
        return trained_norms(shape, chosen_layers(self.layers, shape), None) if self.norms else []
