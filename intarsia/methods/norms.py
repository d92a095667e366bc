"""LayerNorm tuning (a baseline of Houlsby et al. 2019): trains only the gain and bias of every LayerNorm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.shape import NormShape
from intarsia.encoder.sites import OUTSIDE
from intarsia.methods.method import Category, Layers, Method, Plain, Preset, Spec, Tensors, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView


@dataclass(frozen=True)
class LayerNorms(Method):
    """The LayerNorms of a task, which start at the base's values."""

    layers: Layers = None  # None: all
    embedding_norm: bool | None = None  # train the embedding LayerNorm; None: only if `layers` are all layers

    name: ClassVar[str] = "layernorm"
    paper: ClassVar[str] = "Houlsby et al. 2019"
    trains: ClassVar[str] = "every LayerNorm"
    presets: ClassVar[Mapping[str, Preset]] = {"layernorm": Preset()}
    category: ClassVar[Category] = "weights of the base"
    mergeable: ClassVar[bool] = True
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 1e-3}

    def __post_init__(self) -> None:
        sorted_layers(self)

    def recordable(self, shape: Shape) -> bool:
        return True

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite]:
        return {(sub_layer, layer): CompiledSite(norm="own") for sub_layer, layer in norms_behind(self._norms(shape))}

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset((n.site, n.layer) for n in self._norms(shape))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return norm_specs(self._norms(shape))

    def count(self, shape: Shape) -> int:
        return norm_count(self._norms(shape))

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        return view.base_norm(x, f"{view.layer}.{view.site}")

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        merge_norms(self._norms(shape), tensors, plain)

    def _norms(self, shape: Shape) -> list[NormShape]:
        return trained_norms(shape, chosen_layers(self.layers, shape), self.embedding_norm)


def trained_norms(shape: Shape, layers: Iterable[int], embedding_norm: bool | None) -> list[NormShape]:
    """Return the norms of these layers, the final norm, and with `embedding_norm` the norm of the embeddings.

    If `embedding_norm` is None, the norm of the embeddings is included if `layers` are all layers.
    """
    inside = set(layers)
    if embedding_norm is None:
        embedding_norm = len(inside) == shape.layers
    outside = {"final.norm"} | ({"embedding.norm"} if embedding_norm else set())
    return [n for n in shape.norms if n.layer in inside or (n.layer == OUTSIDE and n.site in outside)]


def norms_behind(norms: Iterable[NormShape]) -> set[tuple[str, int]]:
    """Return the (sub-layer, layer) pairs of the norms inside layers."""
    return {(n.site.removesuffix(".norm"), n.layer) for n in norms if n.layer != OUTSIDE}


def norm_specs(norms: Iterable[NormShape]) -> dict[str, Spec]:
    """Return the specs of a task's LayerNorms, which start at the base's values."""
    specs: dict[str, Spec] = {}
    for n in norms:
        specs[f"{n.layer}.{n.site}.weight"] = Spec((n.width,), "base", site=(n.site, n.layer))
        if n.bias:
            specs[f"{n.layer}.{n.site}.bias"] = Spec((n.width,), "base", site=(n.site, n.layer), tensor="bias")
    return specs


def norm_count(norms: Iterable[NormShape]) -> int:
    """Return the number of parameters in the norms."""
    return sum(n.width * (1 + n.bias) for n in norms)


def merge_norms(norms: Iterable[NormShape], tensors: Tensors, plain: Plain) -> None:
    """Copy a task's LayerNorms into a plain model."""
    for n in norms:
        plain.at(n.site, n.layer, "weight").copy_(tensors[f"{n.layer}.{n.site}.weight"])
        if n.bias:
            plain.at(n.site, n.layer, "bias").copy_(tensors[f"{n.layer}.{n.site}.bias"])
