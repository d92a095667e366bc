"""Steps of many runs of one shape as passes of fixed shape, recorded once (a CUDA graph) and replayed.

A method that has weights of its own in place of the base's (full and sparse fine-tuning) has a stack of one slot, and
another one in each of its phases.

All runs of a stack that have a batch take their step in one pass: its tokens and tables are copied to fixed addresses,
the recorded kernels run (the frozen base in its own precision, each slot's tensors by grouped products, the losses, the
gradients, the optimizer over all slots), and the losses come back when they are ready. The host prepares the next pass
meanwhile.
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

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.routed import Group
from intarsia.encoder.static_shape import DeviceNoise, DeviceOwners, StaticBatch
from intarsia.kernels import LONGEST, available
from intarsia.methods import Spec, to_dict
from intarsia.methods.method import Phase
from intarsia.tasks.heads import Head
from intarsia.tasks.kind_registry import kind_for
from intarsia.train.device_tables import DeviceTables, Share, aligned, fixed_size
from intarsia.train.head_losses import KINDS, HeadLosses
from intarsia.train.job import Job
from intarsia.train.recorded_passes import RecordedPass, RecordedPasses
from intarsia.train.run import Run, head_specs
from intarsia.train.stepper import RowPredictions
from intarsia.train.token_losses import TOKEN_KINDS, TokenLosses
from intarsia.train.training_slots import TrainingSlots

ALIGN = 32  # tokens of a tile; a slot's tokens begin at a multiple …
WIDE_ALIGN, MANY = 64, 768  # … or of this, where a slot has so many in a step, or large adapters (wider products)
SMALL_HEAD = 32  # outputs: smaller heads are padded to so many, larger ones to the next power of two
ROW = 64  # a slot's parameters are padded to a multiple: kernels load several at once from such addresses alone
TOKENS = 32768  # of a pass, in the mean; one with long texts may have twice as many
EVALUATION = 16384  # tokens of a pass that only answers


def can_record(job: Job, encoder: Encoder) -> bool:
    """Whether passes of this job can be recorded; the others are taken one by one, with the same results."""
    method, shape = job.method, encoder.shape
    if method.changes_base and job.pooling == "pooler":  # the base's own, which is trained too
        return False
    return (
        available()
        and job.data.kind in (*KINDS, *TOKEN_KINDS)  # a head over all words is not in the passes
        and encoder.dtype in (torch.float32, torch.bfloat16)
        and shape.recordable
        and method.recordable(shape)
        and not method.touches_rows  # the head reads rows as they are pooled
        and job.settings.max_length <= LONGEST
        and job.settings.trunk_dropout  # stored states are for other passes
    )


def shape_key(job: Job) -> tuple[Any, ...]:
    """Jobs of one key fit into one stack."""
    s = job.settings
    read = (job.data.kind, s.max_length) if job.data.kind in TOKEN_KINDS else job.pooling
    return str(to_dict(job.method.in_slots_of())), read, s.batch_size, s.adam, s.dropout, _outputs(job)


def _outputs(job: Job) -> int:
    if job.data.kind in TOKEN_KINDS:
        return kind_for(job.data).outputs
    if job.method.changes_base:  # alone in its stack
        return 1 if job.data.kind == "score" else len(job.data.labels)
    return max(SMALL_HEAD, 1 << (max(1, len(job.data.labels)) - 1).bit_length())


class GraphStepper:
    """A stack of runs of one shape, and the passes recorded for them."""

    def __init__(self, job: Job, encoder: Encoder, wanted: int) -> None:
        self.encoder, self.key = encoder, shape_key(job)
        self.method, self.pooling, self.settings = job.method.in_slots_of(), job.pooling, job.settings
        shape = encoder.shape
        self.reads_tokens = job.data.kind in TOKEN_KINDS
        self.kind, self.wanted = job.data.kind, wanted
        self.each, self.outputs = job.settings.batch_size, _outputs(job)
        self.head_specs = head_specs(job, Head(self.outputs, "none" if self.reads_tokens else job.pooling), shape)
        first = self.method.phases(shape)[0]
        self.phase, self.kept = first.name, dict[str, Tensor]()
        self._build(first)
        self.places = self.method.places(shape)
        self.passes = RecordedPasses()
        self.longest, self.align = ALIGN, 0
        self.tokens = tokens_a_pass(encoder)  # once: what it takes itself must not count against it
        self.most = 2 * self.tokens
        self.pending: deque[tuple[Any, Tensor, list[tuple[Run, int]]]] = deque()

    def _build(self, phase: Phase) -> None:
        """A stack for a phase's tensors and for heads."""
        encoder, exclusive = self.encoder, self.method.changes_base
        specs = {f"method.{k}": v for k, v in phase.specs.items()} | self.head_specs
        size = sum(spec.size for spec in specs.values())
        if not exclusive and (lacking := -size % ROW):
            specs["padding"] = Spec((lacking,), "zeros", trained=False)
        # Where a phase's tensors are the weights as they are, nothing but their values in the base's precision is used.
        whole = exclusive and not phase.exact and all(spec.parameter is not None for spec in phase.specs.values())
        slots = 1 if exclusive else _slots(self.wanted, size, encoder)
        self.training_slots = TrainingSlots(
            specs, slots, self.settings.adam, encoder, low_precision=whole or not exclusive
        )
        if self.reads_tokens:
            longest = self.settings.max_length
            self.heads: HeadLosses = TokenLosses(
                self.kind, self.training_slots, encoder, self.each, self.outputs, longest
            )
        else:
            self.heads = HeadLosses(self.training_slots, encoder, self.pooling, self.each, self.outputs)
        self.low_precision = self.training_slots.slots.views(self.training_slots.low_precision)
        self.leaves = self.training_slots.leaves
        if whole:
            own = {k: v.detach().requires_grad_() for k, v in self.low_precision.items() if k.startswith("method.")}
            self.leaves = self.leaves | own

    def slots_for(self, run: Run) -> TrainingSlots:
        """What a run takes a slot of, in the phase that it enters: one that is alone here gets a new stack for it."""
        if run.phase.name != self.phase or run.kept or self.kept:
            self.passes.clear()  # they compute with what the last phase kept
            self.phase, self.kept = run.phase.name, run.kept
            self._build(run.phase)
        return self.training_slots

    def accepts(self, job: Job) -> bool:
        return shape_key(job) == self.key and can_record(job, self.encoder)

    def step(self, pairs: Sequence[tuple[Run, Sequence[int]]]) -> None:
        """One optimizer step of each run on its own rows; in several passes where one would be too large."""
        own = [int(run.tokens["train"].lengths[np.asarray(rows)].sum()) for run, rows in pairs]
        parts = -(-sum(own) // self.most)
        ends = np.minimum(np.cumsum(own) * parts // max(1, sum(own) + 1), parts - 1)  # parts of about one size
        with self._on_device():
            for part in range(parts):
                some = [pair for pair, end in zip(pairs, ends, strict=True) if end == part]
                if some:
                    self._step(some)

    def _on_device(self) -> AbstractContextManager[Any]:
        device = self.encoder.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _step(self, pairs: Sequence[tuple[Run, Sequence[int]]]) -> None:
        shares = [Share(run.slot, run.tokens["train"], np.asarray(rows), _seed(run)) for run, rows in pairs]
        found = self._pass(shares, training=True)
        found.tables.fill(shares)
        self.heads.fill([(run, share.rows) for (run, _), share in zip(pairs, shares, strict=True)])
        found.run()
        losses, ready = self.heads.fetch()
        self.pending.append((ready, losses, [(run, run.slot) for run, _ in pairs]))
        for run, rows in pairs:
            run.advance(rows)

    def losses(self, *, wait: bool = False) -> Iterator[tuple[Run, float]]:
        """Of the steps taken, as far as they are known by now (`wait`: of all); each once, in their order."""
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
        """What each run says of each row of a part: probabilities (or scores), or those of each token."""
        logits: list[list[Tensor]] = [[] for _ in runs]
        with self._on_device():
            for chunk in _chunks(runs, part):
                shares = [Share(runs[i].slot, runs[i].tokens[part], rows) for i, rows in chunk]
                found = self._pass(shares, training=False)
                found.tables.fill(shares)
                states, at = found.run(), 0  # a vector a row, or a token
                for i, rows in chunk:
                    own = int(runs[i].tokens[part].lengths[rows].sum()) if self.reads_tokens else len(rows)
                    logits[i].append(runs[i].head_logits(states[at : at + own].float(), {}, None))
                    at += aligned(own, self.align) if self.reads_tokens else own
        return [
            self._predictions(run, part, torch.cat(own)) for run, own in zip(runs, logits, strict=True)
        ]  # waits here only

    def _predictions(self, run: Run, part: str, logits: Tensor) -> RowPredictions:
        predictions = run.task_kind.predictions(logits, run.tokens[part].segments if self.reads_tokens else [])
        return predictions if self.reads_tokens else np.stack(predictions)

    def _pass(self, shares: Sequence[Share], *, training: bool) -> RecordedPass:
        longest = max(share.tokens.longest for share in shares)
        own = [int(share.tokens.lengths[share.rows].sum()) for share in shares]
        if longest > self.longest or not self.align:
            self.align = self.align or self._aligned_to(shares)
            self.longest = max(self.align, 1 << (longest - 1).bit_length())
            self.passes.clear()
        size = fixed_size(sum(aligned(tokens, self.align) for tokens in own))
        return self.passes.fitting(size, training, self._train_in if training else self._answer_in)

    def _aligned_to(self, shares: Sequence[Share]) -> int:
        if self.method.wide:
            return WIDE_ALIGN
        mean = np.mean([share.tokens.lengths.mean() for share in shares])
        return WIDE_ALIGN if mean * self.each >= MANY else ALIGN

    def _train_in(self, size: int) -> tuple[DeviceTables, Callable[[], Any]]:
        tables = self._tables(size, self.training_slots.slots.capacity * self.each, self.each)
        return tables, lambda: self._train(tables)

    def _answer_in(self, size: int) -> tuple[DeviceTables, Callable[[], Any]]:
        tables = self._tables(size, size // 2, None)
        return tables, lambda: self._answer(tables)

    def _tables(self, size: int, rows: int, each: int | None) -> DeviceTables:
        return DeviceTables(
            size, self.training_slots.slots.capacity, rows, each, self.align, self.longest, self.encoder.device
        )

    def _forward(self, tables: DeviceTables, noise: DeviceNoise | None, leaves: dict[str, Tensor]) -> Tensor:
        low_precision = {k.removeprefix("method."): v for k, v in self.low_precision.items() if k.startswith("method.")}
        runs = DeviceOwners(tables.layout(), low_precision)
        batch = StaticBatch(tables["ids"], tables["types"], tables["positions"], runs)
        tensors = {k.removeprefix("method."): v for k, v in leaves.items() if k.startswith("method.")}
        training, encoder = noise is not None, self.encoder
        if self.method.changes_base:
            own = {name: tensor.squeeze(0) for name, tensor in tensors.items()}  # without a copy of its gradient
            weights = self.method.weights(self.phase, encoder.shape, own, self.kept, encoder.weights, noise)
            weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
            return encoder.forward(batch, training=training, noise=noise, weights=weights)
        group = Group(self.method, self.places, tensors, 0, (), ())
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
        """What the method adds to the loss."""
        if not self.method.changes_base:
            return None
        own = {k.removeprefix("method."): v.squeeze(0) for k, v in leaves.items() if k.startswith("method.")}
        return self.method.penalty(self.phase, self.encoder.shape, own, self.kept, self.encoder.weights, noise)

    @torch.no_grad()
    def _answer(self, tables: DeviceTables) -> Tensor:
        from intarsia.kernels import rows

        states = self._forward(tables, None, {k: v.detach() for k, v in self.leaves.items()})
        if self.reads_tokens:
            return states
        return rows.pool(states, tables.rows, self.pooling == "mean", tables.layout())


def tokens_a_pass(encoder: Encoder) -> int:
    """More do not make a pass more efficient; or as many as half of the free memory holds."""
    if encoder.device.type != "cuda":
        return TOKENS
    free, _ = torch.cuda.mem_get_info(encoder.device)
    shape, size = encoder.shape, encoder.dtype.itemsize
    a_token = shape.layers * 24 * shape.width * size  # some two dozen vectors a layer are kept for the way back
    return max(1024, min(TOKENS, int(free / 4 / a_token)))


def _slots(wanted: int, size: int, encoder: Encoder) -> int:
    """As many as asked for, or as a third of the free memory holds: a slot is some seven rows of floats."""
    if encoder.device.type != "cuda":
        return wanted
    free, _ = torch.cuda.mem_get_info(encoder.device)
    return max(1, min(wanted, int(free / 3 / (size * 28))))


def _seed(run: Run) -> int:
    """Of the dropout of a run's next step: its own, whatever else is in the pass."""
    digest = hashlib.blake2b(f"{run.job.settings.seed} {run.state.step}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little", signed=True)


def _chunks(runs: Sequence[Run], part: str) -> Iterator[list[tuple[int, np.ndarray]]]:
    """The rows of all runs, in passes of `EVALUATION` tokens: (which run, its rows), a run once in each."""
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
