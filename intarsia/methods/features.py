"""Feature-based transfer (Peters et al. 2019): the base runs once over the data; a small model trains on its states.

The model is the head, with an optional hidden layer (`hidden`). It reads the pooled states of the last layer, or a
learned mix of all layers (`mix`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.sites import LAYER_OUTPUT, OUTSIDE
from intarsia.methods.method import Category, Method, Preset, Spec, Tensors, check_least

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView


@dataclass(frozen=True)
class Features(Method):
    """The parameters between the frozen features and the head."""

    hidden: int = 0  # units of the hidden layer; 0: only the head
    mix: bool = False  # a learned mix of all layers instead of the last layer

    name: ClassVar[str] = "features"
    paper: ClassVar[str] = "Peters et al. 2019"
    trains: ClassVar[str] = "a model on frozen features"
    presets: ClassVar[Mapping[str, Preset]] = {
        "features": Preset(trains="the head, on frozen features"),
        "features-mlp": Preset("hidden", {"hidden": 256}, "a hidden layer on frozen features"),
        "features-mix": Preset(None, {"mix": True}, "a mix of all layers' frozen features"),
    }
    category: ClassVar[Category] = "frozen features"
    cached: ClassVar[bool] = True
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 3e-3, "epochs": 30, "bias_correction": False}

    def __post_init__(self) -> None:
        check_least(hidden=(self.hidden, 0))

    @property
    def touches_rows(self) -> bool:
        return self.hidden > 0

    def recordable(self, shape: Shape) -> bool:
        return not self.hidden  # recorded heads read the pooled rows directly

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        if not self.mix:
            return frozenset()
        last = ("final.norm", OUTSIDE) if shape.pre_norm else (LAYER_OUTPUT, shape.layers - 1)
        return frozenset({(LAYER_OUTPUT, layer) for layer in range(shape.layers - 1)} | {last})

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        if self.mix:
            specs["mix.weights"] = Spec((shape.layers,), "zeros")
            specs["mix.scale"] = Spec((1,), "ones")
        if self.hidden:
            std = shape.width**-0.5
            specs["hidden.weight"] = Spec((self.hidden, shape.width), "normal", std, decay=True)
            specs["hidden.bias"] = Spec((self.hidden,), "zeros")
        return specs

    def count(self, shape: Shape) -> int:
        return (shape.layers + 1 if self.mix else 0) + self.hidden * (shape.width + 1)

    def row_width(self, shape: Shape) -> int:
        return self.hidden or shape.width

    def mixed(self, tensors: Tensors, states: Tensor) -> Tensor:
        if not self.mix:
            return states[:, -1]
        shares = tensors["mix.weights"].softmax(0)
        return (states * shares[:, None]).sum(1) * tensors["mix.scale"]

    def pooled(self, tensors: Tensors, rows: Tensor) -> Tensor:
        from intarsia.encoder import rowwise

        return rowwise.linear(rows, tensors["hidden.weight"], tensors["hidden.bias"]).relu() if self.hidden else rows

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        shares = view.tensors["mix.weights"].softmax(1)  # [slots, layers]
        last = shares.shape[1] - 1
        layer = last if view.layer == OUTSIDE else view.layer
        part = view.for_each_token(shares[:, layer : layer + 1]) * h
        sum_so_far = view.memory.get("mix")
        view.memory["mix"] = part if sum_so_far is None else sum_so_far + part
        return view.memory["mix"] * view.each("mix.scale") if layer == last else h

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        return self.output(view, view.module(x))
