"""A job being trained: its tensors, optimizer and state; and passes that several jobs share.

Every job owns the tokens of its own batch. The base is frozen, so the gradient of the sum of all losses by a job's
tensors is the gradient of its own loss: jobs together end where each would have ended alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.load import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, Segment, by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots, start
from intarsia.errors import IntarsiaError
from intarsia.methods import Method
from intarsia.tasks.examples import Example
from intarsia.tasks.heads import Head, pool, pooler_instead
from intarsia.tasks.kinds import Answers
from intarsia.tasks.metrics import check_metric, default_metric, score
from intarsia.train import checkpoint
from intarsia.train.features import pooled_states
from intarsia.train.job import Job
from intarsia.train.optimizer import Adam, linear_rate

TOKENS_A_PASS = 4096  # of evaluation


def runs_alone(method: Method) -> bool:
    """Whether it cannot share a pass: it changes the base, or needs no pass at all."""
    return method.changes_base or method.cached


class Diverged(IntarsiaError):
    """A job whose loss is no longer a number."""


@dataclass(frozen=True)
class Trained:
    """What a run ends with: the best checkpoint's tensors, and how it got there."""

    tensors: dict[str, Tensor]  # "method.…" and "head.…"
    head: Head
    answers: Answers
    metric: str
    state: checkpoint.State


class Run:
    """A job in its slot: its tensors, optimizer and state."""

    def __init__(self, job: Job, encoder: Encoder, *, cache: Path | None = None) -> None:
        self.job, self.encoder, self.method = job, encoder, job.method
        data, settings, shape = job.data, job.settings, encoder.shape
        self.method.check(shape)
        self.answers = Answers.learn(data.kind, data.labels, data.train)
        self.head = Head(self.answers.outputs, job.pooling)
        self.metric = settings.metric or default_metric(data.kind, data.labels)
        check_metric(self.metric, data.kind, data.labels)
        self.head_specs = {f"head.{k}": v for k, v in self.head.tensors(shape, self.method.row_width(shape)).items()}
        self.segments = {"train": self._segments(data.train), "dev": self._segments(data.dev)}
        self.stored: dict[str, Tensor] = {}
        if self.method.cached:
            self.stored = {p: pooled_states(encoder, s, job.pooling, cache) for p, s in self.segments.items()}
        self.targets = self.answers.targets(data.train).to(encoder.device)
        self.steps_an_epoch = math.ceil(len(self.segments["train"]) / settings.batch_size)
        self.places = self.method.places(shape)
        self.phases = self.method.phases(shape)
        self.epochs = [max(1, round(settings.epochs * phase.epochs)) for phase in self.phases]
        self.steps = self.steps_an_epoch * sum(self.epochs)
        self.state = checkpoint.State()
        self.enter(0, {}, {})

    def _segments(self, examples: Sequence[Example]) -> list[Segment]:
        return self.encoder.tokenize(
            [e.text for e in examples], [e.pair for e in examples], max_length=self.job.settings.max_length
        )

    def enter(self, phase: int, kept: dict[str, Tensor], starts: dict[str, Tensor]) -> None:
        """Begin a phase: fresh tensors (or `starts`), a fresh optimizer."""
        self.state.phase, self.phase, self.kept = phase, self.phases[phase], kept
        specs = {f"method.{k}": v for k, v in self.phase.specs.items()} | self.head_specs
        exact = self.encoder.dtype == torch.float64  # for proofs; else float32, whatever the base runs in
        dtype = torch.float64 if exact else torch.float32
        self.slots = Slots(specs, 1, device=self.encoder.device, dtype=dtype)
        fresh = start({k: v for k, v in specs.items() if k not in starts}, self.encoder, self.job.settings.seed)
        self.slots.put(0, fresh | starts)
        self.leaves = self.slots.leaves()
        masks = self.slots.mask("decay"), self.slots.mask("rate")
        self.adam = Adam(self.slots.buffer, masks[0], self.job.settings.adam, masks[1])
        self.best = self.slots.buffer.clone() if self.last_phase else self.slots.buffer

    @property
    def last_phase(self) -> bool:
        return self.phase is self.phases[-1]

    @property
    def alone(self) -> bool:
        return runs_alone(self.method)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The leaves of the method [1, …] or of the head, without their prefix."""
        return {k.removeprefix(prefix): v for k, v in self.leaves.items() if k.startswith(prefix)}

    def own(self) -> dict[str, Tensor]:
        """The method's leaves, without the slot."""
        return {name: tensor[0] for name, tensor in self.part("method.").items()}

    def head_logits(self, pooled: Tensor, weights: Mapping[str, Tensor], noise: Noise | None) -> Tensor:
        own = self.own() if self.method.touches_rows else {}
        return self.head.logits(
            {name: tensor[0] for name, tensor in self.part("head.").items()},
            pooled,
            self.encoder,
            noise,
            own=lambda rows: self.method.pooled(own, rows),
            pooler=pooler_instead(self.encoder, own, weights),
        )

    def penalty(self) -> Tensor | None:
        """What the method adds to the loss."""
        if not self.method.changes_base:
            return None
        shape, base = self.encoder.shape, self.encoder.weights
        return self.method.penalty(self.phase.name, shape, self.own(), self.kept, base)

    def logits(self, part: str, rows: Sequence[int], noise: Noise | None = None) -> Tensor:
        """Of these rows of a part of the data."""
        return logits_together([(self, rows)], part, noise)[0]

    def step(self, rows: Sequence[int]) -> float:
        """One optimizer step on these training rows; returns the loss."""
        return step_together([(self, rows)])[0]

    def apply(self, gradient: Tensor, loss: float, rows: Sequence[int]) -> None:
        """The optimizer's step with the gradient [1, parameters] of a batch."""
        s, state = self.job.settings, self.state
        if not math.isfinite(loss):
            raise self.diverged(loss)
        steps = self.steps_an_epoch * self.epochs[state.phase]
        peak = s.learning_rate * self.phase.rate
        rate = linear_rate(state.step - state.phase_step, steps, peak, s.warmup)
        self.adam.step(gradient, torch.tensor([rate], device=gradient.device, dtype=gradient.dtype))
        state.step += 1
        state.tokens += sum(len(self.segments["train"][r].ids) for r in rows)

    def diverged(self, loss: float) -> Diverged:
        return Diverged(
            f"training of {self.job.name!r} diverged at step {self.state.step + 1} of {self.steps}: its loss is "
            f"{loss}. Nothing was stored; try a learning rate below {self.job.settings.learning_rate:g}."
        )

    @torch.no_grad()
    def predict(self, part: str) -> np.ndarray:
        """Probabilities (or scores) of each row of a part, in order, with the present tensors."""
        segments = self.segments[part]
        out = np.empty((len(segments), self.answers.outputs), np.float32)
        for rows in by_token_budget([len(s.ids) for s in segments], TOKENS_A_PASS):
            out[rows] = self.answers.probabilities(self.logits(part, rows))
        return out

    def validate(self) -> float:
        predicted = self.answers.decide(self.predict("dev"))
        return score(self.metric, self.answers.gold(self.job.data.dev), predicted, self.job.data.labels)

    def end_epoch(self, epoch: int, mean_loss: float) -> None:
        state = self.state
        entry: dict[str, Any] = {"epoch": epoch + 1, "step": state.step, "loss": mean_loss}
        state.history.append(entry)
        if len(self.phases) > 1:
            entry["phase"] = self.phase.name
        if not self.last_phase:
            return
        value = entry[self.metric] = self.validate()
        if state.best is None or value >= state.best:  # of equal ones the later, trained longer
            state.best, state.best_epoch = value, epoch + 1
            self.best.copy_(self.slots.buffer)

    def next_phase(self) -> None:
        """Leave a phase that has ended for the one after it."""
        own = {k.removeprefix("method."): v for k, v in self.slots.get(0).items()}
        head = {k: own.pop(k) for k in self.head_specs}
        with torch.no_grad():
            ending = self.method.end_phase(self.phase.name, self.encoder.shape, own, self.kept, self.encoder.weights)
        starts = {f"method.{k}": v for k, v in ending.starts.items()} | (head if ending.keep_head else {})
        state = self.state
        state.phase_step, state.phase_epoch = state.step, len(state.history)
        self.enter(state.phase + 1, {**self.kept, **ending.kept}, starts)

    @property
    def phase_done(self) -> bool:
        patience, state = self.job.settings.patience, self.state
        epoch = len(state.history)
        if epoch - state.phase_epoch >= self.epochs[state.phase]:
            return True
        return self.last_phase and patience is not None and epoch - max(state.best_epoch, state.phase_epoch) >= patience

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        adam = self.adam
        now = {"now": self.slots.buffer, "first": adam.first, "second": adam.second}
        if self.last_phase:  # before it there is no best one
            now["best"] = self.best
        return now | {f"kept.{name}": tensor for name, tensor in self.kept.items()}

    def resume(self, state: checkpoint.State, tensors: dict[str, Tensor]) -> None:
        kept = {k.removeprefix("kept."): v.to(self.encoder.device) for k, v in tensors.items() if k.startswith("kept.")}
        self.state = state
        self.enter(state.phase, kept, {})
        checkpoint.restore(self.tensors(), tensors)

    def result(self) -> Trained:
        self.slots.buffer.copy_(self.best)
        kept = {f"method.{name}": tensor for name, tensor in self.kept.items()}
        return Trained(kept | self.slots.get(0), self.head, self.answers, self.metric, self.state)


Rows = Sequence[tuple[Run, Sequence[int]]]  # runs, and the rows that each has in a pass


def step_together(pairs: Rows) -> list[float]:
    """One optimizer step of each run on its own rows, in one pass through the base; returns the losses.

    A run whose loss is not a number takes no step; the others are untouched by it.
    """
    noise = _noise(pairs)
    logits = logits_together(pairs, "train", noise)
    losses: list[Tensor] = []
    totals: list[Tensor] = []
    for (run, rows), out in zip(pairs, logits, strict=True):
        losses.append(run.answers.loss(out, run.targets[list(rows)]))
        penalty = run.penalty()
        totals.append(losses[-1] if penalty is None else losses[-1] + penalty)
    wanted = [[leaf for leaf in run.leaves.values() if leaf.requires_grad] for run, _ in pairs]
    found = iter(torch.autograd.grad(totals, [leaf for leaves in wanted for leaf in leaves], allow_unused=True))
    gradients = [run.slots.laid_out(run.leaves, found) for run, _ in pairs]
    values = torch.stack([loss.detach() for loss in losses]).tolist()
    wrong: Diverged | None = None
    for (run, rows), gradient, value in zip(pairs, gradients, values, strict=True):
        try:
            run.apply(gradient, value, rows)
        except Diverged as error:
            wrong = error
    if wrong is not None and len(pairs) == 1:
        raise wrong
    return values


def _noise(pairs: Rows) -> Noise:
    """The random numbers of a pass: a function of the jobs in it, their seeds and steps."""
    entropy = [number for run, _ in pairs for number in (run.job.settings.seed, run.state.step)]
    return Noise(entropy, pairs[0][0].encoder.device, dropout=pairs[0][0].job.settings.dropout)


def logits_together(pairs: Rows, part: str, noise: Noise | None = None) -> list[Tensor]:
    """Each run's logits for its own rows of a part of its data."""
    if pairs[0][0].alone:
        return [_logits_alone(run, rows, part, noise) for run, rows in pairs]
    encoder = pairs[0][0].encoder
    batch = pack([run.segments[part][r] for run, rows in pairs for r in rows], encoder.device)
    groups = []
    first = 0
    for run, rows in pairs:
        groups.append(Group(run.method, run.places, run.part("method."), first, (0,), (len(rows),)))
        first += len(rows)
    states = encoder.forward(batch, groups, training=noise is not None, noise=noise)
    out = []
    for group, (run, _) in zip(groups, pairs, strict=True):
        last = group.first + group.rows[0]
        mine = states[batch.offsets[group.first] : batch.offsets[last]]
        out.append(run.head_logits(pool(mine, batch.part(group.first, last), run.job.pooling), {}, noise))
    return out


def _logits_alone(run: Run, rows: Sequence[int], part: str, noise: Noise | None) -> Tensor:
    """Of a run with weights of its own in place of the base's, or one that learns from stored states."""
    encoder, method = run.encoder, run.method
    own = run.own()
    if method.cached:
        return run.head_logits(method.mixed(own, run.stored[part][list(rows)].to(encoder.device)), {}, noise)
    batch: Batch = pack([run.segments[part][r] for r in rows], encoder.device)
    weights = method.weights(run.phase.name, encoder.shape, own, run.kept, encoder.weights, noise)
    states = encoder.forward(batch, training=noise is not None, noise=noise, weights=weights)
    return run.head_logits(pool(states, batch, run.job.pooling), weights, noise)
