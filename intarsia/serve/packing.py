"""Which of the rows that wait can share the next pass."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.encoder.packed import Segment
from intarsia.methods import parents
from intarsia.serve.call import Call
from intarsia.serve.predictor import Predictor
from intarsia.serve.preparing import Group
from intarsia.serve.staged import HostTier, Staged
from intarsia.tasks.learned import Learned


@dataclass(eq=False, slots=True)
class Row:
    """One row that waits for a pass."""

    call: Call
    group: Group
    index: int  # of its segment in the group
    place: int  # of its ask in the call
    segment: Segment
    size: int  # its tokens
    key: str | None  # of its task; None: the plain base


class PlannedPass:
    """The tasks of a pass that is being packed. What a task needs is found out once a pass, not once a row."""

    def __init__(self, predictor: Predictor, host: HostTier) -> None:
        self.predictor, self.host = predictor, host
        self.tasks: dict[str, Staged | None] = {}  # None: resident
        self.joined: set[str] = set()
        self._kinds: dict[str | None, object] = {}
        # The keys of a task and of the inlays on which it is built, with their shapes and how many a pass can hold.
        self._rooms: dict[str, list[tuple[str, object, int]]] = {}
        self._members: dict[object, set[str]] = {}  # the tasks of each shape that joined
        self._kind: tuple[object, int] | None = None

    def join(self, row: Row) -> bool | None:
        """Let a row join, if its task fits; None: its task is in no memory, so it must be read again."""
        key = row.key
        if key not in self._kinds and not self._find(key):
            return None
        length = self.predictor.length_key(row.segment)
        if self._kind is not None and key in self.joined and length == self._kind[1]:
            return True  # as most rows do
        kind = (self._kinds[key], length)
        if self._kind is not None and kind != self._kind:
            return False
        if key is not None and key not in self.joined:
            for member, shape, room in self._rooms[key]:
                members = self._members.setdefault(shape, set())
                if member not in members and len(members) >= room and self.joined:
                    return False
            for member, shape, _ in self._rooms[key]:
                self._members[shape].add(member)
            self.joined.add(key)
        self._kind = kind
        return True

    def _find(self, key: str | None) -> bool:
        if key is None:
            self._kinds[None] = self.predictor.pass_key(None, None)
            return True
        residents = self.predictor.residents
        resident = residents.find(key)
        staged = None if resident is not None else self.host.peek(key)
        if resident is None and staged is None:
            return False
        self.tasks[key] = staged
        if resident is not None and resident.slots is not None:  # the usual case, without a look at the method
            slots = resident.slots
            self._kinds[key] = slots.key if resident.recorded else self.predictor.eager_key(resident.learned.method)
            self._rooms[key] = [(key, slots.key, slots.capacity), *self._built_on(resident.learned)]
            return True
        learned = resident.learned if resident is not None else staged.learned  # type: ignore[union-attr]
        self._kinds[key] = self.predictor.pass_key(learned, key)
        shape, room = residents.shape_key(learned), residents.capacity(learned)
        self._rooms[key] = [(key, shape, room), *self._built_on(learned)]
        return True

    def _built_on(self, learned: Learned) -> list[tuple[str, object, int]]:
        residents = self.predictor.residents
        found: list[tuple[str, object, int]] = []
        for inlay in parents(learned.method):
            if not inlay.method.changes_base:
                bare = Learned(inlay.method, learned.head, learned.task_kind, {})
                found.append((inlay.digest, residents.shape_key(bare), residents.capacity(bare)))
        return found
