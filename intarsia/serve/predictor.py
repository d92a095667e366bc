"""Requests of many tasks, answered in one pass through the base.

A task's tensors are copied into a slot when the task is first asked. When all slots of its shape are taken, the task
that was not asked for longest makes room. Nothing is rebuilt: adding or switching a task costs the same however many
there are. A task that changes weights of the base (full or sparse fine-tuning) runs in passes of its own, with its
weights in place of the base's; the base itself is never written to.

One call runs at a time: a lock makes the calling thread the owner of slots and passes. The rows of a pass are ordered
by the call alone, never by slot numbers, so the same call gives the same bits whatever other threads asked before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.memory import MemoryTrim
from intarsia.methods import Method, running_key
from intarsia.serve.resident import SLOT_BYTES, SLOTS, Resident, ServingSlots, with_own_weights
from intarsia.serve.served import Served
from intarsia.tasks.heads import pool, pooler_instead

TOKENS_A_PASS = 4096
OWN_WEIGHTS = 2  # tasks that change the base and stay on the device

Request = tuple[Served, Segment]
Out = TypeVar("Out")
Read = Callable[[Resident, Tensor, Sequence[Segment]], Sequence[Out]]  # the logits of one task's rows → an output a row


class Predictor:
    """Answers requests of tasks over one encoder, from any number of threads."""

    def __init__(self, encoder: Encoder, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        """`slots` and `slot_bytes` limit the resident tasks of each method shape."""
        self.encoder, self.capacity, self.slot_bytes = encoder, slots, slot_bytes
        self.shapes: dict[tuple[object, ...], ServingSlots] = {}
        self.own_weights: OrderedDict[str, Resident] = OrderedDict()  # least recently asked first
        self._changes_base: dict[str, bool] = {}  # of the tasks asked so far
        self._trim = MemoryTrim()
        self._lock = threading.RLock()

    def predict(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """The predictions for each request, in order: the probabilities (or the score) of its row or of its tokens."""
        return self._in_passes(requests, lambda task, logits, rows: task.learned.task_kind.predictions(logits, rows))

    def logits(self, requests: Sequence[Request]) -> list[Tensor]:
        """The head's outputs for each request, in order, for heads that read one vector a row."""
        return self._in_passes(requests, lambda _, logits, __: list(logits))

    def hold(self, task: Served) -> Resident:
        """Make a task resident, and the most recently asked of its shape."""
        with self._lock:
            for residents in (self.own_weights, *(slots.residents for slots in self.shapes.values())):
                if (resident := residents.get(task.key)) is not None:
                    residents.move_to_end(task.key)
                    return resident
            return self._load(task)

    def drop(self, key: str) -> None:
        """Free the memory of a task."""
        with self._lock:
            self.own_weights.pop(key, None)
            self._changes_base.pop(key, None)
            for slots in self.shapes.values():
                slots.drop(key)

    def _load(self, task: Served) -> Resident:
        learned = task.load()
        learned.method.check(self.encoder.shape)
        self._changes_base[task.key] = learned.method.changes_base
        if not learned.method.changes_base:
            return self._slots(learned.method).put(task.key, learned)
        while len(self.own_weights) >= OWN_WEIGHTS:
            self.own_weights.popitem(last=False)
        resident = self.own_weights[task.key] = with_own_weights(learned, self.encoder)
        return resident

    def _slots(self, method: Method) -> ServingSlots:
        key = running_key(method)
        if key not in self.shapes:
            self.shapes[key] = ServingSlots(method, self.encoder, self.capacity, self.slot_bytes)
        return self.shapes[key]

    @torch.no_grad()
    def _in_passes(self, requests: Sequence[Request], read: Read[Out]) -> list[Out]:
        out: list[Any] = [None] * len(requests)
        by_key: dict[str, list[int]] = {}
        for row, (task, _) in enumerate(requests):
            by_key.setdefault(task.key, []).append(row)
        with self._lock:
            shared: list[int] = []
            for rows in by_key.values():
                if self._runs_apart(requests[rows[0]][0]):
                    self._run(rows, requests, out, read)  # at once: whole weights of few tasks fit on a device
                else:
                    shared += rows
            self._run(sorted(shared), requests, out, read)
            if self.encoder.device.type == "cpu":
                self._trim()
        return out

    def _runs_apart(self, task: Served) -> bool:
        if task.key not in self._changes_base:
            self.hold(task)
        return self._changes_base[task.key]

    def _run(self, rows: list[int], requests: Sequence[Request], out: list[Any], read: Read[Out]) -> None:
        for part in by_token_budget([len(requests[row][1].ids) for row in rows], TOKENS_A_PASS):
            for fitting in self._fitting([rows[i] for i in part], requests):
                for row, answer in zip(fitting, self._pass([requests[row] for row in fitting], read), strict=True):
                    out[row] = answer

    def _fitting(self, rows: list[int], requests: Sequence[Request]) -> list[list[int]]:
        """Rows in parts that ask no more tasks than the smallest table of slots holds."""
        capacity = min((slots.capacity for slots in self.shapes.values()), default=self.capacity)
        keys = list(dict.fromkeys(requests[row][0].key for row in rows))
        if len(keys) <= capacity:
            return [rows]
        parts = [set(keys[i : i + capacity]) for i in range(0, len(keys), capacity)]
        return [[row for row in rows if requests[row][0].key in part] for part in parts]

    def _pass(self, requests: Sequence[Request], read: Read[Out]) -> list[Out]:
        """One pass through the base for rows of tasks that share it, or of one task that changes the base."""
        held = {task.key: self.hold(task) for task in {task.key: task for task, _ in requests}.values()}
        owners = _in_order(held)
        order = sorted(range(len(requests)), key=lambda row: owners[requests[row][0].key])
        batch = pack([requests[row][1] for row in order], self.encoder.device)
        runs = [list(run) for _, run in groupby(range(len(order)), key=lambda i: requests[order[i]][0].key)]  # by owner
        first_of = [held[requests[order[run[0]]][0].key] for run in runs]
        groups = _groups(runs, first_of)
        weights = first_of[0].weights
        states = self.encoder.forward(batch, groups, weights=weights)
        pooled = {p: pool(states, batch, p) for p in dict.fromkeys(r.learned.head.pooling for r in first_of)}
        out: list[Any] = [None] * len(requests)
        for run, resident in zip(runs, first_of, strict=True):
            first, last = run[0], run[-1] + 1
            if resident.learned.head.pooling == "none":  # the head reads every token
                first, last = batch.offsets[first], batch.offsets[last]
            segments = [requests[order[i]][1] for i in run]
            logits = self._logits(resident, pooled[resident.learned.head.pooling][first:last], weights, segments)
            for i, answer in zip(run, read(resident, logits, segments), strict=True):
                out[order[i]] = answer
        return out

    def _logits(
        self, resident: Resident, rows: Tensor, weights: Mapping[str, Tensor], segments: Sequence[Segment]
    ) -> Tensor:
        method = resident.learned.method
        own = resident.own() if method.touches_rows else {}
        return resident.learned.head.logits(
            resident.head_tensors,
            resident.learned.task_kind.read(rows, segments),
            self.encoder,
            own=lambda x: method.pooled(own, x),
            pooler=pooler_instead(self.encoder, own, weights),
            weights=weights,
        )


def _in_order(held: Mapping[str, Resident]) -> dict[str, tuple[int, int]]:
    """A place for each task, tasks of one shape together; shapes and tasks in the order in which they were asked."""
    shapes: dict[int, int] = {}
    places = {}
    for number, (key, resident) in enumerate(held.items()):
        places[key] = shapes.setdefault(id(resident.slots), len(shapes)), number
    return places


def _groups(runs: Sequence[Sequence[int]], residents: Sequence[Resident]) -> list[Group]:
    """The runs of rows of each method shape, as the encoder takes them."""
    groups = []
    for _, pairs in groupby(zip(runs, residents, strict=True), key=lambda pair: id(pair[1].slots)):
        of_shape = list(pairs)
        slots = of_shape[0][1].slots
        if slots is not None:
            owners = tuple(resident.slot for _, resident in of_shape)
            counts = tuple(len(run) for run, _ in of_shape)
            groups.append(Group(slots.method, slots.places, slots.table.tensors, of_shape[0][0][0], owners, counts))
    return groups
