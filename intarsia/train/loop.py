"""The one training loop: a queue of jobs, seats for as many as share a pass, and what each is told."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from intarsia.encoder.load import Encoder
from intarsia.errors import IntarsiaError
from intarsia.train import checkpoint
from intarsia.train.job import Job
from intarsia.train.order import epoch_batches
from intarsia.train.run import Diverged, Run, Trained, runs_alone, step_together


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each step."""

    job: Job
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


Watch = Callable[[Progress], None]


Done = Callable[[Job, Trained | IntarsiaError], None]
StateFile = Callable[[Job], Path | None]


def train(
    job: Job, encoder: Encoder, *, state_file: Path | None = None, watch: Watch | None = None, save_every: float = 15.0
) -> Trained:
    """Run a job to its end and return its best checkpoint.

    With a `state_file` the run's state is stored every `save_every` seconds and at each epoch's end; a run that finds
    its own state there goes on from it, and on a CPU ends with the same weights as one that was never interrupted.
    """
    found: list[Trained | IntarsiaError] = []
    train_together(
        [job],
        encoder,
        together=1,
        state_file=lambda _: state_file,
        done=lambda _, result: found.append(result),
        watch=watch,
        save_every=save_every,
    )
    (result,) = found
    if isinstance(result, IntarsiaError):
        raise result
    return result


def train_together(
    jobs: Iterable[Job],
    encoder: Encoder,
    *,
    done: Done,
    together: int | None = None,
    state_file: StateFile = lambda _: None,
    watch: Watch | None = None,
    save_every: float = 15.0,
) -> None:
    """Run jobs to their ends, up to `together` of them (None: as many as fit) in each pass through the base.

    When a job ends, stops early or diverges, `done` is told and the next job takes its seat; the others do not notice.
    Jobs that change the base, or learn from stored states, run one at a time. `jobs` is read as seats become free, so
    it may be a queue that others fill or take from.
    """
    queue = _Queue(jobs)
    seats: list[Seat] = []
    saved = time.monotonic()

    def save() -> None:
        for seat in seats:
            seat.save()

    with _Interrupts() as interrupts:
        while True:
            while (not seats or len(seats) < _room(seats, together)) and (job := queue.next(seats)) is not None:
                seats.append(Seat(job, encoder, state_file(job), watch))
            if not seats:
                break
            due = [seat for seat in seats if seat.due()]
            for seat in seats:
                if seat not in due:  # ended
                    encoder.check_frozen()
                    done(seat.run.job, seat.run.result())
            seats[:] = due
            if not seats:
                continue
            pairs = [(seat.run, seat.next_rows()) for seat in seats]
            try:
                losses = step_together(pairs)
            except Diverged:  # alone in its pass
                losses = [math.nan]
            for seat, loss in zip(list(seats), losses, strict=True):
                if math.isfinite(loss):
                    seat.clock.tick(seat.epoch, loss)
                else:
                    seats.remove(seat)
                    done(seat.run.job, seat.run.diverged(loss))
            if time.monotonic() - saved > save_every or interrupts.wanted:
                save()
                saved = time.monotonic()
            interrupts.obey()


class _Queue:
    """Jobs in their order; those that cannot share a pass with the seated ones wait until all seats are free."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs, self.waiting = iter(jobs), deque[Job]()

    def next(self, seats: Sequence[Seat]) -> Job | None:
        if seats and seats[0].run.alone:
            return None
        for job in self.jobs:
            if not seats or self._fits(job, seats[0].run.job):
                return job
            self.waiting.append(job)
        return self.waiting.popleft() if self.waiting and not seats else None

    @staticmethod
    def _fits(job: Job, other: Job) -> bool:
        return not runs_alone(job.method) and job.settings.dropout == other.settings.dropout


def _room(seats: Sequence[Seat], together: int | None) -> int:
    """How many jobs may share a pass: as asked, or as many as make a pass of a good size."""
    if together is not None:
        return together
    tokens = max(1.0, sum(seat.tokens_a_step for seat in seats) / len(seats))
    return max(1, int(_tokens_a_pass(seats[0].run.encoder) / tokens))


def _tokens_a_pass(encoder: Encoder) -> float:
    """On CPUs, more does not pay. On a GPU, what its free memory holds."""
    if encoder.device.type != "cuda":
        return 4096
    free, _ = torch.cuda.mem_get_info(encoder.device)
    shape = encoder.shape
    a_token = shape.layers * 40 * shape.width * 4  # bytes: some forty vectors a layer are kept for the way back
    return min(65536.0, 0.6 * free / a_token)


class Seat:
    """A job on its way: its run, where it is in its epoch, where its state lies."""

    def __init__(self, job: Job, encoder: Encoder, state_file: Path | None, watch: Watch | None) -> None:
        self.state_file = state_file
        self.run = run = Run(job, encoder, cache=state_file.parent if state_file is not None else None)
        if state_file is not None and (stored := checkpoint.read(state_file)) is not None:
            run.resume(*stored)
        self.clock = _Clock(run, watch)
        self.lengths = [len(s.ids) for s in run.segments["train"]]
        self.tokens_a_step = sum(self.lengths) / run.steps_an_epoch
        self.epoch = len(run.state.history)
        self.batches = self._batches()

    def _batches(self) -> list[list[int]]:
        s = self.run.job.settings
        return epoch_batches(self.lengths, s.batch_size, s.seed, self.epoch)

    def due(self) -> bool:
        """Whether there is a batch to learn from; ends epochs and phases that are over. False: the job has ended."""
        run = self.run
        if run.state.step - self.epoch * run.steps_an_epoch >= len(self.batches):
            run.end_epoch(self.epoch, self.clock.mean_loss())
            self.save()
        if run.phase_done:
            if run.last_phase:
                return False
            run.next_phase()
        if self.epoch != len(run.state.history):
            self.epoch = len(run.state.history)
            self.batches = self._batches()
        return True

    def next_rows(self) -> list[int]:
        return self.batches[self.run.state.step - self.epoch * self.run.steps_an_epoch]

    def save(self) -> None:
        self.run.state.seconds = self.clock.seconds()
        if self.state_file is not None:
            checkpoint.write(self.state_file, self.run.state, self.run.tensors())


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
                job=run.job,
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
