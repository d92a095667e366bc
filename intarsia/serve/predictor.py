"""Requests of many tasks, answered in one pass through the base.

Each task's inlay is put into a slot when it is first asked; the least recently asked one makes room when all slots of
its shape are taken. Nothing is rebuilt, and the cost of adding or switching a task does not depend on how many there
are. A task that changed weights of the base (a fine-tuned one) has a pass of its own, with its weights standing for
the base's; the base itself is never written to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots
from intarsia.memory import MemoryTrim
from intarsia.methods import Method, running_key
from intarsia.tasks.heads import Head, pool, pooler_instead
from intarsia.tasks.learned import Learned
from intarsia.tasks.task_kind import TaskKind

TOKENS_A_PASS = 4096
SLOTS = 256  # of one shape; memory is taken as they are first used
WEIGHTS = 2  # tasks that changed the base whose whole weights are kept ready


@dataclass(eq=False)
class ServingSlots:
    """All resident inlays of one method shape, by task key, least recently asked first."""

    method: Method
    places: frozenset[tuple[str, int]]
    slots: Slots
    residents: OrderedDict[str, int] = field(default_factory=OrderedDict)
    free: list[int] = field(default_factory=list)

    def place_for(self, key: str) -> int:
        """A slot for `key`: its own, a free one, or the least recently asked one's."""
        slot = self.residents.pop(key, None)
        if slot is None:
            slot = self.free.pop() if self.free else self.residents.popitem(last=False)[1]
        self.residents[key] = slot
        return slot


@dataclass(frozen=True)
class Resident:
    """A task that can be asked: where its tensors are, its head, how its outputs are read."""

    method: Method
    stack: ServingSlots | None  # None: it changes the base, and keeps its tensors itself
    tensors: dict[str, Tensor]
    head: Head
    head_tensors: dict[str, Tensor]
    task_kind: TaskKind

    def own(self, key: str) -> dict[str, Tensor]:
        """The method's tensors, of this task alone."""
        if self.stack is None:
            return self.tensors
        slot = self.stack.residents[key]
        return {name: tensor[slot] for name, tensor in self.stack.slots.tensors.items()}


Out = TypeVar("Out")
Read = Callable[[Resident, Tensor, Sequence[Segment]], Sequence[Out]]  # what is kept of the logits of a task's rows


class Predictor:
    """Answers requests (task key, segment). `source` gives what a task learned when it is not resident."""

    def __init__(self, encoder: Encoder, source: Callable[[str], Learned], *, slots: int = SLOTS) -> None:
        self.encoder, self.source, self.capacity = encoder, source, slots
        self.stacks: dict[tuple[object, ...], ServingSlots] = {}
        self.residents: dict[str, Resident] = {}
        self.exclusive: OrderedDict[str, dict[str, Tensor]] = OrderedDict()  # weights for passes of their own
        self.tidy = MemoryTrim()

    def hold(self, key: str) -> Resident:
        """Make a task resident, and the most recently asked of its shape."""
        resident = self.residents.get(key)
        if resident is not None and resident.stack is None:
            return resident
        if resident is not None and resident.stack is not None and key in resident.stack.residents:
            resident.stack.residents.move_to_end(key)
            return resident
        return self.put(key, self.source(key))

    def put(self, key: str, learned: Learned) -> Resident:
        """Copy a task's tensors into a slot."""
        device, method = self.encoder.device, learned.method
        method.check(self.encoder.shape)
        stack = None if method.changes_base else self._stack(method)
        if key in self.residents and self.residents[key].stack is not stack:
            self.drop(key)  # it was of another method
        self.exclusive.pop(key, None)
        if stack is not None:
            stack.slots.put(stack.place_for(key), learned.method_tensors)
        resident = self.residents[key] = Resident(
            method,
            stack,
            {} if stack is not None else {k: v.to(device) for k, v in learned.method_tensors.items()},
            learned.head,
            {k: v.to(device) for k, v in learned.head_tensors.items()},
            learned.task_kind,
        )
        return resident

    def _stack(self, method: Method) -> ServingSlots:
        stack = self.stacks.get(running_key(method))
        if stack is None:
            shape = self.encoder.shape
            slots = Slots(method.tensors(shape), self.capacity, device=self.encoder.device)
            stack = ServingSlots(method, method.places(shape), slots, free=list(range(self.capacity))[::-1])
            self.stacks[running_key(method)] = stack
        return stack

    def drop(self, key: str) -> None:
        """Forget a task; its slot is free."""
        resident = self.residents.pop(key, None)
        self.exclusive.pop(key, None)
        if resident is not None and resident.stack is not None and key in resident.stack.residents:
            resident.stack.free.append(resident.stack.residents.pop(key))

    def predict(self, requests: Sequence[tuple[str, Segment]]) -> list[np.ndarray]:
        """The predictions for each request, in order: the probabilities (or the score) of its row or of its tokens."""
        return self._in_passes(
            requests, lambda resident, logits, segments: resident.task_kind.predictions(logits, segments)
        )

    def logits(self, requests: Sequence[tuple[str, Segment]]) -> list[Tensor]:
        """The head's outputs for each request, in order, for heads that read one vector a row."""
        return self._in_passes(requests, lambda _, logits, __: list(logits))

    @torch.no_grad()
    def _in_passes(self, requests: Sequence[tuple[str, Segment]], read: Read[Out]) -> list[Out]:
        out: list[Any] = [None] * len(requests)
        together: list[int] = []
        apart: dict[str, list[int]] = {}
        for row, (key, _) in enumerate(requests):
            exclusive = self.residents[key].stack is None if key in self.residents else self.hold(key).stack is None
            apart.setdefault(key, []).append(row) if exclusive else together.append(row)
        for rows in [together, *apart.values()]:
            for part in by_token_budget([len(requests[r][1].ids) for r in rows], TOKENS_A_PASS):
                for fitting in self._fitting([rows[i] for i in part], requests):
                    found = self._pass([requests[r] for r in fitting], read)
                    for row, answer in zip(fitting, found, strict=True):
                        out[row] = answer
        if self.encoder.device.type == "cpu":
            self.tidy()
        return out

    def _fitting(self, rows: list[int], requests: Sequence[tuple[str, Segment]]) -> list[list[int]]:
        """Rows in parts that ask no more tasks than there are slots."""
        keys = list(dict.fromkeys(requests[r][0] for r in rows))
        if len(keys) <= self.capacity:
            return [rows]
        parts = [set(keys[i : i + self.capacity]) for i in range(0, len(keys), self.capacity)]
        return [[r for r in rows if requests[r][0] in part] for part in parts]

    def _pass(self, requests: Sequence[tuple[str, Segment]], read: Read[Out]) -> list[Out]:
        """One pass through the base for rows of any tasks that can share one, or of one task that cannot."""
        held = {key: self.hold(key) for key in dict.fromkeys(key for key, _ in requests)}
        stacks = list(self.stacks.values())

        def owner(row: int) -> tuple[int, int]:  # tokens are sorted by method, then by owner
            stack = held[requests[row][0]].stack
            return (-1, 0) if stack is None else (stacks.index(stack), stack.residents[requests[row][0]])

        owners = {row: owner(row) for row in range(len(requests))}
        order = sorted(owners, key=owners.__getitem__)
        batch = pack([requests[r][1] for r in order], self.encoder.device)
        runs = [list(run) for _, run in groupby(range(len(order)), key=lambda i: owners[order[i]])]  # of one owner
        groups: list[Group] = []
        for number, of_method in groupby(runs, key=lambda run: owners[order[run[0]]][0]):
            if number >= 0:
                groups.append(_group(stacks[number], [(owners[order[run[0]]][1], run) for run in of_method]))
        weights = {} if groups else self._weights(requests[0][0])
        states = self.encoder.forward(batch, groups, weights=weights)
        pooled = {p: pool(states, batch, p) for p in {resident.head.pooling for resident in held.values()}}
        out: list[Any] = [None] * len(requests)
        for run in runs:
            key = requests[order[run[0]]][0]
            resident = held[key]
            first, last = run[0], run[-1] + 1
            if resident.head.pooling == "none":
                first, last = batch.offsets[first], batch.offsets[last]
            rows = pooled[resident.head.pooling][first:last]
            segments = [requests[order[i]][1] for i in run]
            logits = self._logits(key, resident, rows, weights, segments)
            for i, answer in zip(run, read(resident, logits, segments), strict=True):
                out[order[i]] = answer
        return out

    def _logits(
        self, key: str, resident: Resident, rows: Tensor, weights: Mapping[str, Tensor], segments: Sequence[Segment]
    ) -> Tensor:
        own = resident.own(key) if resident.method.touches_rows else {}
        return resident.head.logits(
            resident.head_tensors,
            resident.task_kind.read(rows, segments),
            self.encoder,
            own=lambda x: resident.method.pooled(own, x),
            pooler=pooler_instead(self.encoder, own, weights),
            weights=weights,
        )

    def _weights(self, key: str) -> dict[str, Tensor]:
        """The weights that stand for the base's in a task's own pass; those of the last few tasks are kept."""
        if key not in self.exclusive:
            resident = self.residents[key]
            shape, tensors = self.encoder.shape, resident.tensors
            last = resident.method.phases(shape)[-1].name
            weights = resident.method.weights(last, shape, tensors, tensors, self.encoder.weights)
            self.exclusive[key] = {name: weight.to(self.encoder.dtype) for name, weight in weights.items()}
            while len(self.exclusive) > WEIGHTS:
                self.residents.pop(self.exclusive.popitem(last=False)[0], None)  # read again when asked again
        self.exclusive.move_to_end(key)
        return self.exclusive[key]


def _group(stack: ServingSlots, runs: list[tuple[int, list[int]]]) -> Group:
    """Rows of one method: (slot, its places in the batch) for each owner."""
    slots = tuple(slot for slot, _ in runs)
    counts = tuple(len(run) for _, run in runs)
    return Group(stack.method, stack.places, stack.slots.tensors, runs[0][1][0], slots, counts)
