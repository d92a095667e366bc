"""LoRA (Hu et al. 2021): adds a low-rank difference to chosen linear layers, W x + (alpha / r) B A x; B starts at 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.shape import LinearShape
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods.bitfit import BitFit
from intarsia.methods.method import (
    Category,
    Layers,
    MergedAs,
    Method,
    Plain,
    Preset,
    Spec,
    Tensors,
    check_dropout,
    check_least,
    chosen_layers,
    sorted_layers,
)

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

BIASES = ("none", "targets", "all")


@dataclass(frozen=True)
class LoRA(Method):
    """Differences of rank `rank`, scaled by alpha / rank."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("query", "value")
    layers: Layers = None  # None: all
    dropout: float = 0.0  # on the input of the difference, in training
    biases: str = "none"  # biases that train too: of the "targets", or "all" of the base

    name: ClassVar[str] = "lora"
    paper: ClassVar[str] = "Hu et al. 2021"
    trains: ClassVar[str] = "low-rank differences of query and value"
    presets: ClassVar[Mapping[str, Preset]] = {"lora": Preset("rank")}
    category: ClassVar[Category] = "changes inside layers"
    training_only: ClassVar[tuple[str, ...]] = ("dropout",)
    newer: ClassVar[tuple[str, ...]] = ("biases",)
    mergeable: ClassVar[bool] = True
    merged_as: ClassVar[MergedAs] = "low rank"
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 5e-4, "bias_correction": False}

    def __post_init__(self) -> None:
        for target in self.targets:
            check_choice("targets", target, LINEAR_SITES)
        if not self.targets:
            raise IntarsiaError(f"LoRA has no targets: expected at least one of {', '.join(LINEAR_SITES)}.")
        check_choice("biases", self.biases, BIASES)
        check_least(rank=(self.rank, 1))
        check_dropout(self.dropout)
        sorted_layers(self)

    def recordable(self, shape: Shape) -> bool:
        return True

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite]:
        biases = self._biases.compiled(shape) if self._biases else {}
        scale, none = self.alpha / self.rank, CompiledSite()
        differences = {(n.site, n.layer) for n in self._linears(shape)}
        return biases | {place: replace(biases.get(place, none), difference=scale) for place in differences}

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        differences = frozenset((n.site, n.layer) for n in self._linears(shape))
        return differences | self._biases.places(shape) if self._biases else differences

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        for n in self._linears(shape):
            std = (3 * n.inputs) ** -0.5  # the standard deviation of the uniform start in the authors' program
            specs[f"{n.layer}.{n.site}.a.weight"] = Spec((self.rank, n.inputs), "normal", std, decay=True)
            specs[f"{n.layer}.{n.site}.b.weight"] = Spec((n.outputs, self.rank), "zeros", decay=True)
        return specs | (self._biases.tensors(shape) if self._biases else {})

    def count(self, shape: Shape) -> int:
        biases = self._biases.count(shape) if self._biases else 0
        return sum(self.rank * (n.inputs + n.outputs) for n in self._linears(shape)) + biases

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        name = f"{view.layer}.{view.site}"
        if f"{name}.a.weight" in view.tensors:
            h = self._changed(view, h, name)
        return self._biases.output(view, h) if f"{name}.bias" in view.tensors and self._biases else h

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        name = f"{view.layer}.{view.site}"
        if f"{name}.bias" in view.tensors:
            return super().change(view, h)
        return self._difference(view, name)

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        return view.base_norm(x, f"{view.layer}.{view.site}")  # a trained bias, with `biases="all"`

    def _changed(self, view: SiteView, h: Tensor, name: str) -> Tensor:
        """Return the output of a target, with the difference."""
        return h + self._difference(view, name)

    def _difference(self, view: SiteView, name: str) -> Tensor:
        assert view.input is not None
        low = view.linear(view.drop(view.input, self.dropout), f"{name}.a")  # [tokens, r]
        return view.linear(low, f"{name}.b") * (self.alpha / self.rank)

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for n in self._linears(shape):
            a, b = (tensors[f"{n.layer}.{n.site}.{part}.weight"] for part in "ab")
            plain.at(n.site, n.layer, "weight").add_((self.alpha / self.rank) * (b @ a))
        self._merge_biases(shape, tensors, plain)

    def _merge_biases(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        if self._biases:
            self._biases.merge(shape, tensors, plain)

    @property
    def _biases(self) -> BitFit | None:
        """Return the method that trains the biases beside the differences."""
        if self.biases == "none":
            return None
        return BitFit() if self.biases == "all" else BitFit(sites=self.targets, layers=self.layers)

    def _linears(self, shape: Shape) -> Iterator[LinearShape]:
        layers = chosen_layers(self.layers, shape)
        return (n for n in shape.linears if n.layer in layers and n.site in self.targets)
