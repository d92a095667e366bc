"""Lottery-ticket sparse fine-tuning, LT-SFT (Ansell et al. 2021).

The dense phase fine-tunes all parameters and selects the K entries that moved furthest. The sparse phase starts again
from the pretrained weights and fine-tunes only these K entries. LayerNorms are frozen. Differences of several inlays
can be added: task + language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.errors import IntarsiaError
from intarsia.methods.full import whole_specs, whole_weights
from intarsia.methods.method import Category, Ending, MergedAs, Method, Phase, Plain, Preset, Spec, Tensors, check_least
from intarsia.methods.sparse import MOST_ENTRIES, added, check_index, entries_of, index_spec, largest, split

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape, WeightShape


@dataclass(frozen=True)
class LotteryTicket(Method):
    """A difference in a `share` of the base's parameters, or in a number of `entries`."""

    share: float = 0.005
    entries: int | None = None
    rounds: int = 1  # each round selects its part of the entries, and trains all selected entries
    l1: float = 0.0  # the weight of a penalty: the mean distance from the pretrained weights
    norms: bool = False  # also train LayerNorms
    sparse_rate: float = 10.0  # multiplies the learning rate of sparse phases (paper: 1, with eight times our share)

    name: ClassVar[str] = "lt-sft"
    paper: ClassVar[str] = "Ansell et al. 2021"
    trains: ClassVar[str] = "the entries of the base that move most"
    presets: ClassVar[Mapping[str, Preset]] = {"lt-sft": Preset("share")}
    category: ClassVar[Category] = "a sparse difference"
    changes_base: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True
    merged_as: ClassVar[MergedAs] = "entries"
    training_only: ClassVar[tuple[str, ...]] = ("l1", "rounds", "sparse_rate")
    recipe: ClassVar[dict[str, object]] = {"learning_rate": 5e-5, "epochs": 3, "bias_correction": False}

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise IntarsiaError(f"share {self.share} is not valid: a share above 0 and at most 1 was expected.")
        check_least(rounds=(self.rounds, 1, 1000), l1=(self.l1, 0), entries=(self.entries, 1, MOST_ENTRIES))

    def recordable(self, shape: Shape) -> bool:
        return True

    def trained(self, shape: Shape) -> list[WeightShape]:
        return [w for w in shape.weights if self.norms or not w.norm]

    def count(self, shape: Shape) -> int:
        available = sum(w.size for w in self.trained(shape))
        return entries_of(self.share, self.entries, shape.parameters, available)

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {"values": Spec((self.count(shape),), "zeros")}

    def stored(self, shape: Shape) -> dict[str, Spec]:
        return {**index_spec(self.count(shape)), **self.tensors(shape)}

    def check_values(self, shape: Shape, tensors: Tensors) -> None:
        check_index(self.trained(shape), tensors["index"])

    def phases(self, shape: Shape) -> tuple[Phase, ...]:
        phases = []
        for i in range(1, self.rounds + 1):
            whole = whole_specs(self.trained(shape), decay=False)
            phases.append(Phase(f"dense-{i}", whole, exact=self.l1 > 0))
            entries = self.count(shape) * i // self.rounds
            phases.append(Phase(f"sparse-{i}", {"values": Spec((entries,), "zeros")}, rate=self.sparse_rate))
        return tuple(phases)

    def weights(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> dict[str, Tensor]:
        if phase.startswith("dense"):
            return whole_weights(tensors)
        return added(self.trained(shape), kept["index"], tensors["values"], base)

    def penalty(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> Tensor | None:
        if not self.l1:
            return None
        total = shape.parameters
        if phase.startswith("sparse"):
            return tensors["values"].abs().sum() * (self.l1 / total)
        moved = [(tensor - base[name]).abs().sum() for name, tensor in whole_weights(tensors).items()]
        return sum(moved[1:], moved[0]) * (self.l1 / total)

    def end_phase(self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors) -> Ending:
        import torch

        kind, _, number = phase.partition("-")
        trained = self.trained(shape)
        if kind == "sparse":  # the next round continues from these weights
            weights = {w.name: base[w.name] for w in trained} | self.weights(phase, shape, tensors, kept, base)
            starts = {f"base.{name}": tensor.detach().cpu() for name, tensor in weights.items()}
            return Ending(starts=starts, keep_head=True)
        dense = whole_weights(tensors)
        index = kept.get("index", torch.empty(0, dtype=torch.long, device=next(iter(dense.values())).device))
        taken = {w.name: places for w, _, places in split(trained, index)}

        def distance(weight: WeightShape) -> Tensor:
            moved = (dense[weight.name] - base[weight.name].to(dense[weight.name])).abs().reshape(-1)
            return moved.index_fill(0, taken[weight.name], -1.0) if weight.name in taken else moved

        missing = self.count(shape) * int(number) // self.rounds - index.shape[0]
        new = largest(trained, distance, missing)
        return Ending(kept={"index": torch.cat([index.to(new.device), new]).unique()})  # ascending

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for name, tensor in added(self.trained(shape), tensors["index"], tensors["values"], plain.base).items():
            plain.whole(name).copy_(tensor)
