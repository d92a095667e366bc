"""A sweep as it goes on: a live table on a terminal, a line for each finished job elsewhere."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from intarsia.cli.console import err
from intarsia.formatting import score, seconds
from intarsia.methods import full_name, to_dict

if TYPE_CHECKING:
    from rich.table import Table

    from intarsia.bank.sweep import Moment, Point, Watch


DELAY, LEAST_DELAY = 0.05, 5.0  # with which the time left follows: a share of the time so far, and seconds


@contextmanager
def sweep_table(*, quiet: bool = False) -> Iterator[Watch | None]:
    """A watcher that draws what it is told."""
    if quiet:
        yield None
        return
    board = Board()
    if not err.is_terminal:
        yield board.lines
        return
    from rich.live import Live

    with Live(board.table(), console=err, refresh_per_second=2) as live:

        def watch(moment: Moment) -> None:
            board.take(moment)
            live.update(board.table())

        yield watch


class Board:
    """What is known of a sweep's jobs."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}  # how many each task has
        self.points: dict[str, list[Point]] = {}
        self.running: dict[str, dict[str, float]] = {}  # the share that is done, by job
        self.began = self.told = time.monotonic()
        self.done_before = 0.0
        self.end: float | None = None  # when all will be done, as far as is known
        self.reading = ""  # what the base reads before a job begins
        self.read = ("", 0)  # by what task, in tenths

    def take(self, moment: Moment) -> None:
        if moment.planned is not None:
            self.jobs = dict(moment.planned)
            self.points, self.running = {task: [] for task in self.jobs}, {task: {} for task in self.jobs}
        if moment.progress is not None:
            p = moment.progress
            job = _job(to_dict(p.job.method), vars(p.job.settings))
            if p.reading is None:
                if job not in self.running[p.job.name]:
                    self.done_before += p.resumed_at / p.steps
                self.running[p.job.name][job] = p.step / p.steps
            self.reading = "" if p.reading is None else f"{p.job.name}: {100 * p.reading:.0f}% · {p}"
        if moment.point is not None:
            point = moment.point
            self.points[point.task].append(point)
            self.done_before += moment.stored
            self.running[point.task].pop(_job(point.method, point.settings), None)

    def lines(self, moment: Moment) -> None:
        self.take(moment)
        if (progress := moment.progress) is not None and progress.reading is not None:
            read = progress.job.name, int(10 * progress.reading)
            if read != self.read:
                print(self.reading, file=sys.stderr, flush=True)
            self.read = read
        if moment.point is not None:
            p = moment.point
            count = len(self.points[p.task])
            print(
                f"{p.task} {count}/{self.jobs[p.task]}: {described(p)}: {_dev(p)} · {self.left()}",
                file=sys.stderr,
                flush=True,
            )

    def left(self) -> str:
        """How long it may yet take, if jobs cost alike. It follows what is known with a delay: where jobs end together,
        or diverge, it does not jump."""
        done = sum(len(points) for points in self.points.values())
        done_now = done + sum(share for jobs in self.running.values() for share in jobs.values()) - self.done_before
        if done_now <= 0:
            return "time left unknown"
        ahead = max(0.0, sum(self.jobs.values()) - self.done_before - done_now)
        now = time.monotonic()
        end = now + ahead * (now - self.began) / done_now
        if self.end is None or not ahead:
            self.end = end
        delay = max(LEAST_DELAY, (now - self.began) * DELAY)
        self.end += (1 - math.exp((self.told - now) / delay)) * (end - self.end)
        self.told = now
        return f"{seconds(max(0.0, self.end - now))} left"

    def table(self) -> Table:
        from rich.table import Table

        caption = self.reading or self.left()
        table = Table(box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
        for name, side in (("task", "left"), ("done", "right"), ("running", "right"), ("waiting", "right"),
                           ("best so far", "left"), ("validation", "right")):  # fmt: skip
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for task, count in self.jobs.items():
            points, running = self.points[task], len(self.running[task])
            best = max((p for p in points if p.dev is not None), key=lambda p: p.dev or 0.0, default=None)
            waiting = max(0, count - len(points) - running)
            table.add_row(
                task, str(len(points)), str(running), str(waiting),
                "–" if best is None else described(best), "–" if best is None else _dev(best),
            )  # fmt: skip
        return table


def _job(method: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The same for a job that is told of and for the point that it ends as."""
    kept = [settings[k] for k in ("learning_rate", "epochs", "batch_size", "seed")]
    return json.dumps([method, kept], sort_keys=True)


def described(point: Point) -> str:
    """A point of the grid in a few words."""
    s = point.settings
    epochs = f"{s['epochs']} epoch{'s' * (s['epochs'] != 1)}"
    return f"{full_name(point.method)} lr {s['learning_rate']:g} · {epochs} · seed {s['seed']}"


def _dev(point: Point) -> str:
    return "diverged" if point.dev is None else score(point.dev)
