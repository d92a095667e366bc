"""Full fine-tuning (Devlin et al. 2019), the reference: trains all parameters of the base and stores all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.methods.method import Category, Method, Plain, Preset, Spec, Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape, WeightShape

_PREFIX = "base."  # of the names of whole parameters in an inlay


@dataclass(frozen=True)
class Full(Method):
    """Trains every parameter of the base."""

    name: ClassVar[str] = "full"
    paper: ClassVar[str] = "Devlin et al. 2019"
    trains: ClassVar[str] = "the whole base"
    presets: ClassVar[Mapping[str, Preset]] = {"full": Preset()}
    category: ClassVar[Category] = "weights of the base"
    changes_base: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 2e-5, "epochs": 5, "bias_correction": False}

    def recordable(self, shape: Shape) -> bool:
        return True

    def trained(self, shape: Shape) -> Iterable[WeightShape]:
        return shape.weights

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return whole_specs(self.trained(shape))

    def count(self, shape: Shape) -> int:
        return shape.parameters

    def weights(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> dict[str, Tensor]:
        return whole_weights(tensors)

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for parameter, tensor in whole_weights(tensors).items():
            plain.whole(parameter).copy_(tensor)


def whole_specs(weights: Iterable[WeightShape], *, decay: bool = True) -> dict[str, Spec]:
    """Return specs for whole parameters, which start at the base's values. Only matrices get weight decay."""
    return {
        f"{_PREFIX}{w.name}": Spec(w.shape, "base", parameter=w.name, decay=decay and len(w.shape) > 1 and not w.norm)
        for w in weights
    }


def whole_weights(tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors of `whole_specs` by parameter name."""
    return {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
