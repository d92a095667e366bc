"""(IA)³ (Liu et al. 2022): learned vectors scale the keys, the values and the inner units of the feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.methods.method import Category, Method, Plain, Preset, Spec, Tensors, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_INNER = "ffn.down.input"  # the inner units after the activation


@dataclass(frozen=True)
class IA3(Method):
    """One gain for each key unit, value unit and inner feed-forward unit. All gains start at 1."""

    layers: tuple[int, ...] | None = None  # None: all

    name: ClassVar[str] = "ia3"
    paper: ClassVar[str] = "Liu et al. 2022"
    trains: ClassVar[str] = "gains on keys, values, inner units"
    presets: ClassVar[Mapping[str, Preset]] = {"ia3": Preset()}
    category: ClassVar[Category] = "changes inside layers"
    mergeable: ClassVar[bool] = True
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 3e-3, "bias_correction": False}

    def __post_init__(self) -> None:
        sorted_layers(self)

    def recordable(self, shape: Shape) -> bool:
        return True

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset((site, layer) for site, layer, _ in self._gains(shape))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {f"{layer}.{site}.gain": Spec((width,), "ones") for site, layer, width in self._gains(shape)}

    def count(self, shape: Shape) -> int:
        return sum(width for _, _, width in self._gains(shape))

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        return h * view.each(f"{view.layer}.{view.site}.gain")

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for site, layer, _ in self._gains(shape):
            gain = tensors[f"{layer}.{site}.gain"]
            if site == _INNER:
                plain.at("ffn.down", layer, "weight").mul_(gain)
                continue
            plain.at(site, layer, "weight").mul_(gain[:, None])
            if shape.linear(site, layer).bias:
                plain.at(site, layer, "bias").mul_(gain)

    def _gains(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Yield (site, layer, width) of each gain vector."""
        for layer in chosen_layers(self.layers, shape):
            for site in ("key", "value"):
                yield site, layer, shape.linear(site, layer).outputs
            yield _INNER, layer, shape.linear("ffn.down", layer).inputs
