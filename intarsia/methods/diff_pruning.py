"""Diff-pruning (Guo et al. 2020): a sparse difference, found with hard-concrete gates.

First theta = theta0 + z * w with gates z, one for each entry and (structured) one for each matrix or vector, and a
penalty on the expected number of open ones. Then the entries of the largest |z * w| are kept, an exact share, and
trained on with the mask fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.errors import IntarsiaError
from intarsia.methods.method import Category, Ending, Method, Phase, Plain, Preset, Spec, Tensors, check_least
from intarsia.methods.sparse import added, entries_of, largest, split

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.sites import Shape, WeightShape


@dataclass(frozen=True)
class DiffPruning(Method):
    """A difference of `share` of the base's parameters, or of `entries`."""

    share: float = 0.005
    entries: int | None = None
    structured: bool = False  # gates for whole matrices and vectors too
    penalty_weight: float = 1.25e-7
    gate_start: float = 5.0
    gate_rate: float = 2000.0  # of the gates, times the learning rate: 0.1 at 5e-5
    fixed_rate: float = 10.0  # once the mask is fixed, times the learning rate (1 in the paper, for BERT-large)

    name: ClassVar[str] = "diff-pruning"
    paper: ClassVar[str] = "Guo et al. 2020"
    trains: ClassVar[str] = "entries of the base, chosen by gates"
    presets: ClassVar[Mapping[str, Preset]] = {"diff-pruning": Preset("share")}
    category: ClassVar[Category] = "a sparse difference"
    changes_base: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True
    training_only: ClassVar[tuple[str, ...]] = (
        "structured", "penalty_weight", "gate_start", "gate_rate", "fixed_rate",
    )  # fmt: skip
    # A gate's gradient is near 1e-9 at its start: with a larger eps no gate would ever close.
    recipe: ClassVar[dict[str, object]] = {
        "learning_rate": 5e-5, "epochs": 3, "batch_size": 8, "eps": 1e-8, "bias_correction": True,
    }  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise IntarsiaError(f"share is a part of the parameters, above 0 and at most 1, not {self.share}.")
        check_least(entries=(self.entries, 1), penalty_weight=(self.penalty_weight, 0))

    def recordable(self, shape: Shape) -> bool:
        return True

    def trained(self, shape: Shape) -> tuple[WeightShape, ...]:
        return shape.weights

    def count(self, shape: Shape) -> int:
        return entries_of(self.share, self.entries, shape.parameters, shape.parameters)

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {"values": Spec((self.count(shape),), "zeros")}

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
        """theta + z * w."""
        from intarsia.methods.gates import gated, opened

        difference, alpha = tensors[f"diff.{name}"], tensors[f"gate.{name}"]
        if self.structured:
            group = tensors[f"group.{name}"]
            difference = difference * opened(group, None if noise is None else noise.uniform(group.shape))
        return gated(theta, difference, alpha, noise, 0.0 if self.structured else self.penalty_weight)

    def penalty(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> Tensor | None:
        from intarsia.methods.gates import expected, in_one_sweep

        if phase != "gates" or (in_one_sweep(noise) and not self.structured):
            return None
        total = None
        for name in base:
            open_ones = expected(tensors[f"gate.{name}"]).sum()
            if self.structured:  # the paper's product, not the authors' program's sum
                open_ones = open_ones * expected(tensors[f"group.{name}"])[0]
            total = open_ones if total is None else total + open_ones
        return None if total is None else total * self.penalty_weight

    def end_phase(self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors) -> Ending:
        import torch

        known, count = self.trained(shape), self.count(shape)
        index = largest(known, lambda w: self._gated(w.name, 0.0, tensors, None).abs(), count)
        values = torch.zeros(count)
        for w, part, places in split(known, index):
            values[part] = self._gated(w.name, 0.0, tensors, None).reshape(-1)[places].cpu()
        return Ending(kept={"index": index}, starts={"values": values}, keep_head=True)

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for name, tensor in added(self.trained(shape), tensors["index"], tensors["values"], plain.base).items():
            plain.whole(name).copy_(tensor)
