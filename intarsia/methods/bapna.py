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
from intarsia.methods.bottleneck import adapter_specs
from intarsia.methods.method import Method, Preset, Spec, check_least, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_EPS = 1e-6


@dataclass(frozen=True)
class Bapna(Method):
    """Adapters of `size` hidden units after each layer."""

    size: int = 64
    layers: tuple[int, ...] | None = None  # None: all
    activation: Activation = "relu"
    std: float = 1e-2

    name: ClassVar[str] = "bapna"
    paper: ClassVar[str] = "Bapna & Firat 2019"
    trains: ClassVar[str] = "LayerNorm and bottleneck behind each layer"
    presets: ClassVar[Mapping[str, Preset]] = {"bapna": Preset("size")}
    training_only: ClassVar[tuple[str, ...]] = ("std",)

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        check_least(size=(self.size, 1), std=(self.std, 0))
        sorted_layers(self)

    def recordable(self, shape: Shape) -> bool:
        return True

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset((LAYER_OUTPUT, layer) for layer in chosen_layers(self.layers, shape))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        for layer in chosen_layers(self.layers, shape):
            name = f"{layer}.{LAYER_OUTPUT}"
            specs |= adapter_specs(name, self.size, shape.width, self.std)
            specs[f"{name}.norm.weight"] = Spec((shape.width,), "ones")
            specs[f"{name}.norm.bias"] = Spec((shape.width,), "zeros")
        return specs

    def count(self, shape: Shape) -> int:
        m, d = self.size, shape.width
        return len(chosen_layers(self.layers, shape)) * (2 * m * d + m + d + 2 * d)

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        name = f"{view.layer}.{view.site}"
        normalised = view.layer_norm(h, f"{name}.norm", _EPS)
        return view.bottleneck(h, normalised, name, self.activation)
