"""Tasks whose tensors are on the device: in the slots of their method's shape, or with whole weights of their own."""

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

SLOTS = 256  # of one method shape
SLOT_BYTES = 4 << 30  # of one method shape: wide methods get fewer slots


@dataclass(frozen=True, eq=False)
class Resident:
    """A task on the device. Its head comes and goes with its tensors."""

    learned: Learned
    head_tensors: Mapping[str, Tensor]
    slots: ServingSlots | None = None  # None: the task changes weights of the base …
    slot: int = -1
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # … and these take their place in its passes

    def own(self) -> dict[str, Tensor]:
        """The method's tensors, of this task alone."""
        if self.slots is None:
            return self.learned.method_tensors
        return {name: tensor[self.slot] for name, tensor in self.slots.table.tensors.items()}


class ServingSlots:
    """All resident tasks of one method shape, the least recently asked first."""

    def __init__(self, method: Method, encoder: Encoder, capacity: int = SLOTS, limit: int = SLOT_BYTES) -> None:
        """`capacity` slots at most, and no more than `limit` bytes hold."""
        specs = method.tensors(encoder.shape)
        a_slot = 4 * sum(spec.size for spec in specs.values())
        self.capacity = max(1, min(capacity, limit // max(1, a_slot)))
        self.method, self.places = method, method.places(encoder.shape)
        self.device = encoder.device
        self.table = Slots(specs, self.capacity, device=encoder.device)
        self.residents: OrderedDict[str, Resident] = OrderedDict()
        self.free = list(range(self.capacity))[::-1]

    def put(self, key: str, learned: Learned) -> Resident:
        """Copy a task's tensors into its slot, a free one, or that of the task that was not asked for longest."""
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
        made = self.residents[key] = Resident(_without_tensors(learned), head, self, slot)
        return made

    def drop(self, key: str) -> None:
        if (resident := self.residents.pop(key, None)) is not None:
            self.free.append(resident.slot)


def with_own_weights(learned: Learned, encoder: Encoder) -> Resident:
    """A task that changes the base: the weights that take the base's place in its passes."""
    device, shape = encoder.device, encoder.shape
    tensors = {name: tensor.to(device) for name, tensor in learned.method_tensors.items()}
    last = learned.method.phases(shape)[-1].name
    with torch.no_grad():
        weights = learned.method.weights(last, shape, tensors, tensors, encoder.weights)
    weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
    head = {name: tensor.to(device) for name, tensor in learned.head_tensors.items()}
    return Resident(learned, head, weights=weights)


def _without_tensors(learned: Learned) -> Learned:
    """The tensors are in the slot now; nothing else should keep them alive."""
    return Learned(learned.method, learned.head, learned.task_kind, {})
