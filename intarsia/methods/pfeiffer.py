"""Pfeiffer adapters (Pfeiffer et al. 2021, AdapterFusion): one adapter in the feed-forward sub-layer of each layer.

With the feed-forward output h and the residual a: u = LN(h + a), h' = h + W_up relu(W_down u + b_down) + b_up, and then
LN(h' + a). Both LN are the same frozen LayerNorm. The method trains no LayerNorm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.activation_names import ACTIVATION_NAMES, Activation
from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import FFN_OUTPUT
from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods import invertible
from intarsia.methods.bottleneck import adapter_specs
from intarsia.methods.method import Layers, Method, Preset, Spec, Tensors, check_least, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView


@dataclass(frozen=True)
class Pfeiffer(Method):
    """Adapters of `size` hidden units; None: d / `reduction` units."""

    size: int | None = None
    reduction: int = 16
    layers: Layers = None  # None: all
    activation: Activation = "relu"
    std: float = 1e-2
    invertible: bool = False  # an invertible adapter at the embeddings, as MAD-X has for languages
    invertible_reduction: int = 2  # of its hidden units

    name: ClassVar[str] = "pfeiffer"
    paper: ClassVar[str] = "Pfeiffer et al. 2021"
    trains: ClassVar[str] = "one bottleneck a layer"
    presets: ClassVar[Mapping[str, Preset]] = {"pfeiffer": Preset("size")}
    training_only: ClassVar[tuple[str, ...]] = ("std",)
    newer: ClassVar[tuple[str, ...]] = ("invertible", "invertible_reduction")

    recipe: ClassVar[dict[str, object]] = {"learning_rate": 5e-4, "bias_correction": False}

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        check_least(reduction=(self.reduction, 1), std=(self.std, 0), size=(self.size, 1))
        check_least(invertible_reduction=(self.invertible_reduction, 1))
        sorted_layers(self)

    @property
    def wants(self) -> tuple[str, ...]:
        return ("sublayer_input",)

    def check(self, shape: Shape) -> None:
        if shape.pre_norm:
            raise IntarsiaError(
                f"Pfeiffer adapters do not work on {shape.family}: they read the output of the LayerNorm after "
                "the feed-forward sub-layer, and this base has its LayerNorm before it. Use single or houlsby."
            )
        if self.invertible:
            invertible.check(shape)

    def recordable(self, shape: Shape) -> bool:
        return True

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite]:
        site = CompiledSite(True, self.activation, "normalised")
        return {("ffn", layer): site for layer in chosen_layers(self.layers, shape)}

    def sized(self, shape: Shape) -> Method:
        return replace(self, size=self.width(shape))

    def width(self, shape: Shape) -> int:
        """Return the number of hidden units."""
        return self.size or max(1, shape.width // self.reduction)

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        adapters = {(FFN_OUTPUT, layer) for layer in chosen_layers(self.layers, shape)}
        return frozenset(adapters | ({invertible.PLACE} if self.invertible else set()))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        specs = invertible.specs(shape, self.invertible_reduction) if self.invertible else {}
        for layer in chosen_layers(self.layers, shape):
            specs |= adapter_specs(f"{layer}.{FFN_OUTPUT}", self.width(shape), shape.width, self.std)
        return specs

    def count(self, shape: Shape) -> int:
        m, d = self.width(shape), shape.width
        outside = invertible.count(shape, self.invertible_reduction) if self.invertible else 0
        return outside + len(chosen_layers(self.layers, shape)) * (2 * m * d + d + m)

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        if view.site == invertible.SITE:
            return invertible.forward(view, h, self.activation)
        return view.bottleneck(h, self.reads(view, h), f"{view.layer}.{view.site}", self.activation)

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        if view.site == invertible.SITE:
            return super().change(view, h)
        read = self.reads(view, h)
        return view.bottleneck(h.new_zeros(h.shape), read, f"{view.layer}.{view.site}", self.activation)

    def reads(self, view: SiteView, h: Tensor) -> Tensor:
        return view.normalised("ffn.norm", h)

    @property
    def inverts_words(self) -> bool:
        return self.invertible

    def words(self, tensors: Tensors, rows: Tensor) -> Tensor:
        return invertible.inverse(tensors, rows, self.activation) if self.invertible else rows
