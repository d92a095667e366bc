"""Variable fine-tuning (Houlsby et al. 2019): trains the top n layers, the final norm and the pooler of the base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.errors import IntarsiaError
from intarsia.methods.full import Full
from intarsia.methods.method import Preset, check_least

if TYPE_CHECKING:
    from intarsia.encoder.shape import Shape, WeightShape


@dataclass(frozen=True)
class TopLayers(Full):
    """Trains the weights of the top `number` layers. The layers below need no backward pass."""

    number: int = 2

    name: ClassVar[str] = "top"
    paper: ClassVar[str] = "Houlsby et al. 2019"
    trains: ClassVar[str] = "the top layers of the base"
    presets: ClassVar[Mapping[str, Preset]] = {"top": Preset("number")}
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 5e-5, "epochs": 3, "bias_correction": False}

    def __post_init__(self) -> None:
        check_least(number=(self.number, 1))

    def check(self, shape: Shape) -> None:
        if shape.shared_layers:
            raise IntarsiaError(
                f"the top layers of {shape.family} cannot be trained separately: all layers share one set of weights. "
                "Use another method."
            )
        if self.number > shape.layers:
            raise IntarsiaError(f"cannot train the top {self.number} layers: this base has {shape.layers}.")

    def trained(self, shape: Shape) -> list[WeightShape]:
        lowest = shape.layers - self.number
        return [w for w in shape.weights if w.behind or (w.layers and min(w.layers) >= lowest)]

    def count(self, shape: Shape) -> int:
        return sum(w.size for w in self.trained(shape))
