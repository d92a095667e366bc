"""The progress of a sweep: a live table on a terminal, elsewhere one line for each finished job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from intarsia.cli.console import err, tell, training_bar
from intarsia.cli.time_left import TimeLeft
from intarsia.formatting import score
from intarsia.methods import full_name, to_dict

if TYPE_CHECKING:
    from rich.table import Table

    from intarsia.train.job import Job
    from intarsia.train.runner import RunnerEvent, RunnerResult, RunnerWatch


@contextmanager
def sweep_table(*, quiet: bool = False) -> Iterator[RunnerWatch | None]:
    """Yield a watcher that shows the runner's events, or None if `quiet`."""
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
def learning_progress(name: str, *, quiet: bool = False, explain_grid: bool = False) -> Iterator[RunnerWatch]:
    """Yield a watcher that shows a progress bar for one run, or the table for a grid.

    `explain_grid`: say why a grid is tried, because the user did not ask for it.
    """
    from intarsia.train.runner import join_watchers

    with ExitStack() as shown:
        watch: RunnerWatch | None = None

        def show(event: RunnerEvent) -> None:
            nonlocal watch
            if event.planned is not None and len(event.planned) > 1:
                if explain_grid:
                    err.print(
                        f"Training {len(event.planned)} settings at once, which costs little more than one run "
                        "(--no-sweep trains one run)."
                    )
                watch = shown.enter_context(sweep_table(quiet=quiet))
            elif event.planned is not None:
                watch = join_watchers(shown.enter_context(training_bar(name, quiet=quiet)), None)
            if watch is not None:
                watch(event)

        yield show


class Board:
    """The state of a sweep's jobs, for the table and the lines."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}  # the number of jobs of each task
        self.ended: dict[str, list[tuple[Job, RunnerResult]]] = {}  # by task
        self.running: dict[str, set[str]] = {}  # keys of the active jobs, by task
        self.left = TimeLeft()
        self.reading = ""  # the progress of a feature-based job before its first step
        self.read = ("", 0)  # the last line printed about it: (task, tenths)

    def take(self, event: RunnerEvent) -> None:
        """Update the state by an event."""
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
        """Update the state by an event; print a line for each finished job."""
        self.take(event)
        if (progress := event.progress) is not None and progress.reading is not None:
            read = progress.job.name, int(10 * progress.reading)
            if read != self.read:
                tell(self.reading)
            self.read = read
        if event.result is not None and event.job is not None:
            task = event.job.name
            tell(
                f"{task} {len(self.ended[task])}/{self.jobs[task]}: {described(event.job)}: {_dev(event.result)} · "
                f"{self.left}"
            )

    def table(self) -> Table:
        """Return the table of all tasks."""
        from rich.table import Table

        caption = self.reading or str(self.left)
        table = Table(box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
        for name, side in (("task", "left"), ("done", "right"), ("running", "right"), ("waiting", "right"),
                           ("best so far", "left"), ("validation", "right")):  # fmt: skip
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for task, count in self.jobs.items():
            ended, running = self.ended[task], len(self.running[task])
            scored = [(job, result) for job, result in ended if result.dev is not None]
            best = max(scored, key=lambda pair: pair[1].dev or 0.0, default=None)
            waiting = max(0, count - len(ended) - running)
            shown = ("–", "–") if best is None else (described(best[0]), _dev(best[1]))
            table.add_row(task, str(len(ended)), str(running), str(waiting), *shown)
        return table


def described(job: Job) -> str:
    """Return a short description of a point of the grid."""
    s = job.settings
    epochs = f"{s.epochs} epoch{'s' * (s.epochs != 1)}"
    return f"{full_name(to_dict(job.method))} lr {s.learning_rate:g} · {epochs} · seed {s.seed}"


def _dev(result: RunnerResult) -> str:
    return "diverged" if result.dev is None else score(result.dev)
