"""The progress of training runs: what a watcher receives, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.formatting import number, score, seconds
from intarsia.train.interrupts import Interrupts
from intarsia.train.job import Job
from intarsia.train.run import Run


@dataclass(frozen=True)
class Progress:
    """The progress of a run, reported to the watcher after a step, and after the validation at the end of an epoch."""

    job: Job
    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    metric: str
    validation: float | None  # the last validation score
    tokens_per_second: float
    seconds_left: float
    resumed_at: int
    reading: float | None = None  # before the first step of feature-based jobs: the share of texts the base has read
    history: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # the epochs so far: step, loss, scores

    def __repr__(self) -> str:
        return f"Progress({self.job.name!r}, step {self.step} of {self.steps}, {self})"

    def __str__(self) -> str:
        """One line for a progress bar."""
        if self.reading is not None:
            return f"computing the base's states · {seconds(self.seconds_left)} left for this part"
        validation = "" if self.validation is None else f" · {self.metric} {score(self.validation)}"
        return (
            f"epoch {self.epoch}/{self.epochs} · loss {self.loss:.3f}{validation} · "
            f"{number(self.tokens_per_second)} tokens/s · {seconds(self.seconds_left)} left"
        )


Watch = Callable[[Progress], None]


class ReadingReport:
    """Reports to the watcher how many of a job's texts the base has read.

    Ctrl-C takes effect between passes; the states of completed passes are stored.
    """

    def __init__(self, job: Job, watch: Watch | None, interrupts: Interrupts) -> None:
        self.job, self.watch, self.interrupts = job, watch, interrupts
        self.reported: float | None = None

    def __call__(self, share: float, left: float) -> None:
        self.interrupts.obey()
        now = time.monotonic()
        self.reported = self.reported or now  # a short computation is not reported
        if self.watch is not None and now - self.reported > 0.5:
            self.reported = now
            self.watch(
                Progress(
                    self.job,
                    step=0,
                    steps=1,
                    epoch=0,
                    epochs=self.job.settings.epochs,
                    loss=0.0,
                    metric="",
                    validation=None,
                    tokens_per_second=0.0,
                    seconds_left=left,
                    resumed_at=0,
                    reading=share,
                )
            )


class Clock:
    """Measures time, collects losses and reports to the watcher."""

    def __init__(self, run: Run, watch: Watch | None, every: float) -> None:
        """`every`: the minimum seconds between two reports."""
        self.run, self.watch = run, watch
        self.every, self.reported = every, 0.0
        self.before, self.began = run.state.seconds, time.monotonic()
        self.tokens_before, self.resumed_at = run.state.tokens, run.state.step
        self.losses: list[float] = []
        self.last_loss = 0.0  # of the steps before the present one, for the report at the end of an epoch

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def mean_loss(self) -> float | None:
        """Return the epoch's mean loss; None if the run resumed at the end of the epoch."""
        mean = float(np.mean(self.losses)) if self.losses else None
        self.losses = []
        return mean

    def tick(self, epoch: int, loss: float) -> None:
        """Record the loss of a step; report the progress if the last report is `every` seconds old."""
        self.losses.append(loss)
        self.last_loss = float(np.mean(self.losses[-20:]))
        if self.watch is not None and time.monotonic() - self.reported >= self.every:
            self.report(epoch)

    def report(self, epoch: int) -> None:
        """Report the progress in an epoch that began or has just ended."""
        if self.watch is None:
            return
        self.reported = time.monotonic()
        run, elapsed = self.run, self.reported - self.began
        state = run.state
        step_seconds = elapsed / max(1, state.step - self.resumed_at)
        self.watch(
            Progress(
                job=run.job,
                step=state.step,
                steps=run.steps,
                epoch=epoch + 1,
                epochs=sum(run.epochs),
                loss=self.last_loss,
                metric=run.metric,
                validation=state.history[-1].get(run.metric) if state.history else None,
                tokens_per_second=(state.tokens - self.tokens_before) / elapsed,
                seconds_left=step_seconds * (run.steps - state.step),
                resumed_at=self.resumed_at,
                history=tuple(state.history),
            )
        )
