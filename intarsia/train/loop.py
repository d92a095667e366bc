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
from intarsia.tasks.heads import Head, pool
from intarsia.tasks.kinds import Answers
from intarsia.tasks.metrics import check_metric, default_metric, score
from intarsia.train import checkpoint
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

    def __init__(self, job: Job, encoder: Encoder) -> None:
        self.job, self.encoder = job, encoder
        data, settings = job.data, job.settings
        self.answers = Answers.learn(data.kind, data.labels, data.train)
        self.head = Head(self.answers.outputs, job.pooling)
        self.metric = settings.metric or default_metric(data.kind, data.labels)
        check_metric(self.metric, data.kind, data.labels)
        specs = {f"method.{k}": v for k, v in job.method.tensors(encoder.shape).items()}
        specs |= {f"head.{k}": v for k, v in self.head.tensors(encoder.shape).items()}
        self.slots = Slots(specs, 1, device=encoder.device)
        self.slots.put(0, start(specs, encoder, settings.seed))
        self.leaves = self.slots.leaves()
        self.adam = Adam(self.slots.buffer, self.slots.mask("decay"), settings.adam)
        self.best = self.slots.buffer.clone()
        self.state = checkpoint.State()
        self.places = job.method.places(encoder.shape)
        self.train = self._segments(data.train)
        self.dev = self._segments(data.dev)
        self.targets = self.answers.targets(data.train).to(encoder.device)
        self.steps_an_epoch = math.ceil(len(self.train) / settings.batch_size)
        self.steps = self.steps_an_epoch * settings.epochs

    def _segments(self, examples: Sequence[Example]) -> list[Segment]:
        return self.encoder.tokenize(
            [e.text for e in examples], [e.pair for e in examples], max_length=self.job.settings.max_length
        )

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The leaves of the method [1, …] or of the head, without their prefix."""
        return {k.removeprefix(prefix): v for k, v in self.leaves.items() if k.startswith(prefix)}

    def logits(self, segments: Sequence[Segment], noise: Noise | None = None) -> Tensor:
        batch = pack(segments, self.encoder.device)
        group = Group(self.job.method, self.places, self.part("method."), 0, (0,), (batch.rows,))
        states = self.encoder.forward(batch, [group], training=noise is not None, noise=noise)
        head = {name: tensor[0] for name, tensor in self.part("head.").items()}
        return self.head.logits(head, pool(states, batch, self.job.pooling), self.encoder, noise)

    def step(self, rows: Sequence[int]) -> float:
        """One optimizer step on these training rows; returns the loss."""
        s, state = self.job.settings, self.state
        noise = Noise(s.seed, state.step, self.encoder.device)
        loss = self.answers.loss(self.logits([self.train[r] for r in rows], noise), self.targets[list(rows)])
        gradient = self.slots.gradient(loss, self.leaves)
        value = loss.item()
        if not math.isfinite(value):
            raise IntarsiaError(
                f"training of {self.job.name!r} diverged at step {state.step + 1} of {self.steps}: its loss is "
                f"{value}. Nothing was stored; try a learning rate below {s.learning_rate:g}."
            )
        rate = linear_rate(state.step, self.steps, s.learning_rate, s.warmup)
        self.adam.step(gradient, torch.tensor([rate], device=gradient.device))
        state.step += 1
        state.tokens += sum(len(self.train[r].ids) for r in rows)
        return value

    @torch.no_grad()
    def predict(self, segments: Sequence[Segment]) -> np.ndarray:
        """Probabilities (or scores) of each segment, in order, with the present tensors."""
        out = np.empty((len(segments), self.answers.outputs), np.float32)
        for rows in by_token_budget([len(s.ids) for s in segments], TOKENS_A_PASS):
            out[rows] = self.answers.probabilities(self.logits([segments[r] for r in rows]))
        return out

    def validate(self) -> float:
        predicted = self.answers.decide(self.predict(self.dev))
        return score(self.metric, self.answers.gold(self.job.data.dev), predicted, self.job.data.labels)

    def end_epoch(self, epoch: int, mean_loss: float) -> None:
        value = self.validate()
        state = self.state
        state.history.append({"epoch": epoch + 1, "step": state.step, "loss": mean_loss, self.metric: value})
        if state.best is None or value >= state.best:  # of equal ones the later, trained longer
            state.best, state.best_epoch = value, epoch + 1
            self.best.copy_(self.slots.buffer)

    @property
    def done(self) -> bool:
        patience, state = self.job.settings.patience, self.state
        epoch = len(state.history)
        stopped = patience is not None and epoch - state.best_epoch >= patience
        return epoch >= self.job.settings.epochs or (epoch > 0 and stopped)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        adam = self.adam
        return {"now": self.slots.buffer, "best": self.best, "first": adam.first, "second": adam.second}

    def result(self) -> Trained:
        self.slots.buffer.copy_(self.best)
        return Trained(self.slots.get(0), self.head, self.answers, self.metric, self.state)


def train(
    job: Job, encoder: Encoder, *, state_file: Path | None = None, watch: Watch | None = None, save_every: float = 15.0
) -> Trained:
    """Run a job to its end and return its best checkpoint.

    With a `state_file` the run's state is stored every `save_every` seconds and at each epoch's end; a run that finds
    its own state there goes on from it, and on a CPU ends with the same weights as one that was never interrupted.
    """
    run = Run(job, encoder)
    if state_file is not None and (stored := checkpoint.read(state_file)) is not None:
        run.state, tensors = stored
        checkpoint.restore(run.tensors(), tensors)
    clock = _Clock(run, watch)

    def save() -> None:
        run.state.seconds = clock.seconds()
        if state_file is not None:
            checkpoint.write(state_file, run.state, run.tensors())

    saved = time.monotonic()
    with _Interrupts() as interrupts:
        while not run.done:
            epoch = len(run.state.history)
            batches = epoch_batches([len(s.ids) for s in run.train], job.settings.batch_size, job.settings.seed, epoch)
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
                epochs=run.job.settings.epochs,
                loss=float(np.mean(self.losses[-20:])),
                metric=run.metric,
                validation=state.history[-1][run.metric] if state.history else None,
                tokens_per_second=(state.tokens - self.tokens_before) / here,
                seconds_left=a_step * (run.steps - state.step),
                resumed_at=self.resumed_at,
            )
        )
