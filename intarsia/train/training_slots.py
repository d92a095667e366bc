"""Slots for training runs of one shape, with the optimizer over all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import Slots, start
from intarsia.methods import Spec
from intarsia.train.optimizer import Adam, AdamSettings

CACHED_STARTS = 12  # initial parameter rows that are cached


class TrainingSlots:
    """`capacity` slots for tensors of these specs. A run's tensors may be smaller; the rest of its slot stays 0."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        capacity: int,
        adam: AdamSettings,
        encoder: Encoder,
        *,
        low_precision: bool = False,
    ) -> None:
        """`low_precision`: also keep a copy of the tensors in the base's precision."""
        # Master weights are float32 in any precision of the base. float64 is for exact comparisons in tests.
        dtype = torch.float64 if encoder.dtype == torch.float64 else torch.float32
        self.slots = Slots(specs, capacity, device=encoder.device, dtype=dtype)
        self.slots.buffer.zero_()
        self.leaves = self.slots.leaves()
        self.adam = Adam(self.slots.buffer, self.slots.mask("decay"), adam, self.slots.mask("rate"))
        self.low_precision = self.slots.buffer
        if low_precision and encoder.dtype != dtype:
            self.low_precision = torch.zeros_like(self.slots.buffer, dtype=encoder.dtype)
        self.starts: dict[tuple[object, ...], Tensor] = {}  # a cache: the jobs of a sweep share their seeds
        self.free = list(reversed(range(capacity)))

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers that a checkpoint stores, each [capacity, parameters]."""
        return {"now": self.slots.buffer, "first": self.adam.first, "second": self.adam.second}

    def take(self) -> int:
        """Reserve a free slot, fill its buffers with zeros and return its number."""
        slot = self.free.pop()
        for buffer in self.buffers.values():
            buffer[slot].zero_()
        return slot

    def fresh(self, specs: Mapping[str, Spec], given: Mapping[str, Tensor], encoder: Encoder, seed: int) -> Tensor:
        """Return initial parameters [1, parameters]: tensors in `given` as they are, the rest as the specs define."""
        key = (seed, *specs.items())
        if given or key not in self.starts:
            tensors = start({k: v for k, v in specs.items() if k not in given}, encoder, seed) | dict(given)
            device = self.slots.buffer.device
            parts = [tensors[name].to(device).reshape(1, -1) for name in specs]
            row = torch.cat(parts, 1) if specs else torch.empty(1, 0, device=device)
            if given or self.slots.capacity == 1:
                return row
            while len(self.starts) >= CACHED_STARTS:
                self.starts.pop(next(iter(self.starts)))
            self.starts[key] = row
        return self.starts[key]

    def index(self, specs: Mapping[str, Spec]) -> Tensor | None:
        """Return the column [parameters of specs] of each parameter in a slot; None if the specs fill the slot."""
        slot_specs = self.slots.specs
        if specs.keys() == slot_specs.keys() and all(specs[k].shape == spec.shape for k, spec in slot_specs.items()):
            return None
        columns, offset = [], 0
        for name, spec in slot_specs.items():
            if name in specs:
                whole = torch.arange(offset, offset + spec.size).view(spec.shape)
                columns.append(whole[tuple(slice(0, size) for size in specs[name].shape)].reshape(-1))
            offset += spec.size
        return torch.cat(columns).to(self.slots.buffer.device)

    def read(self, buffer: Tensor, slot: int, index: Tensor | None) -> Tensor:
        """Return a run's row [1, parameters] of a buffer; a view if the run fills its slot, otherwise a copy."""
        row = buffer[slot : slot + 1]
        return row if index is None else row.index_select(1, index)

    def write(self, buffer: Tensor, slot: int, index: Tensor | None, row: Tensor) -> None:
        """Copy a run's row [1, parameters] into a buffer, and into the low-precision copy if there is one."""
        if index is None:
            buffer[slot : slot + 1].copy_(row)
        else:
            buffer[slot].index_copy_(0, index, row[0].to(buffer.device))
        if buffer is self.slots.buffer and self.low_precision is not buffer:
            self.low_precision[slot].copy_(buffer[slot])
