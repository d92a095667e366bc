"""Tasks whose tensors are on the device: in the slots of their method's shape, or as their own copy of base weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import Slots
from intarsia.methods import Method, parents, running_key
from intarsia.methods.compose import direct_parents, parent_tensors
from intarsia.methods.held import Held, tables
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
    held: Held | None = None  # the method in its slot; None: it acts at no site
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # replace the base's weights in the task's passes
    recorded: bool = False  # its rows run in recorded passes

    def own(self) -> dict[str, Tensor]:
        """Return the method's tensors of this task."""
        if self.slots is None:
            return self.learned.method_tensors
        return {} if self.held is None else self.held.composed


class ServingSlots:
    """The slots of one method shape, with their resident tasks, least recently used first."""

    def __init__(self, method: Method | None, encoder: Encoder, capacity: int) -> None:
        """`method`: None for the plain base, which has no tensors."""
        self.method, self.encoder = method, encoder
        self.key: tuple[object, ...] = ()  # of its shape among the residents
        self.places = frozenset() if method is None else method.places(encoder.shape)
        self.device, self.capacity = encoder.device, capacity
        specs = {} if method is None else method.tensors(encoder.shape)
        self.table = Slots(specs, capacity, device=encoder.device)
        self.low_tensors: Mapping[str, Tensor] = {}  # in the base's precision, for recorded passes
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

    def put(self, key: str, staged: Staged, parents: Mapping[str, Held]) -> Resident:
        """Copy a task into its present slot or a free slot."""
        old = self.residents.pop(key, None)
        slot = self.free.pop() if old is None else old.slot
        try:
            assert staged.row is not None
            self.table.put_row(slot, staged.row)
        except BaseException:
            self.free.append(slot)
            raise
        assert self.method is not None, "the plain base has no tasks"
        held = Held(staged.learned.method, self.table.tensors, slot, parents, self.low_tensors)
        head = _moved(staged.head_tensors, self.device)
        resident = self.residents[key] = Resident(staged.learned, head, self, slot, held)
        return resident

    def drop(self, key: str) -> None:
        """Free the slot of a task, if it has one."""
        if (resident := self.residents.pop(key, None)) is not None:
            self.free.append(resident.slot)

    def forget(self, table: Mapping[str, Tensor]) -> None:
        """Release what refers to the tensors of another shape, which leaves."""


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
        self.children: dict[str, set[str]] = {}  # the resident tasks that are built on a resident inlay, by its key
        self.pinned: set[str] = set()  # the tasks of the pass that is being prepared, and what they are built on
        self.evictions = 0

    def hold(self, wanted: Mapping[str, Callable[[], Staged]]) -> dict[str, Resident]:
        """Return the tasks of a pass by key; those that are not resident are copied to the device.

        No task of the pass makes room for another, nor does an inlay on which one of them is built.
        """
        self.pinned = set()
        found = {key: self.find(key) for key in wanted}
        for key, resident in found.items():
            if resident is not None:
                self._pin(key, resident)
        return {key: found[key] or self._put(key, staged()) for key, staged in wanted.items()}

    def _pin(self, key: str, resident: Resident) -> None:
        self.pinned.add(key)
        self.pinned.update(inlay.digest for inlay in parents(resident.learned.method))

    def find(self, key: str) -> Resident | None:
        """Return a resident task, and mark it, its shape and what it is built on as the most recently used."""
        for residents in (self.own_weights, *(slots.residents for slots in self.shapes.values())):
            if (resident := residents.get(key)) is not None:
                residents.move_to_end(key)
                for inlay in direct_parents(resident.learned.method):
                    self.find(inlay.digest)
                if resident.slots is not None and resident.slots.key in self.shapes:
                    self.shapes.move_to_end(resident.slots.key)
                return resident
        return None

    def _put(self, key: str, staged: Staged) -> Resident:
        """Copy a task to the device, and first what it is built on. The least recently used task of its kind leaves if
        there is no room."""
        learned = staged.learned
        above = {digest: self._parent(digest, inlay) for digest, inlay in staged.parents.items()}
        for digest in above:
            self.children.setdefault(digest, set()).add(key)
        self.pinned.add(key)
        if learned.method.changes_base:
            while len(self.own_weights) >= self.limits.own_weights:
                self._evict(next(iter(self.own_weights)))
            resident = self.own_weights[key] = with_own_weights(staged, above, self.encoder)
            return resident
        slots = self._slots_for(learned)
        if key not in slots.residents and not slots.free:
            idle = next((other for other in slots.residents if other not in self.pinned), None)
            if idle is None:  # this pass needs more of one shape than there are slots: the rest gets slots for now
                slots = self.slots_class(learned)(learned.method, self.encoder, 1)
            else:
                self._evict(idle)
        resident = slots.put(key, staged, above)
        if resident.recorded and not self._lasts(resident):
            resident = slots.residents[key] = replace(resident, recorded=False)
        return resident

    def _lasts(self, resident: Resident) -> bool:
        """Return whether a task and the inlays on which it is built are in slots that stay: a recorded pass would keep
        other tables in memory."""
        lasting = {id(slots.table.tensors) for slots in self.shapes.values()}
        return resident.held is not None and lasting.issuperset(tables(resident.held))

    def _parent(self, digest: str, staged: Staged) -> Held:
        """Return an inlay on which a task is built, from its slot."""
        if not staged.learned.method.changes_base:
            resident = self.find(digest) or self._put(digest, staged)
            self._pin(digest, resident)
            assert resident.held is not None
            return resident.held
        above = {inner: self._parent(inner, inlay) for inner, inlay in staged.parents.items()}
        return held_alone(staged.learned, above, self.encoder)

    def _evict(self, key: str) -> None:
        self.evictions += 1
        self.drop(key)

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
        shapes = [(key, slots) for key, slots in self.shapes.items() if self.pinned.isdisjoint(slots.residents)]
        left = limit - sum(slots.bytes for slots in self.shapes.values())
        while (capacity := min(self.limits.slots, left // 2 // size)) < min(FEW, self.limits.slots) and shapes:
            key, idle = shapes.pop(0)
            left += idle.bytes
            if free:
                del self.shapes[key]
                for child in [child for task in idle.residents for child in self.children.get(task, ())]:
                    self.drop(child)
                for others in self.shapes.values():
                    others.forget(idle.table.tensors)
        return max(1, capacity, min(self.limits.slots, left // size) if capacity < FEW else 0)

    def drop(self, key: str) -> None:
        """Remove a task from the device, if it is resident, and those that are built on it."""
        for child in self.children.pop(key, ()):
            self.drop(child)
        if (resident := self.find(key)) is not None:
            for inlay in direct_parents(resident.learned.method):
                self.children.get(inlay.digest, set()).discard(key)
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


def with_own_weights(staged: Staged, above: Mapping[str, Held], encoder: Encoder) -> Resident:
    """Return a resident task that changes the base, with the weights that replace the base's in its passes."""
    learned, device, shape = staged.learned, encoder.device, encoder.shape
    frozen = parent_tensors(learned.method, _changing(staged))
    tensors = _moved(learned.method_tensors | frozen, device)
    last = learned.method.phases(shape)[-1].name
    with torch.no_grad():
        weights = learned.method.weights(last, shape, tensors, tensors, encoder.weights)
    weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
    held = held_alone(learned, above, encoder) if learned.method.places(shape) else None
    return Resident(learned, _moved(learned.head_tensors, device), held=held, weights=weights)


def _changing(staged: Staged) -> dict[str, Mapping[str, Tensor]]:
    """Return the tensors of each inlay that changes the base and on which a task is built, by digest."""
    found: dict[str, Mapping[str, Tensor]] = {}
    for digest, inlay in staged.parents.items():
        if inlay.learned.method.changes_base:
            found |= {digest: inlay.learned.method_tensors, **_changing(inlay)}
    return found


def held_alone(learned: Learned, above: Mapping[str, Held], encoder: Encoder) -> Held:
    """Return an inlay that shares no table: its tensors are needed at sites beside weights of the base."""
    acts = learned.method.places(encoder.shape)
    tensors = _moved(learned.method_tensors, encoder.device) if acts else {}
    return Held(learned.method, {name: tensor[None] for name, tensor in tensors.items()}, 0, above)


def _moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
