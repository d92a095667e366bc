"""Tasks whose tensors are on the device: in the slots of their method's shape, or as their own copy of base weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import Slots
from intarsia.methods import Method, running_key
from intarsia.serve.limits import Limits
from intarsia.serve.staged import Staged
from intarsia.tasks.learned import Learned

FEW = 8  # slots; a new shape takes the slots of an idle shape rather than have fewer


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

    recorded: ClassVar[bool] = False  # their rows run in recorded passes

    def __init__(self, method: Method | None, encoder: Encoder, capacity: int) -> None:
        """`method`: None for the plain base, which has no tensors."""
        self.method, self.encoder = method, encoder
        self.key: tuple[object, ...] = ()  # of its shape among the residents
        self.places = frozenset() if method is None else method.places(encoder.shape)
        self.device, self.capacity = encoder.device, capacity
        specs = {} if method is None else method.tensors(encoder.shape)
        self.table = Slots(specs, capacity, device=encoder.device)
        self.residents: OrderedDict[str, Resident] = OrderedDict()
        self.free = list(range(capacity))[::-1]

    @property
    def bytes(self) -> int:
        return self.capacity * self.slot_bytes(self.method, self.encoder)

    @classmethod
    def slot_bytes(cls, method: Method | None, encoder: Encoder) -> int:
        """Return the memory of one slot, at least 1."""
        specs = {} if method is None else method.tensors(encoder.shape)
        return max(1, 4 * sum(spec.size for spec in specs.values()))

    def put(self, key: str, staged: Staged) -> Resident:
        """Copy a task into its present slot, a free slot, or the slot of the least recently used task."""
        old = self.residents.pop(key, None)
        if old is None and not self.free:
            old = self.residents.popitem(last=False)[1]
        slot = self.free.pop() if old is None else old.slot
        try:
            assert staged.row is not None
            self.table.put_row(slot, staged.row)
        except BaseException:
            self.free.append(slot)
            raise
        resident = self.residents[key] = Resident(staged.learned, _moved(staged.head_tensors, self.device), self, slot)
        return resident

    def drop(self, key: str) -> None:
        """Free the slot of a task, if it has one."""
        if (resident := self.residents.pop(key, None)) is not None:
            self.free.append(resident.slot)


class Residents:
    """All tasks on the device, within the limits: slots by method shape, and tasks with weights of their own."""

    def __init__(
        self, encoder: Encoder, limits: Limits, slots_class: Callable[[Learned], type[ServingSlots]] | None = None
    ) -> None:
        """`slots_class`: the kind of slots that a task takes."""
        self.encoder, self.limits = encoder, limits
        self.slots_class = slots_class or (lambda learned: ServingSlots)
        self.shapes: OrderedDict[tuple[object, ...], ServingSlots] = OrderedDict()  # least recently used first
        self.own_weights: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self.evictions = 0

    def find(self, key: str) -> Resident | None:
        """Return a resident task, and mark it and its shape as the most recently used."""
        for residents in (self.own_weights, *(slots.residents for slots in self.shapes.values())):
            if (resident := residents.get(key)) is not None:
                residents.move_to_end(key)
                if resident.slots is not None and resident.slots.key in self.shapes:
                    self.shapes.move_to_end(resident.slots.key)
                return resident
        return None

    def put(self, key: str, staged: Staged) -> Resident:
        """Copy a task to the device. The least recently used task of its kind leaves if there is no room."""
        learned = staged.learned
        if not learned.method.changes_base:
            slots = self._slots_for(learned)
            self.evictions += key not in slots.residents and not slots.free
            return slots.put(key, staged)
        while len(self.own_weights) >= self.limits.own_weights:
            self.own_weights.popitem(last=False)
            self.evictions += 1
        resident = self.own_weights[key] = with_own_weights(learned, self.encoder)
        return resident

    def shape_key(self, learned: Learned) -> tuple[object, ...]:
        """Return a key that is equal for tasks that take slots from one table."""
        return (*running_key(learned.method), self.slots_class(learned))

    def _slots_for(self, learned: Learned) -> ServingSlots:
        """Return the slots of a task's shape."""
        key = self.shape_key(learned)
        if key not in self.shapes:
            slots = self.slots_class(learned)(learned.method, self.encoder, self._capacity(learned))
            slots.key = key
            self.shapes[key] = slots
        self.shapes.move_to_end(key)
        return self.shapes[key]

    def capacity(self, learned: Learned) -> int:
        """Return the number of tasks of this shape that one pass can hold."""
        if learned.method.changes_base:
            return 1
        known = self.shapes.get(self.shape_key(learned))
        return self._capacity(learned, free=False) if known is None else known.capacity

    def _capacity(self, learned: Learned, *, free: bool = True) -> int:
        """Return the slots of a new shape: half of the bytes that are left. If that is too little, idle shapes leave
        (`free`: now)."""
        limit = self.limits.slot_bytes
        assert limit is not None
        size = self.slots_class(learned).slot_bytes(learned.method, self.encoder)
        shapes = list(self.shapes.items())
        left = limit - sum(slots.bytes for _, slots in shapes)
        while (capacity := min(self.limits.slots, left // 2 // size)) < min(FEW, self.limits.slots) and shapes:
            key, idle = shapes.pop(0)
            left += idle.bytes
            if free:
                del self.shapes[key]
        return max(1, capacity, min(self.limits.slots, left // size) if capacity < FEW else 0)

    def drop(self, key: str) -> None:
        """Remove a task from the device, if it is resident."""
        self.own_weights.pop(key, None)
        for slots in self.shapes.values():
            slots.drop(key)

    def retire(self, key: str) -> None:
        """Mark a task as the least recently used."""
        for residents in (self.own_weights, *(slots.residents for slots in self.shapes.values())):
            if key in residents:
                residents.move_to_end(key, last=False)

    def keys(self) -> list[str]:
        return [*self.own_weights, *(key for slots in self.shapes.values() for key in slots.residents)]


def with_own_weights(learned: Learned, encoder: Encoder) -> Resident:
    """Return a resident task that changes the base, with the weights that replace the base's in its passes."""
    device, shape = encoder.device, encoder.shape
    tensors = _moved(learned.method_tensors, device)
    last = learned.method.phases(shape)[-1].name
    with torch.no_grad():
        weights = learned.method.weights(last, shape, tensors, tensors, encoder.weights)
    weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
    return Resident(learned, _moved(learned.head_tensors, device), weights=weights)


def _moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
