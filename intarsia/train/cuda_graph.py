"""The stepper for GPUs: it records passes of fixed shape as CUDA graphs and replays them for many runs of one shape.

One pass takes one optimizer step of every active run. The host copies tokens and tables to fixed addresses. The
recorded kernels then compute the frozen base in its own precision, each slot's tensors by grouped products, the losses,
the gradients, and the optimizer step of all slots. The losses are read back asynchronously, and the host prepares the
next pass meanwhile.

A method that replaces the base's weights (full and sparse fine-tuning) has a single slot, which is built anew for each
of its phases.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.device_tables import DeviceTables, Share, aligned, fixed_size
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.recorded_passes import RecordedPass, RecordedPasses
from intarsia.encoder.routed import Group
from intarsia.encoder.static_shape import DeviceNoise, DeviceOwners, StaticBatch
from intarsia.kernels import LONGEST, available
from intarsia.methods import Spec, to_dict
from intarsia.methods.held import Held, parts_of
from intarsia.methods.method import Phase
from intarsia.tasks.heads import Head
from intarsia.tasks.kind_registry import kind_for
from intarsia.train.frozen_parents import FrozenParents
from intarsia.train.head_losses import KINDS, HeadLosses
from intarsia.train.job import Job
from intarsia.train.run import Run, head_specs
from intarsia.train.stepper import RowPredictions
from intarsia.train.token_losses import TOKEN_KINDS, TokenLosses
from intarsia.train.training_slots import TrainingSlots

ALIGN = 32  # tokens per tile; each slot's tokens begin at a multiple of this number
WIDE_ALIGN = 64  # the same for methods with wide products, and for slots with many tokens in a step
MANY = 768  # tokens of a slot in a step, from which `WIDE_ALIGN` is used
SMALL_HEAD = 32  # outputs; smaller heads are padded to this number, larger heads to the next power of two
ROW = 64  # a slot's parameters are padded to a multiple of this number, because vector loads need aligned addresses
TOKENS = 32768  # the target size of a pass; a pass with long texts may have twice as many tokens
EVALUATION = 16384  # the number of tokens of a pass that only predicts


def can_record(job: Job, encoder: Encoder) -> bool:
    """Return whether passes of this job can be recorded. Other jobs take eager steps, with the same results."""
    method, shape = job.method, encoder.shape
    if method.changes_base and job.pooling == "pooler":  # the job also trains the base's pooler
        return False
    return (
        available()
        and job.data.kind in (*KINDS, *TOKEN_KINDS)  # recorded passes have no head over the vocabulary
        and encoder.dtype in (torch.float32, torch.bfloat16)
        and shape.recordable
        and method.recordable(shape)
        and job.hidden is None
        and not method.touches_rows  # here the head reads the rows as pooled
        and job.settings.max_length <= LONGEST
        and job.settings.trunk_dropout  # a cached trunk needs eager passes
    )


def shape_key(job: Job) -> tuple[Any, ...]:
    """Return a key that is equal for jobs which fit into slots of one shape."""
    s = job.settings
    head_input = (job.data.kind, s.max_length) if job.data.kind in TOKEN_KINDS else job.pooling
    return str(to_dict(job.method.in_slots_of())), head_input, s.batch_size, s.adam, s.dropout, _outputs(job)


def _outputs(job: Job) -> int:
    """Return the number of the head's outputs, with padding."""
    if job.data.kind in TOKEN_KINDS:
        return kind_for(job.data).outputs
    if job.method.changes_base:  # it shares its slots with no other job
        return 1 if job.data.kind == "score" else len(job.data.labels)
    return max(SMALL_HEAD, 1 << (max(1, len(job.data.labels)) - 1).bit_length())


class GraphStepper:
    """The training slots of runs of one shape, and the passes recorded for them."""

    def __init__(self, job: Job, encoder: Encoder, requested_slots: int, parents: FrozenParents | None = None) -> None:
        """`job`: the first job; later jobs must have its shape. If memory is short, there are fewer slots. `parents`:
        the frozen inlays of all runs."""
        self.encoder, self.key = encoder, shape_key(job)
        self.method, self.pooling, self.settings = job.method.in_slots_of(), job.pooling, job.settings
        self.parents = (parents or FrozenParents(encoder)).of(job.method, job.parents)
        shape = encoder.shape
        self.reads_tokens = job.data.kind in TOKEN_KINDS
        self.kind, self.requested_slots = job.data.kind, requested_slots
        self.batch_size, self.outputs = job.settings.batch_size, _outputs(job)
        self.head_specs = head_specs(job, Head(self.outputs, "none" if self.reads_tokens else job.pooling), shape)
        first = self.method.phases(shape)[0]
        self.phase, self.kept = first.name, dict[str, Tensor]()
        self._build(first)
        self.places = self.method.places(shape)
        self.built_on = Held(self.method, {}, 0, self.parents).parent_slots
        self.passes = RecordedPasses()
        self.longest, self.align = ALIGN, 0
        self.tokens = tokens_a_pass(encoder)  # measured once, before this stepper itself takes memory
        self.max_tokens = 2 * self.tokens
        self.pending: deque[tuple[Any, Tensor, list[tuple[Run, int]]]] = deque()

    def _build(self, phase: Phase) -> None:
        """Allocate slots for the tensors of a phase and for the heads."""
        encoder, exclusive = self.encoder, self.method.changes_base
        specs = {f"method.{k}": v for k, v in phase.specs.items()} | self.head_specs
        size = sum(spec.size for spec in specs.values())
        if not exclusive and (lacking := -size % ROW):
            specs["padding"] = Spec((lacking,), "zeros", trained=False)
        # If the tensors of a phase are plain weights, only their values in the base's precision are used.
        whole = exclusive and not phase.exact and all(spec.parameter is not None for spec in phase.specs.values())
        slots = 1 if exclusive else _slots(self.requested_slots, size, encoder)
        self.training_slots = TrainingSlots(
            specs, slots, self.settings.adam, encoder, low_precision=whole or not exclusive
        )
        if self.reads_tokens:
            longest = self.settings.max_length
            self.heads: HeadLosses = TokenLosses(
                self.kind, self.training_slots, encoder, self.batch_size, self.outputs, longest
            )
        else:
            self.heads = HeadLosses(self.training_slots, encoder, self.pooling, self.batch_size, self.outputs)
        self.low_precision = self.training_slots.slots.views(self.training_slots.low_precision)
        self.leaves = self.training_slots.leaves
        if whole:
            own = {k: v.detach().requires_grad_() for k, v in self.low_precision.items() if k.startswith("method.")}
            self.leaves = self.leaves | own

    def slots_for(self, run: Run) -> TrainingSlots:
        """Return the training slots for the phase that a run enters; a run with several phases gets new slots."""
        if run.phase.name != self.phase or run.kept or self.kept:
            self.passes.clear()  # they use the tensors kept from the last phase
            self.phase, self.kept = run.phase.name, run.kept
            self._build(run.phase)
        return self.training_slots

    def accepts(self, job: Job) -> bool:
        """Return whether a job fits into these slots."""
        return shape_key(job) == self.key and can_record(job, self.encoder)

    def step(self, pairs: Sequence[tuple[Run, Sequence[int]]]) -> None:
        """Take one optimizer step of each run on its own rows, in several passes if one pass would be too large."""
        sizes = [int(run.tokens["train"].lengths[np.asarray(rows)].sum()) for run, rows in pairs]
        parts = -(-sum(sizes) // self.max_tokens)
        part_of = np.minimum(np.cumsum(sizes) * parts // max(1, sum(sizes) + 1), parts - 1)  # parts of similar size
        with self._on_device():
            for part in range(parts):
                in_part = [pair for pair, number in zip(pairs, part_of, strict=True) if number == part]
                if in_part:
                    self._step(in_part)

    def _on_device(self) -> AbstractContextManager[Any]:
        device = self.encoder.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _step(self, pairs: Sequence[tuple[Run, Sequence[int]]]) -> None:
        shares = [
            Share(run.slot, run.tokens["train"], np.asarray(rows), _seed(run), self.built_on) for run, rows in pairs
        ]
        recorded = self._pass(shares, training=True)
        recorded.tables.fill(shares)
        self.heads.fill([(run, share.rows) for (run, _), share in zip(pairs, shares, strict=True)])
        recorded.run()
        losses, ready = self.heads.fetch()
        self.pending.append((ready, losses, [(run, run.slot) for run, _ in pairs]))
        for run, rows in pairs:
            run.advance(rows)

    def losses(self, *, wait: bool = False) -> Iterator[tuple[Run, float]]:
        """Yield the losses of the steps taken, each once and in order; without `wait`, only those already computed."""
        while self.pending:
            ready, losses, runs = self.pending[0]
            if ready is not None and not ready.query():
                if not wait:
                    return
                ready.synchronize()
            self.pending.popleft()
            values = losses.tolist()
            for run, slot in runs:
                yield run, values[slot]

    @torch.no_grad()
    def predict(self, runs: Sequence[Run], part: str) -> list[RowPredictions]:
        """Return each run's predictions for the rows of a part: probabilities or scores, per row or per token."""
        logits: list[list[Tensor]] = [[] for _ in runs]
        with self._on_device():
            for chunk in _chunks(runs, part):
                shares = [Share(runs[i].slot, runs[i].tokens[part], rows, 0, self.built_on) for i, rows in chunk]
                recorded = self._pass(shares, training=False)
                recorded.tables.fill(shares)
                states, at = recorded.run(), 0  # [rows or tokens, width]
                for i, rows in chunk:
                    count = int(runs[i].tokens[part].lengths[rows].sum()) if self.reads_tokens else len(rows)
                    logits[i].append(runs[i].head_logits(states[at : at + count].float(), {}, None))
                    at += aligned(count, self.align) if self.reads_tokens else count
        # Only this last line waits for the GPU.
        return [self._predictions(run, part, torch.cat(chunks)) for run, chunks in zip(runs, logits, strict=True)]

    def _predictions(self, run: Run, part: str, logits: Tensor) -> RowPredictions:
        predictions = run.task_kind.predictions(logits, run.tokens[part].segments if self.reads_tokens else [])
        return predictions if self.reads_tokens else np.stack(predictions)

    def _pass(self, shares: Sequence[Share], *, training: bool) -> RecordedPass:
        """Return a recorded pass that is large enough for these shares."""
        longest = max(share.tokens.longest for share in shares)
        sizes = [int(share.tokens.lengths[share.rows].sum()) for share in shares]
        if longest > self.longest or not self.align:
            self.align = self.align or self._alignment(shares)
            self.longest = max(self.align, 1 << (longest - 1).bit_length())
            self.passes.clear()
        size = fixed_size(sum(aligned(tokens, self.align) for tokens in sizes))
        return self.passes.fitting(size, training, self._training_pass if training else self._prediction_pass)

    def _alignment(self, shares: Sequence[Share]) -> int:
        if self.method.wide:
            return WIDE_ALIGN
        mean = np.mean([share.tokens.lengths.mean() for share in shares])
        return WIDE_ALIGN if mean * self.batch_size >= MANY else ALIGN

    def _training_pass(self, size: int) -> tuple[DeviceTables, Callable[[], Any]]:
        tables = self._tables(size, self.training_slots.slots.capacity * self.batch_size, self.batch_size)
        return tables, lambda: self._train(tables)

    def _prediction_pass(self, size: int) -> tuple[DeviceTables, Callable[[], Any]]:
        tables = self._tables(size, size // 2, None)
        return tables, lambda: self._predict(tables)

    def _tables(self, size: int, rows: int, batch_size: int | None) -> DeviceTables:
        # Each frozen inlay is alone in its table.
        return DeviceTables(
            size, self.training_slots.slots.capacity, rows, batch_size, self.align, self.longest, self.encoder.device,
            [1] * len(self.built_on),
        )  # fmt: skip

    def _forward(self, tables: DeviceTables, noise: DeviceNoise | None, leaves: dict[str, Tensor]) -> Tensor:
        low_precision = {k.removeprefix("method."): v for k, v in self.low_precision.items() if k.startswith("method.")}
        layouts = tables.layouts()
        owners = DeviceOwners(layouts[0], low_precision, layouts)
        batch = StaticBatch(tables["ids"], tables["types"], tables["positions"], owners)
        tensors = {k.removeprefix("method."): v for k, v in leaves.items() if k.startswith("method.")}
        training, encoder = noise is not None, self.encoder
        if self.method.changes_base:
            own = {name: tensor.squeeze(0) for name, tensor in tensors.items()}  # views: no copy of the gradient
            weights = self.method.weights(self.phase, encoder.shape, own, self.kept, encoder.weights, noise)
            weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
            return encoder.forward(batch, training=training, noise=noise, weights=weights)
        parts = parts_of([Held(self.method, tensors, 0, self.parents, low_precision)], encoder.shape)
        group = Group(self.method, self.places, tensors, 0, (), (), parts)
        return encoder.forward(batch, [group], training=training, noise=noise)

    def _train(self, tables: DeviceTables) -> None:
        from intarsia.kernels import adam

        training_slots, leaves = self.training_slots, self.leaves
        noise = DeviceNoise(tables.layout(), dropout=self.settings.dropout)
        with torch.enable_grad():
            states = self._forward(tables, noise, leaves)
            losses = self.heads.losses(states, tables, noise, leaves)
            penalty = self._penalty(leaves, noise)
            gradient = training_slots.slots.gradient(
                losses.sum() if penalty is None else losses.sum() + penalty, leaves
            )
        s = training_slots.adam.settings
        copy = None if training_slots.low_precision is training_slots.slots.buffer else training_slots.low_precision
        norms = torch.linalg.vector_norm(gradient, dim=1)
        adam.step(
            training_slots.slots.buffer, copy, gradient, training_slots.adam.first,
            training_slots.adam.second, training_slots.adam.decay, training_slots.adam.factors, self.heads["rates"],
            self.heads["corrections"], norms, tables["active"],
            betas=(s.beta1, s.beta2), eps=s.eps, clip=s.clip,
        )  # fmt: skip

    def _penalty(self, leaves: Mapping[str, Tensor], noise: DeviceNoise) -> Tensor | None:
        """Return the term that the method adds to the loss, or None."""
        own = {k.removeprefix("method."): v for k, v in leaves.items() if k.startswith("method.")}
        if self.method.changes_base:
            own = {name: tensor.squeeze(0) for name, tensor in own.items()}
        return self.method.penalty(self.phase, self.encoder.shape, own, self.kept, self.encoder.weights, noise)

    @torch.no_grad()
    def _predict(self, tables: DeviceTables) -> Tensor:
        from intarsia.kernels import rows

        states = self._forward(tables, None, {k: v.detach() for k, v in self.leaves.items()})
        if self.reads_tokens:
            return states
        return rows.pool(states, tables.rows, self.pooling == "mean", tables.layout())


def tokens_a_pass(encoder: Encoder) -> int:
    """Return the target size of a pass: `TOKENS`, or fewer if a quarter of the free memory does not hold them."""
    if encoder.device.type != "cuda":
        return TOKENS
    free, _ = torch.cuda.mem_get_info(encoder.device)
    shape, size = encoder.shape, encoder.dtype.itemsize
    token_bytes = shape.layers * 24 * shape.width * size  # backward needs about two dozen vectors per layer
    return max(1024, min(TOKENS, int(free / 4 / token_bytes)))


def _slots(requested: int, size: int, encoder: Encoder) -> int:
    """Return the number of slots: as requested, or fewer if a third of the free memory does not hold them.

    A slot takes about seven float32 rows of `size` parameters: weights, gradient, optimizer state and copies.
    """
    if encoder.device.type != "cuda":
        return requested
    free, _ = torch.cuda.mem_get_info(encoder.device)
    return max(1, min(requested, int(free / 3 / (size * 28))))


def _seed(run: Run) -> int:
    """Return the dropout seed of a run's next step. It does not depend on the other runs in the pass."""
    digest = hashlib.blake2b(f"{run.job.settings.seed} {run.state.step}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little", signed=True)


def _chunks(runs: Sequence[Run], part: str) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Split the rows of all runs into passes of `EVALUATION` tokens; yield lists of (index of the run, its rows)."""
    chunk: list[tuple[int, np.ndarray]] = []
    room = EVALUATION
    for i, run in enumerate(runs):
        lengths = run.tokens[part].lengths
        first = 0
        while first < len(lengths):
            fits = int(np.searchsorted(np.cumsum(lengths[first:]), room - WIDE_ALIGN, side="right"))
            if fits == 0:
                yield chunk
                chunk, room = [], EVALUATION
                continue
            rows = np.arange(first, first + fits)
            chunk.append((i, rows))
            room -= aligned(int(lengths[rows].sum()), WIDE_ALIGN)
            first += fits
    if chunk:
        yield chunk
