"""Diff-pruning (Guo et al. 2020): a sparse difference, selected by hard-concrete gates.

The first phase trains theta = theta0 + z * w. Each entry has a gate z; with `structured`, each matrix or vector has a
gate too. A penalty limits the expected number of open gates. The second phase keeps an exact share of the entries, with
the largest |z * w|, and trains their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.errors import IntarsiaError
from intarsia.methods.method import Category, Ending, MergedAs, Method, Phase, Plain, Preset, Spec, Tensors, check_least
from intarsia.methods.sparse import MOST_ENTRIES, added, check_index, entries_of, index_spec, largest, split

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape, WeightShape


@dataclass(frozen=True)
class DiffPruning(Method):
    """A difference in a `share` of the base's parameters, or in a number of `entries`."""

    share: float = 0.005
    entries: int | None = None
    structured: bool = False  # also gate whole matrices and vectors
    penalty_weight: float = 1.25e-7
    gate_start: float = 5.0
    gate_rate: float = 2000.0  # multiplies the learning rate of the gates: 0.1 at 5e-5
    fixed_rate: float = 10.0  # multiplies the learning rate of the second phase (paper: 1, for BERT-large)

    name: ClassVar[str] = "diff-pruning"
    paper: ClassVar[str] = "Guo et al. 2020"
    trains: ClassVar[str] = "entries of the base, chosen by gates"
    presets: ClassVar[Mapping[str, Preset]] = {"diff-pruning": Preset("share")}
    category: ClassVar[Category] = "a sparse difference"
    changes_base: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True
    merged_as: ClassVar[MergedAs] = "entries"
    training_only: ClassVar[tuple[str, ...]] = (
        "structured", "penalty_weight", "gate_start", "gate_rate", "fixed_rate",
    )  # fmt: skip
    # The gradient of a gate starts near 1e-9: with a larger eps no gate would close.
    recipe: ClassVar[dict[str, object]] = {
        "learning_rate": 5e-5, "epochs": 3, "batch_size": 8, "eps": 1e-8, "bias_correction": True,
    }  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise IntarsiaError(f"share {self.share} is not valid: a share above 0 and at most 1 was expected.")
        check_least(entries=(self.entries, 1, MOST_ENTRIES), penalty_weight=(self.penalty_weight, 0))

    def recordable(self, shape: Shape) -> bool:
        return True

    def trained(self, shape: Shape) -> tuple[WeightShape, ...]:
        return shape.weights

    def count(self, shape: Shape) -> int:
        return entries_of(self.share, self.entries, shape.parameters, shape.parameters)

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {"values": Spec((self.count(shape),), "zeros")}

    def stored(self, shape: Shape) -> dict[str, Spec]:
        return {**index_spec(self.count(shape)), **self.tensors(shape)}

    def check_values(self, shape: Shape, tensors: Tensors) -> None:
        check_index(self.trained(shape), tensors["index"])

    def phases(self, shape: Shape) -> tuple[Phase, ...]:
        specs: dict[str, Spec] = {}
        for w in shape.weights:
            specs[f"diff.{w.name}"] = Spec(w.shape, "zeros")
            specs[f"gate.{w.name}"] = Spec(w.shape, "zeros", value=self.gate_start, rate=self.gate_rate)
            if self.structured:
                specs[f"group.{w.name}"] = Spec((1,), "zeros", value=self.gate_start, rate=self.gate_rate)
        return (Phase("gates", specs), Phase("fixed", self.tensors(shape), rate=self.fixed_rate))

    def weights(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> dict[str, Tensor]:
        if phase == "gates":
            return {name: self._gated(name, theta, tensors, noise) for name, theta in base.items()}
        return added(self.trained(shape), kept["index"], tensors["values"], base)

    def _gated(self, name: str, theta: Tensor | float, tensors: Tensors, noise: Noise | None) -> Tensor:
        """Return theta + z * w for one parameter."""
        from intarsia.methods.gates import gated, opened

        difference, alpha = tensors[f"diff.{name}"], tensors[f"gate.{name}"]
        if self.structured:
            group = tensors[f"group.{name}"]
            difference = difference * opened(group, None if noise is None else noise.uniform(group.shape))
        return gated(theta, difference, alpha, noise, 0.0 if self.structured else self.penalty_weight)

    def penalty(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> Tensor | None:
        from intarsia.methods.gates import adds_penalty_gradient, expected

        if phase != "gates" or (adds_penalty_gradient(noise) and not self.structured):
            return None
        total = None
        for name in base:
            open_gates = expected(tensors[f"gate.{name}"]).sum()
            if self.structured:  # the product of the paper; the authors' program uses the sum
                open_gates = open_gates * expected(tensors[f"group.{name}"])[0]
            total = open_gates if total is None else total + open_gates
        return None if total is None else total * self.penalty_weight

    def end_phase(self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors) -> Ending:
        import torch

        weights, count = self.trained(shape), self.count(shape)
        index = largest(weights, lambda w: self._gated(w.name, 0.0, tensors, None).abs(), count)
        values = torch.zeros(count)
        for w, part, places in split(weights, index):
            values[part] = self._gated(w.name, 0.0, tensors, None).reshape(-1)[places].cpu()
        return Ending(kept={"index": index}, starts={"values": values}, keep_head=True)

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for name, tensor in added(self.trained(shape), tensors["index"], tensors["values"], plain.base).items():
            plain.whole(name).copy_(tensor)
