"""Tasks whose tensors are on the device: in the slots of their method's shape, or as their own copy of base weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import Slots
from intarsia.methods import Method
from intarsia.tasks.learned import Learned

SLOTS = 256  # at most, for each method shape
SLOT_BYTES = 4 << 30  # at most, for each method shape: large methods get fewer slots


@dataclass(frozen=True, eq=False)
class Resident:
    """A task on the device, with its head."""

    learned: Learned
    head_tensors: Mapping[str, Tensor]
    slots: ServingSlots | None = None  # None if the task changes weights of the base
    slot: int = -1
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # replace the base's weights in the task's passes

    def own(self) -> dict[str, Tensor]:
        """Return the method's tensors of this task."""
        if self.slots is None:
            return self.learned.method_tensors
        return {name: tensor[self.slot] for name, tensor in self.slots.table.tensors.items()}


class ServingSlots:
    """The slots of one method shape, with their resident tasks, least recently used first."""

    def __init__(self, method: Method, encoder: Encoder, capacity: int = SLOTS, limit: int = SLOT_BYTES) -> None:
        """Allocate at most `capacity` slots, in at most `limit` bytes; at least one slot."""
        specs = method.tensors(encoder.shape)
        slot_bytes = 4 * sum(spec.size for spec in specs.values())
        self.capacity = max(1, min(capacity, limit // max(1, slot_bytes)))
        self.method, self.places = method, method.places(encoder.shape)
        self.device = encoder.device
        self.table = Slots(specs, self.capacity, device=encoder.device)
        self.residents: OrderedDict[str, Resident] = OrderedDict()
        self.free = list(range(self.capacity))[::-1]

    def put(self, key: str, learned: Learned) -> Resident:
        """Copy a task's tensors into its present slot, a free slot, or the slot of the least recently used task."""
        old = self.residents.pop(key, None)
        if old is None and not self.free:
            old = self.residents.popitem(last=False)[1]
        slot = self.free.pop() if old is None else old.slot
        try:
            self.table.put(slot, learned.method_tensors)
        except BaseException:
            self.free.append(slot)
            raise
        head = {name: tensor.to(self.device) for name, tensor in learned.head_tensors.items()}
        resident = self.residents[key] = Resident(_without_tensors(learned), head, self, slot)
        return resident

    def drop(self, key: str) -> None:
        """Free the slot of a task, if it has one."""
        if (resident := self.residents.pop(key, None)) is not None:
            self.free.append(resident.slot)


def with_own_weights(learned: Learned, encoder: Encoder) -> Resident:
    """Return a resident task that changes the base, with the weights that replace the base's in its passes."""
    device, shape = encoder.device, encoder.shape
    tensors = {name: tensor.to(device) for name, tensor in learned.method_tensors.items()}
    last = learned.method.phases(shape)[-1].name
    with torch.no_grad():
        weights = learned.method.weights(last, shape, tensors, tensors, encoder.weights)
    weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
    head = {name: tensor.to(device) for name, tensor in learned.head_tensors.items()}
    return Resident(learned, head, weights=weights)


def _without_tensors(learned: Learned) -> Learned:
    """Return `learned` without its tensors: the slot holds a copy, so the originals can be freed."""
    return Learned(learned.method, learned.head, learned.task_kind, {})
