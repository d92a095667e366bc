"""Requests of many tasks, answered in one pass through the base.

Each task's inlay is put into a slot when it is first asked; the least recently asked one makes room when all slots of
its shape are taken. Nothing is rebuilt, and the cost of adding or switching a task does not depend on how many there
are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.load import Encoder
from intarsia.encoder.packed import Segment, by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots
from intarsia.methods import Method, from_dict, running_key
from intarsia.tasks.heads import Head, pool
from intarsia.tasks.kinds import Answers

if TYPE_CHECKING:
    from intarsia.bank.inlay import Inlay

TOKENS_A_PASS = 4096
SLOTS = 256  # of one shape; memory is taken as they are first used


@dataclass
class Stack:
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

    stack: Stack
    head: Head
    head_tensors: dict[str, Tensor]
    answers: Answers


class Predictor:
    """Answers requests (task key, segment). `source` gives the inlay for a key when it is not resident."""

    def __init__(self, encoder: Encoder, source: Callable[[str], Inlay], *, slots: int = SLOTS) -> None:
        self.encoder, self.source, self.capacity = encoder, source, slots
        self.stacks: dict[tuple[object, ...], Stack] = {}
        self.residents: dict[str, Resident] = {}

    def hold(self, key: str) -> Resident:
        """Make a task resident, and the most recently asked of its shape."""
        resident = self.residents.get(key)
        if resident is not None and key in resident.stack.residents:
            resident.stack.residents.move_to_end(key)
            return resident
        return self.put(key, self.source(key))

    def put(self, key: str, inlay: Inlay) -> Resident:
        """Copy an inlay into a slot."""
        device = self.encoder.device
        method = from_dict(inlay.method)
        stack = self.stacks.get(running_key(method))
        if stack is None:
            shape = self.encoder.shape
            slots = Slots(method.tensors(shape), self.capacity, device=device)
            stack = Stack(method, method.places(shape), slots, free=list(range(self.capacity))[::-1])
            self.stacks[running_key(method)] = stack
        tensors = {k.removeprefix("method."): v for k, v in inlay.tensors.items() if k.startswith("method.")}
        stack.slots.put(stack.place_for(key), tensors)
        resident = self.residents[key] = Resident(
            stack,
            Head(inlay.head["outputs"], inlay.head["pooling"]),
            {k.removeprefix("head."): v.to(device) for k, v in inlay.tensors.items() if k.startswith("head.")},
            answers_of(inlay),
        )
        return resident

    def drop(self, key: str) -> None:
        """Forget a task; its slot is free."""
        resident = self.residents.pop(key, None)
        if resident is not None and key in resident.stack.residents:
            resident.stack.free.append(resident.stack.residents.pop(key))

    @torch.no_grad()
    def predict(self, requests: Sequence[tuple[str, Segment]]) -> list[np.ndarray]:
        """Each request's probabilities (or score), in order."""
        out: list[np.ndarray] = [np.empty(0)] * len(requests)
        for rows in by_token_budget([len(segment.ids) for _, segment in requests], TOKENS_A_PASS):
            for part in self._fitting(rows, requests):
                for row, answer in zip(part, self._pass([requests[r] for r in part]), strict=True):
                    out[row] = answer
        return out

    def _fitting(self, rows: list[int], requests: Sequence[tuple[str, Segment]]) -> list[list[int]]:
        """Rows in parts that ask no more tasks than there are slots."""
        keys = list(dict.fromkeys(requests[r][0] for r in rows))
        if len(keys) <= self.capacity:
            return [rows]
        parts = [set(keys[i : i + self.capacity]) for i in range(0, len(keys), self.capacity)]
        return [[r for r in rows if requests[r][0] in part] for part in parts]

    def _pass(self, requests: Sequence[tuple[str, Segment]]) -> list[np.ndarray]:
        """One pass through the base for rows of any tasks."""
        held = {key: self.hold(key) for key in dict.fromkeys(key for key, _ in requests)}
        number = {id(stack): i for i, stack in enumerate(self.stacks.values())}

        def owner(row: int) -> tuple[int, int]:  # tokens are sorted by method, then by owner
            stack = held[requests[row][0]].stack
            return number[id(stack)], stack.residents[requests[row][0]]

        order = sorted(range(len(requests)), key=owner)
        batch = pack([requests[r][1] for r in order], self.encoder.device)
        groups: list[Group] = []
        owners: list[tuple[Resident, list[int]]] = []  # with places in `order`
        first = 0
        for _, of_method in groupby(range(len(order)), key=lambda i: owner(order[i])[0]):
            runs = [list(run) for _, run in groupby(of_method, key=lambda i: owner(order[i])[1])]
            residents = [held[requests[order[run[0]]][0]] for run in runs]
            owners += zip(residents, runs, strict=True)
            stack = residents[0].stack
            slots = tuple(owner(order[run[0]])[1] for run in runs)
            counts = tuple(len(run) for run in runs)
            groups.append(Group(stack.method, stack.places, stack.slots.tensors, first, slots, counts))
            first += sum(counts)
        states = self.encoder.forward(batch, groups)
        pooled = {p: pool(states, batch, p) for p in {resident.head.pooling for resident, _ in owners}}
        out: list[np.ndarray] = [np.empty(0)] * len(requests)
        for resident, run in owners:
            rows = pooled[resident.head.pooling][run[0] : run[-1] + 1]
            logits = resident.head.logits(resident.head_tensors, rows, self.encoder)
            for i, answer in zip(run, resident.answers.probabilities(logits), strict=True):
                out[order[i]] = answer
        return out


def answers_of(inlay: Inlay) -> Answers:
    mean, spread = inlay.head.get("mean", 0.0), inlay.head.get("spread", 1.0)
    return Answers(inlay.kind, tuple(inlay.labels), mean, spread)  # type: ignore[arg-type]
