"""A sweep as it goes on: a live table on a terminal, a line for each finished job elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from intarsia.cli.console import err, training_bar
from intarsia.cli.time_left import TimeLeft
from intarsia.formatting import score
from intarsia.methods import full_name, to_dict

if TYPE_CHECKING:
    from rich.table import Table

    from intarsia.train.job import Job
    from intarsia.train.runner import RunnerEvent, RunnerResult, RunnerWatch


@contextmanager
def sweep_table(*, quiet: bool = False) -> Iterator[RunnerWatch | None]:
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

        def watch(event: RunnerEvent) -> None:
            board.take(event)
            live.update(board.table())

        yield watch


@contextmanager
def learning_progress(name: str, *, quiet: bool = False, unasked: bool = False) -> Iterator[RunnerWatch]:
    """A progress bar where one run is planned, the table where a grid is; `unasked`: explain the grid."""
    from intarsia.train.runner import both

    with ExitStack() as shown:
        watch: RunnerWatch | None = None

        def told(event: RunnerEvent) -> None:
            nonlocal watch
            if event.planned is not None and len(event.planned) > 1:
                if unasked:
                    count = len(event.planned)
                    err.print(
                        f"{count} settings are tried at once, at little more than one run's cost (--no-sweep: one run)."
                    )
                watch = shown.enter_context(sweep_table(quiet=quiet))
            elif event.planned is not None:
                watch = both(shown.enter_context(training_bar(name, quiet=quiet)), None)
            if watch is not None:
                watch(event)

        yield told


class Board:
    """What is known of a sweep's jobs."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}  # how many each task has
        self.ended: dict[str, list[tuple[Job, RunnerResult]]] = {}  # by task
        self.running: dict[str, set[str]] = {}  # keys of the jobs under way, by task
        self.left = TimeLeft()
        self.reading = ""  # what the base reads before a job begins
        self.read = ("", 0)  # by what task, in tenths

    def take(self, event: RunnerEvent) -> None:
        self.left.take(event)
        if event.planned is not None:
            self.jobs = dict(event.counts)
            self.ended, self.running = {task: [] for task in self.jobs}, {task: set() for task in self.jobs}
        if (p := event.progress) is not None:
            if p.reading is None:
                self.running[p.job.name].add(event.key)
            self.reading = "" if p.reading is None else f"{p.job.name}: {100 * p.reading:.0f}% · {p}"
        if event.result is not None and event.job is not None:
            self.ended[event.job.name].append((event.job, event.result))
            self.running[event.job.name].discard(event.key)

    def lines(self, event: RunnerEvent) -> None:
        self.take(event)
        if (progress := event.progress) is not None and progress.reading is not None:
            read = progress.job.name, int(10 * progress.reading)
            if read != self.read:
                print(self.reading, file=sys.stderr, flush=True)
            self.read = read
        if event.result is not None and event.job is not None:
            task = event.job.name
            print(
                f"{task} {len(self.ended[task])}/{self.jobs[task]}: {described(event.job)}: {_dev(event.result)} · "
                f"{self.left}",
                file=sys.stderr,
                flush=True,
            )

    def table(self) -> Table:
        from rich.table import Table

        caption = self.reading or str(self.left)
        table = Table(box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
        for name, side in (("task", "left"), ("done", "right"), ("running", "right"), ("waiting", "right"),
                           ("best so far", "left"), ("validation", "right")):  # fmt: skip
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for task, count in self.jobs.items():
            ended, running = self.ended[task], len(self.running[task])
            well = [one for one in ended if one[1].dev is not None]
            best = max(well, key=lambda one: one[1].dev or 0.0, default=None)
            waiting = max(0, count - len(ended) - running)
            shown = ("–", "–") if best is None else (described(best[0]), _dev(best[1]))
            table.add_row(task, str(len(ended)), str(running), str(waiting), *shown)
        return table


def described(job: Job) -> str:
    """A point of the grid in a few words."""
    s = job.settings
    epochs = f"{s.epochs} epoch{'s' * (s.epochs != 1)}"
    return f"{full_name(to_dict(job.method))} lr {s.learning_rate:g} · {epochs} · seed {s.seed}"


def _dev(result: RunnerResult) -> str:
    return "diverged" if result.dev is None else score(result.dev)
