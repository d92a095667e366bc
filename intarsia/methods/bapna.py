"""Bapna adapters (Bapna & Firat 2019): one adapter on the output of each layer, which begins with its own LayerNorm.

y = x + W_up relu(W_down LN(x) + b_down) + b_up. Each layer has 2md + m + d + 2d parameters. The LayerNorms of the base
stay frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.activation_names import ACTIVATION_NAMES, Activation
from intarsia.encoder.sites import LAYER_OUTPUT
from intarsia.errors import check_choice
from intarsia.methods import invertible
from intarsia.methods.bottleneck import adapter_specs
from intarsia.methods.method import Layers, Method, Preset, Spec, Tensors, check_least, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_EPS = 1e-6


@dataclass(frozen=True)
class Bapna(Method):
    """Adapters of `size` hidden units after each layer."""

    size: int = 64
    layers: Layers = None  # None: all
    activation: Activation = "relu"
    std: float = 1e-2
    invertible: bool = False  # an invertible adapter at the embeddings, as MAD-X has for languages
    invertible_reduction: int = 2  # of its hidden units

    name: ClassVar[str] = "bapna"
    paper: ClassVar[str] = "Bapna & Firat 2019"
    trains: ClassVar[str] = "LayerNorm and bottleneck behind each layer"
    presets: ClassVar[Mapping[str, Preset]] = {"bapna": Preset("size")}
    training_only: ClassVar[tuple[str, ...]] = ("std",)
    newer: ClassVar[tuple[str, ...]] = ("invertible", "invertible_reduction")

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        check_least(size=(self.size, 1), std=(self.std, 0))
        check_least(invertible_reduction=(self.invertible_reduction, 1))
        sorted_layers(self)

    def check(self, shape: Shape) -> None:
        if self.invertible:
            invertible.check(shape)

    def recordable(self, shape: Shape) -> bool:
        return True

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        adapters = {(LAYER_OUTPUT, layer) for layer in chosen_layers(self.layers, shape)}
        return frozenset(adapters | ({invertible.PLACE} if self.invertible else set()))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        specs = invertible.specs(shape, self.invertible_reduction) if self.invertible else {}
        for layer in chosen_layers(self.layers, shape):
            name = f"{layer}.{LAYER_OUTPUT}"
            specs |= adapter_specs(name, self.size, shape.width, self.std)
            specs[f"{name}.norm.weight"] = Spec((shape.width,), "ones")
            specs[f"{name}.norm.bias"] = Spec((shape.width,), "zeros")
        return specs

    def count(self, shape: Shape) -> int:
        m, d = self.size, shape.width
        outside = invertible.count(shape, self.invertible_reduction) if self.invertible else 0
        return outside + len(chosen_layers(self.layers, shape)) * (2 * m * d + m + d + 2 * d)

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        if view.site == invertible.SITE:
            return invertible.forward(view, h, self.activation)
        name = f"{view.layer}.{view.site}"
        normalised = view.layer_norm(h, f"{name}.norm", _EPS)
        return view.bottleneck(h, normalised, name, self.activation)

    @property
    def inverts_words(self) -> bool:
        return self.invertible

    def words(self, tensors: Tensors, rows: Tensor) -> Tensor:
        return invertible.inverse(tensors, rows, self.activation) if self.invertible else rows
