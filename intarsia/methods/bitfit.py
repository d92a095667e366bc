"""BitFit (Ben Zaken et al. 2021): trains every bias vector of the base, and nothing else.

The inlay stores the task's biases b, not differences from the base's biases b0. `h + (b - b0)` is the output of a
linear layer with bias b; it is exactly h at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import LINEAR_SITES, NORM_SITES, OUTSIDE
from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods.method import Category, Layers, Method, Plain, Preset, Spec, Tensors, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_SITES = (*LINEAR_SITES, *NORM_SITES)


@dataclass(frozen=True)
class BitFit(Method):
    """The biases of a task. `sites` selects some of them; ("query", "ffn.up") is the half that the paper recommends."""

    sites: tuple[str, ...] | None = None  # None: all
    layers: Layers = None  # None: all, and the biases outside the layers
    pooler: bool = False  # train the pooler's bias too, for heads that read the pooler

    name: ClassVar[str] = "bitfit"
    paper: ClassVar[str] = "Ben Zaken et al. 2021"
    trains: ClassVar[str] = "every bias"
    presets: ClassVar[Mapping[str, Preset]] = {"bitfit": Preset()}
    category: ClassVar[Category] = "weights of the base"
    mergeable: ClassVar[bool] = True
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 4e-4, "epochs": 16, "batch_size": 8}

    def __post_init__(self) -> None:
        for site in self.sites or ():
            check_choice("sites", site, _SITES)
        sorted_layers(self)

    @property
    def touches_rows(self) -> bool:
        return self.pooler

    def recordable(self, shape: Shape) -> bool:
        return not self.pooler  # recorded heads use the base's pooler or their own

    def compiled(self, shape: Shape) -> dict[tuple[str, int], CompiledSite]:
        found = {}
        for site, layer, _ in self._biases(shape):
            if site in LINEAR_SITES:
                found[site, layer] = CompiledSite(bias=True)
            elif layer != OUTSIDE:
                found[site.removesuffix(".norm"), layer] = CompiledSite(norm="own bias")
        return found

    def check(self, shape: Shape) -> None:
        if not self.count(shape):
            raise IntarsiaError(
                f"BitFit has nothing to train: this base ({shape.family}) has no bias at the chosen sites and layers. "
                "Choose others, or another method."
            )
        if self.pooler and not shape.pooler:
            raise IntarsiaError(
                f"BitFit cannot train the pooler's bias: this base ({shape.family}) has no pooler. Use pooler=no."
            )

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset((site, layer) for site, layer, _ in self._biases(shape))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        specs = {
            f"{layer}.{site}.bias": Spec((width,), "base", site=(site, layer), tensor="bias")
            for site, layer, width in self._biases(shape)
        }
        if self.pooler:
            specs[f"{OUTSIDE}.pooler.bias"] = Spec((shape.width,), "base", site=("pooler", OUTSIDE), tensor="bias")
        return specs

    def count(self, shape: Shape) -> int:
        return sum(width for _, _, width in self._biases(shape)) + (shape.width if self.pooler else 0)

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        return h + (view.each(f"{view.layer}.{view.site}.bias") - view.base_bias())

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        return view.base_norm(x, f"{view.layer}.{view.site}")

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for site, layer, _ in self._biases(shape):
            plain.at(site, layer, "bias").copy_(tensors[f"{layer}.{site}.bias"])
        if self.pooler:
            plain.at("pooler", OUTSIDE, "bias").copy_(tensors[f"{OUTSIDE}.pooler.bias"])

    def _biases(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Yield (site, layer, width) of each trained bias."""
        layers = {*chosen_layers(self.layers, shape), *((OUTSIDE,) if self.layers is None else ())}
        for linear in shape.linears:
            if linear.bias and linear.layer in layers and linear.site in (self.sites or _SITES):
                yield linear.site, linear.layer, linear.outputs
        for norm in shape.norms:
            if norm.bias and norm.layer in layers and norm.site in (self.sites or _SITES):
                yield norm.site, norm.layer, norm.width
