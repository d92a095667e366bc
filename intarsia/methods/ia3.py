"""(IA)³ (Liu et al. 2022): learned vectors scale the keys, the values and the inner units of the feed-forward layer.

The paper scales the inner units behind the activation, which is the input of the second feed-forward matrix. With
`sites`, the vectors scale other outputs and inputs of linear layers: AdapterHub scales the output of the first
feed-forward matrix, in front of the activation; peft often scales the input of the attention's output matrix too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods.method import Category, Layers, Method, Plain, Preset, Spec, Tensors, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_INPUT = ".input"
_SITES = (*LINEAR_SITES, *(site + _INPUT for site in ("attention.dense", "ffn.up", "ffn.down")))


@dataclass(frozen=True)
class IA3(Method):
    """One gain for each unit at the sites of each layer. All gains start at 1."""

    layers: Layers = None  # None: all
    sites: tuple[str, ...] = ("key", "value", "ffn.down.input")  # outputs of linear layers, or their inputs

    name: ClassVar[str] = "ia3"
    paper: ClassVar[str] = "Liu et al. 2022"
    trains: ClassVar[str] = "gains on keys, values, inner units"
    presets: ClassVar[Mapping[str, Preset]] = {"ia3": Preset()}
    category: ClassVar[Category] = "changes inside layers"
    newer: ClassVar[tuple[str, ...]] = ("sites",)
    mergeable: ClassVar[bool] = True
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 3e-3, "bias_correction": False}

    def __post_init__(self) -> None:
        sorted_layers(self)
        for site in self.sites:
            check_choice("sites", site, _SITES)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise IntarsiaError(
                f"sites {list(self.sites)} are not valid: expected at least one site, each of them once."
            )
        object.__setattr__(self, "sites", tuple(sorted(self.sites, key=_SITES.index)))

    def recordable(self, shape: Shape) -> bool:
        return True

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite]:
        return dict.fromkeys(self.places(shape), CompiledSite(gain=True))

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
            if site.endswith(_INPUT):
                plain.at(site.removesuffix(_INPUT), layer, "weight").mul_(gain)
                continue
            plain.at(site, layer, "weight").mul_(gain[:, None])
            if shape.linear(site, layer).bias:
                plain.at(site, layer, "bias").mul_(gain)

    def _gains(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Yield (site, layer, width) of each gain vector."""
        for layer in chosen_layers(self.layers, shape):
            for site in self.sites:
                linear = shape.linear(site.removesuffix(_INPUT), layer)
                yield site, layer, linear.inputs if site.endswith(_INPUT) else linear.outputs
