"""Slots for training runs of one shape, with the optimizer over all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import Slots, start
from intarsia.methods import Spec
from intarsia.train.optimizer import Adam, AdamSettings

STARTS = 12  # that are remembered


class TrainingSlots:
    """`capacity` slots for tensors of these specs. A run may have smaller ones: the rest of its slot stays 0."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        capacity: int,
        adam: AdamSettings,
        encoder: Encoder,
        *,
        low_precision: bool = False,
    ) -> None:
        """`low_precision`: hold the tensors in the base's precision too."""
        exact = encoder.dtype == torch.float64  # for proofs; else float32, whatever the base runs in
        dtype = torch.float64 if exact else torch.float32
        self.slots = Slots(specs, capacity, device=encoder.device, dtype=dtype)
        self.slots.buffer.zero_()
        self.leaves = self.slots.leaves()
        self.adam = Adam(self.slots.buffer, self.slots.mask("decay"), adam, self.slots.mask("rate"))
        self.low_precision = self.slots.buffer
        if low_precision and encoder.dtype != dtype:
            self.low_precision = torch.zeros_like(self.slots.buffer, dtype=encoder.dtype)
        self.starts: dict[tuple[object, ...], Tensor] = {}  # of the last seeds: a sweep asks for the same ones again
        self.free = list(reversed(range(capacity)))

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What a checkpoint holds of each slot, each [capacity, parameters]."""
        return {"now": self.slots.buffer, "first": self.adam.first, "second": self.adam.second}

    def take(self) -> int:
        """An empty slot."""
        slot = self.free.pop()
        for buffer in self.buffers.values():
            buffer[slot].zero_()
        return slot

    def fresh(self, specs: Mapping[str, Spec], given: Mapping[str, Tensor], encoder: Encoder, seed: int) -> Tensor:
        """[1, parameters] a start as the specs say, but for what is given."""
        key = (seed, *specs.items())
        if given or key not in self.starts:
            drawn = start({k: v for k, v in specs.items() if k not in given}, encoder, seed) | dict(given)
            device = self.slots.buffer.device
            parts = [drawn[name].to(device).reshape(1, -1) for name in specs]
            row = torch.cat(parts, 1) if specs else torch.empty(1, 0, device=device)
            if given or self.slots.capacity == 1:
                return row
            while len(self.starts) >= STARTS:
                self.starts.pop(next(iter(self.starts)))
            self.starts[key] = row
        return self.starts[key]

    def index(self, specs: Mapping[str, Spec]) -> Tensor | None:
        """[parameters of specs] where each stands in a slot; None where they are the slot's own."""
        there = self.slots.specs
        if specs.keys() == there.keys() and all(specs[name].shape == spec.shape for name, spec in there.items()):
            return None
        places, at = [], 0
        for name, spec in there.items():
            if name in specs:
                own = torch.arange(at, at + spec.size).view(spec.shape)
                places.append(own[tuple(slice(0, size) for size in specs[name].shape)].reshape(-1))
            at += spec.size
        return torch.cat(places).to(self.slots.buffer.device)

    def read(self, buffer: Tensor, slot: int, index: Tensor | None) -> Tensor:
        """[1, parameters] a run's own row of a buffer; a view of it where the run fills its slot."""
        row = buffer[slot : slot + 1]
        return row if index is None else row.index_select(1, index)

    def write(self, buffer: Tensor, slot: int, index: Tensor | None, row: Tensor) -> None:
        if index is None:
            buffer[slot : slot + 1].copy_(row)
        else:
            buffer[slot].index_copy_(0, index, row[0].to(buffer.device))
        if buffer is self.slots.buffer and self.low_precision is not buffer:
            self.low_precision[slot].copy_(buffer[slot])
