"""The predictor runs rows of many tasks in one pass through the base.

The first row of a task copies the task's tensors into a slot. If all slots of its shape are taken, the least recently
used task leaves. Adding or switching a task rebuilds nothing, so its cost does not depend on the number of tasks. A
task that changes weights of the base (full or sparse fine-tuning) runs in separate passes with its own weights. The
base's weights are never modified.

A predictor belongs to one thread at a time: the engine's thread, or the caller that holds its lock. On a CPU a row's
outputs do not depend on the other rows of its pass, on slot numbers, or on what ran before, bit for bit
(`encoder/rowwise.py`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder import onednn
from intarsia.encoder.compiled import can_compile
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Batch, Segment, by_token_budget, pack, rung
from intarsia.encoder.routed import Group
from intarsia.kernels import LONGEST
from intarsia.memory import MemoryTrim
from intarsia.methods import Method
from intarsia.methods.held import parts_of, tables
from intarsia.serve.limits import Limits
from intarsia.serve.recorded import RecordedSlots, can_record, can_record_method
from intarsia.serve.resident import Resident, Residents, ServingSlots
from intarsia.serve.served import Served
from intarsia.serve.shared_trunk import shared_trunk
from intarsia.serve.staged import Staged, stage
from intarsia.tasks.heads import pool, pooler_instead
from intarsia.tasks.learned import Learned

EAGER = "eager"  # the key of methods that compiled passes cannot have
Request = tuple[Served, Segment]
Out = TypeVar("Out")
Read = Callable[[Resident, Tensor, Sequence[Segment]], Sequence[Out]]  # logits of one task's rows → outputs by row


class PassRow(NamedTuple):
    """One row of a pass."""

    key: str | None  # of a resident task; None: the plain base
    segment: Segment
    embed: bool = False  # the output is the pooled state, not a prediction


class Predictor:
    """Runs rows of tasks over one encoder."""

    def __init__(self, encoder: Encoder, limits: Limits | None = None, *, interpreted: bool = False) -> None:
        """`interpreted`: use recorded passes without a GPU, in Triton's interpreter (for tests)."""
        self.encoder, self._interpreted = encoder, interpreted
        self._by_length = encoder.shape.disentangled_attention
        self.limits = (limits or Limits()).on(encoder.device)
        self.residents = Residents(encoder, self.limits, self._slots_class)
        self._compiles: dict[Method, bool] = {}  # by method, whether compiled passes can have it
        self._known: dict[str, Learned] = {}  # every task that `predict` ran, without its tensors
        self._trim = MemoryTrim()
        self._lock = threading.RLock()

    def _slots_class(self, learned: Learned) -> type[ServingSlots]:
        recorded = can_record_method(self.encoder, learned.method, interpreted=self._interpreted)
        return RecordedSlots if recorded else ServingSlots

    @property
    def shapes(self) -> Mapping[tuple[object, ...], ServingSlots]:
        return self.residents.shapes

    def predict(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """Return the outputs of each request, in order: probabilities (or the score) of its row or of its tokens."""
        return self._in_passes(requests, predictions)

    def logits(self, requests: Sequence[Request]) -> list[Tensor]:
        """Return the logits of each request, in order; only for heads that read one vector for each row."""
        return self._in_passes(requests, lambda _, logits, __: list(logits))

    def hold(self, task: Served) -> Resident:
        """Return the resident task, loading it if needed, and mark it as the most recently used."""
        return self._hold([task])[task.key]

    def _hold(self, tasks: Iterable[Served]) -> dict[str, Resident]:
        with self._lock:
            return self.residents.hold({task.key: partial(self._stage, task) for task in tasks})

    def _stage(self, task: Served) -> Staged:
        return stage(task.load(), self.encoder)

    def drop(self, key: str) -> None:
        """Remove a task from the device, if it is resident."""
        with self._lock:
            self._known.pop(key, None)
            self.residents.drop(key)

    def pass_key(self, learned: Learned | None, key: str | None) -> object:
        """Return a key that is equal for tasks (None: the plain base) whose rows can share a pass."""
        if learned is not None and learned.method.changes_base:
            return key
        if not can_record(self.encoder, learned, interpreted=self._interpreted):
            return self.eager_key(None if learned is None else learned.method)
        return "plain" if learned is None else self.residents.shape_key(learned)

    def eager_key(self, method: Method | None) -> object:
        """Return a key that is equal for methods (None: the plain base) whose rows can share a pass on a CPU: their
        layers are compiled, or run in PyTorch, whatever other rows the pass has."""
        return None if self.compiles(method) else EAGER

    def compiles(self, method: Method | None) -> bool:
        """Return whether rows of a method run in compiled passes."""
        if self.encoder.device.type != "cpu" or self.encoder.compiled is None:
            return False
        if method is None:
            return True
        if method not in self._compiles:
            self._compiles[method] = can_compile(self.encoder.shape, method)
        return self._compiles[method]

    def length_key(self, segment: Segment) -> int:
        """Return a number that must be equal for the segments of one pass; 0 if any segments can share one."""
        # DeBERTa's attention pads all segments of a pass to one length.
        return rung(len(segment.ids)) if self._by_length else 0

    def start(self, rows: Sequence[PassRow], held: Mapping[str, Resident]) -> Callable[[], list[Any]]:
        """Start one pass, and return a function that waits for its outputs and returns one for each row: see
        `raw_outputs`; or the vector of a row that asks for it.

        `held` has the resident tasks of the rows. On a CPU the pass is over when this returns.
        """
        if self._is_recorded(rows, held):
            return self._start_recorded(rows, held)
        with torch.no_grad():
            outputs = self._pass(rows, held, raw_outputs)
        if self.encoder.device.type == "cpu":
            self._trim()
        return lambda: outputs

    def _is_recorded(self, rows: Sequence[PassRow], held: Mapping[str, Resident]) -> bool:
        if not can_record(self.encoder, None, interpreted=self._interpreted):
            return False
        if any(len(row.segment.ids) > LONGEST for row in rows):
            return False
        if not held:
            return True
        shared = {tables(r.held) if r.recorded and r.held is not None else None for r in held.values()}
        return len(shared) == 1 and None not in shared and all(row.key is not None for row in rows)

    def _start_recorded(self, rows: Sequence[PassRow], held: Mapping[str, Resident]) -> Callable[[], list[Any]]:
        by_key: dict[str | None, list[int]] = {}
        for i, row in enumerate(rows):
            by_key.setdefault(row.key, []).append(i)
        residents = [held[key] if key is not None else None for key in by_key]
        slots = residents[0].slots if residents[0] is not None else self._plain
        assert isinstance(slots, RecordedSlots)
        segments = [[rows[i].segment for i in members] for members in by_key.values()]
        outputs = slots.start(
            [(None if r is None else r.held, own) for r, own in zip(residents, segments, strict=True)],
            tokens=any(r is not None and r.learned.task_kind.reads_tokens for r in residents),
            vectors=any(row.embed for row in rows),
        )

        def finish() -> list[Any]:
            outputs.wait()
            out: list[Any] = [None] * len(rows)
            first = 0
            for members, resident, own in zip(by_key.values(), residents, segments, strict=True):
                last = first + len(members)
                if resident is not None:
                    found = outputs.of_rows(slice(first, last), resident.learned, own)
                    for i, output in zip(members, found, strict=True):
                        out[i] = output
                for i, place in zip(members, range(first, last), strict=True):
                    if rows[i].embed:
                        out[i] = outputs.vector(place)
                first = last
            return out

        return finish

    @cached_property
    def _plain(self) -> RecordedSlots:
        return RecordedSlots(None, self.encoder, 1)

    def _in_passes(self, requests: Sequence[Request], read: Read[Out]) -> list[Out]:
        out: list[Any] = [None] * len(requests)
        tasks = {task.key: task for task, _ in requests}
        with self._lock, torch.no_grad():
            for rows in self._plan(requests, tasks):
                keys = dict.fromkeys(requests[row][0].key for row in rows)
                held = self._hold(tasks[key] for key in keys)
                asked = [PassRow(requests[row][0].key, requests[row][1]) for row in rows]
                for row, output in zip(rows, self._pass(asked, held, read), strict=True):
                    out[row] = output
            if self.encoder.device.type == "cpu":
                self._trim()
        return out

    def _plan(self, requests: Sequence[Request], tasks: Mapping[str, Served]) -> list[list[int]]:
        """Return the rows of each pass: within the token budget, and and no more tasks of a shape than its slots."""
        assert self.limits.pass_tokens is not None
        kinds: dict[object, list[int]] = {}
        for task in tasks.values():
            if task.key not in self._known:
                learned = self.hold(task).learned
                self._known[task.key] = Learned(learned.method, learned.head, learned.task_kind, {})
        for row, (task, segment) in enumerate(requests):
            method = self._known[task.key].method
            alone = task.key if method.changes_base else self.eager_key(method)
            kinds.setdefault((alone, self.length_key(segment)), []).append(row)
        passes = []
        for rows in kinds.values():
            for part in by_token_budget([len(requests[row][1].ids) for row in rows], self.limits.pass_tokens):
                fitting = [rows[i] for i in part]
                turns = self._turns(dict.fromkeys(requests[row][0].key for row in fitting))
                for turn in sorted(set(turns.values())):
                    passes.append([row for row in fitting if turns[requests[row][0].key] == turn])
        return passes

    def _turns(self, keys: Iterable[str]) -> dict[str, int]:
        """Return the number of the pass in which each task runs: the slots of its shape hold all tasks of that pass."""
        turns: dict[str, int] = {}
        seen: Counter[object] = Counter()
        for key in keys:
            learned = self._known[key]
            shape = self.residents.shape_key(learned)
            turns[key] = seen[shape] // self.residents.capacity(learned)
            seen[shape] += 1
        return turns

    def _pass(self, rows: Sequence[PassRow], held: Mapping[str, Resident], read: Read[Any]) -> list[Any]:
        """Run one pass: for rows of tasks that share the base, or for rows of one task that changes the base."""
        with self.encoder.threads(sum(len(row.segment.ids) for row in rows)):
            return self._run(rows, held, read)

    def _run(self, rows: Sequence[PassRow], held: Mapping[str, Resident], read: Read[Any]) -> list[Any]:
        positions = _positions(held)
        order = sorted(range(len(rows)), key=lambda row: positions[rows[row].key])
        keys = [rows[row].key for row in order]
        runs = _runs(keys)
        segments = [rows[row].segment for row in order]
        compiled = all(self.compiles(method) for method in self._methods(rows, held))
        filling = [] if compiled else self._filling(segments, held.values())
        batch = pack(segments + filling, self.encoder.device)
        residents = [held.get(keys[run[0]] or "") for run in runs]
        weights = residents[0].weights if residents[0] is not None else {}
        above = None if weights else self._shared(segments + filling, keys + keys[-1:] * len(filling), held, compiled)
        groups = self._groups(runs, residents, len(filling))
        states = self.encoder.forward(batch, groups, weights=weights, above=above, compiled=compiled)
        wanted = {"mean" if r is None else r.learned.head.pooling for r in residents}
        wanted |= {vector_pooling(held.get(row.key or "")) for row in rows if row.embed}
        pooled = {pooling: pool(states, batch, pooling) for pooling in sorted(wanted)}
        out: list[Any] = [None] * len(rows)
        for run, resident in zip(runs, residents, strict=True):
            vectors = [i for i in run if rows[order[i]].embed]
            for i in vectors:
                out[order[i]] = pooled[vector_pooling(resident)][i].cpu().numpy()
            if resident is None or len(vectors) == len(run):
                continue
            first, last = run[0], run[-1] + 1
            if resident.learned.head.pooling == "none":  # the head reads every token
                first, last = batch.offsets[first], batch.offsets[last]
            own = [segments[i] for i in run]
            logits = self._logits(resident, pooled[resident.learned.head.pooling][first:last], weights, own)
            for i, output in zip(run, read(resident, logits, own), strict=True):
                if not rows[order[i]].embed:
                    out[order[i]] = output
        return out

    def _methods(self, rows: Sequence[PassRow], held: Mapping[str, Resident]) -> set[Method | None]:
        """Return the methods of a pass; None: it has rows of the plain base."""
        keys = {row.key for row in rows}
        return {None if key is None else held[key].learned.method for key in keys}

    def _filling(self, segments: Sequence[Segment], residents: Iterable[Resident]) -> list[Segment]:
        """Return a segment, if one is needed, with which the pass has one of few sizes: new sizes take longer. It
        belongs to the last task of the pass, and nothing reads its states."""
        if self.encoder.device.type != "cpu" or self._by_length or not onednn.available():
            return []
        if any(resident.learned.method.position_offset for resident in residents):
            return []  # the base may have too few positions behind the offset
        tokens = sum(len(segment.ids) for segment in segments)
        lacking = min(onednn.size_for(tokens) - tokens, self.encoder.max_length)
        return [Segment([0] * lacking)] if lacking else []

    def logits_with_gradients(self, resident: Resident, batch: Batch, segments: Sequence[Segment]) -> Tensor:
        """Return the logits of rows of one task, with gradients where they are enabled."""
        groups = self._groups([range(batch.rows)], [resident])
        states = self.encoder.forward(batch, groups, weights=resident.weights)
        rows = pool(states, batch, resident.learned.head.pooling)
        return self._logits(resident, rows, resident.weights, segments)

    def _shared(
        self, segments: Sequence[Segment], keys: Sequence[str | None], held: Mapping[str, Resident], compiled: bool
    ) -> tuple[int, Tensor] | None:
        """Compute the layers that rows of one text share; return the layer above them and the states [N, d] that enter
        it. None: no rows share any."""
        methods = {key: held[key].learned.method if key is not None else None for key in keys}
        shared = shared_trunk(segments, keys, methods, self.encoder.shape)
        if shared is None:
            return None
        batch = pack([segments[row] for row in shared.rows], self.encoder.device)
        below = [keys[row] for row in shared.rows]
        runs = _runs(below)
        groups = self._groups(runs, [held.get(below[run[0]] or "") for run in runs])
        states = self.encoder.states_below(batch, shared.layer, groups, compiled=compiled)
        return shared.layer, shared.expanded(states, batch)

    def _groups(
        self, runs: Sequence[Sequence[int]], residents: Sequence[Resident | None], filling: int = 0
    ) -> list[Group]:
        """Return one group for each method shape, with the runs of rows of its tasks; `filling`: further rows at the
        end."""
        groups = []
        runs = [*runs[:-1], range(runs[-1][0], runs[-1][-1] + 1 + filling)]
        pairs = [(run, r.held) for run, r in zip(runs, residents, strict=True) if r is not None and r.held is not None]
        for _, of_shape in groupby(pairs, key=lambda pair: tables(pair[1])):
            members = list(of_shape)
            owners = [held for _, held in members]
            slots, counts = tuple(held.slot for held in owners), tuple(len(run) for run, _ in members)
            method, shape = owners[0].method, self.encoder.shape
            parts = parts_of(owners, shape)
            groups.append(
                Group(method, method.places(shape), owners[0].tensors, members[0][0][0], slots, counts, parts)
            )
        return groups

    def _logits(
        self, resident: Resident, rows: Tensor, weights: Mapping[str, Tensor], segments: Sequence[Segment]
    ) -> Tensor:
        method = resident.learned.method
        own = resident.own() if method.touches_rows or method.inverts_words else {}
        return resident.learned.head.logits(
            resident.head_tensors,
            resident.learned.task_kind.read(rows, segments),
            self.encoder,
            own=lambda x: method.pooled(own, x),
            pooler=pooler_instead(self.encoder, own, weights),
            weights=weights,
            words=lambda x: method.words(own, x),
        )


def _runs(keys: Sequence[str | None]) -> list[list[int]]:
    """Return one run of consecutive rows for each task."""
    return [list(run) for _, run in groupby(range(len(keys)), key=lambda row: keys[row])]


def predictions(resident: Resident, logits: Tensor, segments: Sequence[Segment]) -> list[np.ndarray]:
    """Return the probabilities (or the score) of each row, or of its tokens."""
    return resident.learned.task_kind.predictions(logits, segments)


def raw_outputs(resident: Resident, logits: Tensor, segments: Sequence[Segment]) -> list[np.ndarray]:
    """Return the logits of each row, from which the callers' threads compute probabilities; for heads that read tokens,
    the probabilities of each row's tokens."""
    kind = resident.learned.task_kind
    return kind.predictions(logits, segments) if kind.reads_tokens else list(logits.float().cpu().numpy())


def vector_pooling(resident: Resident | None) -> Any:
    """Return how a row's tokens become its vector: as the task's head reads them, or their mean."""
    pooling = "mean" if resident is None else resident.learned.head.pooling
    return "mean" if pooling in ("mean", "none") else "cls"


def _positions(held: Mapping[str, Resident]) -> dict[str | None, tuple[int, tuple[int, ...], int]]:
    """Return a sort key for each task: tasks of one shape together, and in it tasks that are built on the same inlays;
    rows of the plain base last."""
    shapes: dict[object, int] = {}
    positions: dict[str | None, tuple[int, tuple[int, ...], int]] = {}
    for number, (key, resident) in enumerate(held.items()):
        shape = key if resident.held is None else tables(resident.held)
        built_on = () if resident.held is None else resident.held.parent_slots
        positions[key] = shapes.setdefault(shape, len(shapes)), built_on, number
    positions[None] = (len(held), (), 0)
    return positions
