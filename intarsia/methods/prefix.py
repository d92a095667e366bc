"""Prefix tuning (Li & Liang 2021): adds learned keys and values to those of the text in every attention layer.

A prefix has no positions. The text keeps its own; with `offset` they begin at that number instead of 0, as if tokens
stood in front of the text. Prefixes of peft have an offset of their own size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import PREFIX
from intarsia.errors import IntarsiaError
from intarsia.kernels import LONGEST_PREFIX
from intarsia.methods.method import Category, Layers, Method, Preset, Spec, check_least, chosen_layers, sorted_layers

if TYPE_CHECKING:
    from intarsia.encoder.shape import Shape


@dataclass(frozen=True)
class Prefix(Method):
    """`size` keys and values in each layer, without positions; trained directly, not reparameterised by a network."""

    size: int = 16
    layers: Layers = None  # None: all
    std: float = 0.02
    offset: int = 0  # added to the positions of the text

    name: ClassVar[str] = "prefix"
    paper: ClassVar[str] = "Li & Liang 2021"
    trains: ClassVar[str] = "keys and values in front of each layer"
    presets: ClassVar[Mapping[str, Preset]] = {"prefix": Preset("size")}
    category: ClassVar[Category] = "changes inside layers"
    training_only: ClassVar[tuple[str, ...]] = ("std",)
    newer: ClassVar[tuple[str, ...]] = ("offset",)
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 1e-2}

    def __post_init__(self) -> None:
        check_least(size=(self.size, 1), std=(self.std, 0), offset=(self.offset, 0))
        sorted_layers(self)

    def check(self, shape: Shape) -> None:
        if shape.disentangled_attention:
            raise IntarsiaError(
                f"prefix tuning does not work on {shape.family}: its attention scores need relative positions, and "
                "a prefix has no position. Use another method."
            )
        if self.offset >= shape.positions:
            raise IntarsiaError(
                f"offset {self.offset} leaves no position for a text: this base has {shape.positions} positions."
            )

    @property
    def position_offset(self) -> int:
        return self.offset

    def recordable(self, shape: Shape) -> bool:
        return self.size <= LONGEST_PREFIX and not self.offset  # recorded passes have fixed positions

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite]:
        return dict.fromkeys(self.places(shape), CompiledSite())

    def matrices(self, shape: Shape) -> int:
        return 0  # tokens attend to its tensors instead of being multiplied by them

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset((PREFIX, layer) for layer in chosen_layers(self.layers, shape))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {
            f"{layer}.{PREFIX}.{which}": Spec((self.size, shape.width), "normal", self.std)
            for layer in chosen_layers(self.layers, shape)
            for which in ("key", "value")
        }

    def count(self, shape: Shape) -> int:
        return 2 * self.size * shape.width * len(chosen_layers(self.layers, shape))
