"""The predictor runs requests of many tasks in one pass through the base.

The first request of a task copies the task's tensors into a slot. If all slots of its shape are taken, the least
recently used task is evicted. Adding or switching a task rebuilds nothing, so its cost does not depend on the number of
tasks. A task that changes weights of the base (full or sparse fine-tuning) runs in separate passes with its own
weights. The base's weights are never modified.

A lock admits one call at a time, so the calling thread owns the slots and passes. The order of the rows in a pass
depends on the call alone, not on slot numbers. The same call therefore gives bitwise equal results, whatever other
threads have requested before.
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
OWN_WEIGHTS = 2  # resident tasks that change the base: each holds a copy of the changed weights

Request = tuple[Served, Segment]
Out = TypeVar("Out")
Read = Callable[[Resident, Tensor, Sequence[Segment]], Sequence[Out]]  # logits of one task's rows → outputs by row


class Predictor:
    """Runs requests of tasks over one encoder, from any number of threads."""

    def __init__(self, encoder: Encoder, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        """`slots` and `slot_bytes` limit the resident tasks of each method shape."""
        self.encoder, self.capacity, self.slot_bytes = encoder, slots, slot_bytes
        self.shapes: dict[tuple[object, ...], ServingSlots] = {}
        self.own_weights: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._changes_base: dict[str, bool] = {}  # for every task loaded before
        self._trim = MemoryTrim()
        self._lock = threading.RLock()

    def predict(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """Return the outputs of each request, in order: probabilities (or the score) of its row or of its tokens."""
        return self._in_passes(requests, lambda task, logits, rows: task.learned.task_kind.predictions(logits, rows))

    def logits(self, requests: Sequence[Request]) -> list[Tensor]:
        """Return the logits of each request, in order; only for heads that read one vector for each row."""
        return self._in_passes(requests, lambda _, logits, __: list(logits))

    def hold(self, task: Served) -> Resident:
        """Return the resident task, loading it if needed, and mark it as the most recently used."""
        with self._lock:
            for residents in (self.own_weights, *(slots.residents for slots in self.shapes.values())):
                if (resident := residents.get(task.key)) is not None:
                    residents.move_to_end(task.key)
                    return resident
            return self._load(task)

    def drop(self, key: str) -> None:
        """Remove a task from the device, if it is resident."""
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
                if self._runs_separately(requests[rows[0]][0]):
                    # Run now, before another task of this kind is loaded: only a few of them are resident at a time.
                    self._run(rows, requests, out, read)
                else:
                    shared += rows
            self._run(sorted(shared), requests, out, read)
            if self.encoder.device.type == "cpu":
                self._trim()
        return out

    def _runs_separately(self, task: Served) -> bool:
        if task.key not in self._changes_base:
            self.hold(task)
        return self._changes_base[task.key]

    def _run(self, rows: list[int], requests: Sequence[Request], out: list[Any], read: Read[Out]) -> None:
        for part in by_token_budget([len(requests[row][1].ids) for row in rows], TOKENS_A_PASS):
            for fitting in self._fitting([rows[i] for i in part], requests):
                for row, output in zip(fitting, self._pass([requests[row] for row in fitting], read), strict=True):
                    out[row] = output

    def _fitting(self, rows: list[int], requests: Sequence[Request]) -> list[list[int]]:
        """Split rows into parts, each with at most as many tasks as the smallest slot table holds."""
        capacity = min((slots.capacity for slots in self.shapes.values()), default=self.capacity)
        keys = list(dict.fromkeys(requests[row][0].key for row in rows))
        if len(keys) <= capacity:
            return [rows]
        parts = [set(keys[i : i + capacity]) for i in range(0, len(keys), capacity)]
        return [[row for row in rows if requests[row][0].key in part] for part in parts]

    def _pass(self, requests: Sequence[Request], read: Read[Out]) -> list[Out]:
        """Run one pass: for rows of tasks that share the base, or for rows of one task that changes the base."""
        held = {task.key: self.hold(task) for task in {task.key: task for task, _ in requests}.values()}
        positions = _positions(held)
        order = sorted(range(len(requests)), key=lambda row: positions[requests[row][0].key])
        batch = pack([requests[row][1] for row in order], self.encoder.device)
        # One run of consecutive rows for each task.
        runs = [list(run) for _, run in groupby(range(len(order)), key=lambda i: requests[order[i]][0].key)]
        residents = [held[requests[order[run[0]]][0].key] for run in runs]
        groups = _groups(runs, residents)
        weights = residents[0].weights
        states = self.encoder.forward(batch, groups, weights=weights)
        pooled = {p: pool(states, batch, p) for p in dict.fromkeys(r.learned.head.pooling for r in residents)}
        out: list[Any] = [None] * len(requests)
        for run, resident in zip(runs, residents, strict=True):
            first, last = run[0], run[-1] + 1
            if resident.learned.head.pooling == "none":  # the head reads every token
                first, last = batch.offsets[first], batch.offsets[last]
            segments = [requests[order[i]][1] for i in run]
            logits = self._logits(resident, pooled[resident.learned.head.pooling][first:last], weights, segments)
            for i, output in zip(run, read(resident, logits, segments), strict=True):
                out[order[i]] = output
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


def _positions(held: Mapping[str, Resident]) -> dict[str, tuple[int, int]]:
    """Return a sort key for each task: tasks of one shape together, shapes and tasks in the order of the requests."""
    shapes: dict[int, int] = {}
    positions = {}
    for number, (key, resident) in enumerate(held.items()):
        positions[key] = shapes.setdefault(id(resident.slots), len(shapes)), number
    return positions


def _groups(runs: Sequence[Sequence[int]], residents: Sequence[Resident]) -> list[Group]:
    """Return one group for each method shape, with the runs of rows of its tasks, for `Encoder.forward`."""
    groups = []
    for _, pairs in groupby(zip(runs, residents, strict=True), key=lambda pair: id(pair[1].slots)):
        of_shape = list(pairs)
        slots = of_shape[0][1].slots
        if slots is not None:
            owners = tuple(resident.slot for _, resident in of_shape)
            counts = tuple(len(run) for run, _ in of_shape)
            groups.append(Group(slots.method, slots.places, slots.table.tensors, of_shape[0][0][0], owners, counts))
    return groups
