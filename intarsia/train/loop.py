"""The one training loop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.load import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Segment, by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots, start
from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import Example
from intarsia.tasks.heads import Head, pool, pooler_instead
from intarsia.tasks.kinds import Answers
from intarsia.tasks.metrics import check_metric, default_metric, score
from intarsia.train import checkpoint
from intarsia.train.features import pooled_states
from intarsia.train.job import Job
from intarsia.train.optimizer import Adam, linear_rate
from intarsia.train.order import epoch_batches

TOKENS_A_PASS = 4096  # of evaluation


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each step."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    metric: str
    validation: float | None  # the last one
    tokens_per_second: float
    seconds_left: float
    resumed_at: int


@dataclass(frozen=True)
class Trained:
    """What a run ends with: the best checkpoint's tensors, and how it got there."""

    tensors: dict[str, Tensor]  # "method.…" and "head.…"
    head: Head
    answers: Answers
    metric: str
    state: checkpoint.State


Watch = Callable[[Progress], None]


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
        self.slots = Slots(specs, 1, device=self.encoder.device)
        fresh = start({k: v for k, v in specs.items() if k not in starts}, self.encoder, self.job.settings.seed)
        self.slots.put(0, fresh | starts)
        self.leaves = self.slots.leaves()
        masks = self.slots.mask("decay"), self.slots.mask("rate")
        self.adam = Adam(self.slots.buffer, masks[0], self.job.settings.adam, masks[1])
        self.best = self.slots.buffer.clone() if self.last_phase else self.slots.buffer

    @property
    def last_phase(self) -> bool:
        return self.phase is self.phases[-1]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The leaves of the method [1, …] or of the head, without their prefix."""
        return {k.removeprefix(prefix): v for k, v in self.leaves.items() if k.startswith(prefix)}

    def logits(self, part: str, rows: Sequence[int], noise: Noise | None = None) -> Tensor:
        """Of these rows of a part of the data."""
        stacked = self.part("method.")
        own = {name: tensor[0] for name, tensor in stacked.items()}
        shape = self.encoder.shape
        weights: dict[str, Tensor] = {}
        if self.method.cached:
            pooled = self.method.mixed(own, self.stored[part][list(rows)].to(self.encoder.device))
        else:
            batch = pack([self.segments[part][r] for r in rows], self.encoder.device)
            groups = [Group(self.method, self.places, stacked, 0, (0,), (batch.rows,))]
            if self.method.changes_base:
                weights = self.method.weights(self.phase.name, shape, own, self.kept, self.encoder.weights, noise)
                groups = []
            states = self.encoder.forward(batch, groups, training=noise is not None, noise=noise, weights=weights)
            pooled = pool(states, batch, self.job.pooling)
        head = {name: tensor[0] for name, tensor in self.part("head.").items()}
        return self.head.logits(
            head,
            pooled,
            self.encoder,
            noise,
            own=lambda x: self.method.pooled(own, x),
            pooler=pooler_instead(self.encoder, own, weights),
        )

    def step(self, rows: Sequence[int]) -> float:
        """One optimizer step on these training rows; returns the loss."""
        s, state = self.job.settings, self.state
        noise = Noise(s.seed, state.step, self.encoder.device)
        loss = self.answers.loss(self.logits("train", rows, noise), self.targets[list(rows)])
        own = {name: tensor[0] for name, tensor in self.part("method.").items()}
        penalty = self.method.penalty(self.phase.name, self.encoder.shape, own, self.kept, self.encoder.weights)
        gradient = self.slots.gradient(loss if penalty is None else loss + penalty, self.leaves)
        value = loss.item()
        if not math.isfinite(value):
            raise IntarsiaError(
                f"training of {self.job.name!r} diverged at step {state.step + 1} of {self.steps}: its loss is "
                f"{value}. Nothing was stored; try a learning rate below {s.learning_rate:g}."
            )
        steps = self.steps_an_epoch * self.epochs[state.phase]
        peak = s.learning_rate * self.phase.rate
        rate = linear_rate(state.step - state.phase_step, steps, peak, s.warmup)
        self.adam.step(gradient, torch.tensor([rate], device=gradient.device))
        state.step += 1
        state.tokens += sum(len(self.segments["train"][r].ids) for r in rows)
        return value

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
        now = {"now": self.slots.buffer, "best": self.best, "first": adam.first, "second": adam.second}
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


def train(
    job: Job, encoder: Encoder, *, state_file: Path | None = None, watch: Watch | None = None, save_every: float = 15.0
) -> Trained:
    """Run a job to its end and return its best checkpoint.

    With a `state_file` the run's state is stored every `save_every` seconds and at each epoch's end; a run that finds
    its own state there goes on from it, and on a CPU ends with the same weights as one that was never interrupted.
    """
    run = Run(job, encoder, cache=state_file.parent if state_file is not None else None)
    if state_file is not None and (stored := checkpoint.read(state_file)) is not None:
        run.resume(*stored)
    clock = _Clock(run, watch)

    def save() -> None:
        run.state.seconds = clock.seconds()
        if state_file is not None:
            checkpoint.write(state_file, run.state, run.tensors())

    saved = time.monotonic()
    lengths = [len(s.ids) for s in run.segments["train"]]
    with _Interrupts() as interrupts:
        while True:
            if run.phase_done:
                if run.last_phase:
                    break
                run.next_phase()
            epoch = len(run.state.history)
            batches = epoch_batches(lengths, job.settings.batch_size, job.settings.seed, epoch)
            for rows in batches[run.state.step - epoch * run.steps_an_epoch :]:
                clock.tick(epoch, run.step(rows))
                if time.monotonic() - saved > save_every or interrupts.wanted:
                    save()
                    saved = time.monotonic()
                interrupts.obey()
            run.end_epoch(epoch, clock.mean_loss())
            save()
    encoder.check_frozen()
    return run.result()


class _Interrupts:
    """Holds Ctrl-C back until a step is whole and saved: half a step must not reach the disk."""

    def __init__(self) -> None:
        self.wanted = False
        self.previous: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _note(self, *_: object) -> None:
        if self.wanted:
            raise KeyboardInterrupt  # asked twice: at once
        self.wanted = True

    def obey(self) -> None:
        if self.wanted:
            raise KeyboardInterrupt


class _Clock:
    """Counts time and losses, and tells the watcher."""

    def __init__(self, run: Run, watch: Watch | None) -> None:
        self.run, self.watch = run, watch
        self.before, self.began = run.state.seconds, time.monotonic()
        self.tokens_before, self.resumed_at = run.state.tokens, run.state.step
        self.losses: list[float] = []

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def mean_loss(self) -> float:
        mean = float(np.mean(self.losses)) if self.losses else math.nan
        self.losses = []
        return mean

    def tick(self, epoch: int, loss: float) -> None:
        self.losses.append(loss)
        if self.watch is None:
            return
        run, here = self.run, time.monotonic() - self.began
        state = run.state
        a_step = here / (state.step - self.resumed_at)
        self.watch(
            Progress(
                step=state.step,
                steps=run.steps,
                epoch=epoch + 1,
                epochs=sum(run.epochs),
                loss=float(np.mean(self.losses[-20:])),
                metric=run.metric,
                validation=state.history[-1].get(run.metric) if state.history else None,
                tokens_per_second=(state.tokens - self.tokens_before) / here,
                seconds_left=a_step * (run.steps - state.step),
                resumed_at=self.resumed_at,
            )
        )
