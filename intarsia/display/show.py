"""Where progress is shown: a bar or table on a terminal or in a notebook, lines of text elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from intarsia.display.notebook import Cell, in_notebook
from intarsia.formatting import printable

if TYPE_CHECKING:
    from rich.console import Console

    from intarsia.train.progress import Progress, Watch
    from intarsia.train.runner import RunnerEvent, RunnerWatch

Place = Literal["terminal", "notebook", "lines", "nowhere"]


def place_of(progress: bool | None) -> Place:
    """Return where progress is shown: True: anywhere; None: on terminals and in notebooks; False: nowhere."""
    if progress is False:
        return "nowhere"
    if in_notebook():
        return "notebook"
    if sys.stderr.isatty():
        return "terminal"
    return "lines" if progress else "nowhere"


@contextmanager
def learning_progress(
    name: str, progress: bool | None = True, *, explain_grid: str | None = None
) -> Iterator[RunnerWatch | None]:
    """Yield a watcher that shows a bar for one run, or a table for a grid; None if nothing is to be shown.

    `explain_grid`: how to train one run instead. It is printed if a grid is tried, because the user did not ask for it.
    """
    place = place_of(progress)
    if place == "nowhere":
        yield None
        return
    with ExitStack() as shown:
        watch: RunnerWatch | None = None

        resumed: set[str] = set()

        def show(event: RunnerEvent) -> None:
            nonlocal watch
            p = event.progress
            if p is not None and p.reading is None and p.resumed_at and event.key not in resumed:
                resumed.add(event.key)
                epoch = p.resumed_at * p.epochs // p.steps + 1
                print(f"{p.job.name}: resuming at epoch {min(epoch, p.epochs)} of {p.epochs}", file=sys.stderr)
            if event.planned is not None and len(event.planned) > 1:
                if explain_grid:
                    from intarsia.display.terminal import tell

                    tell(
                        f"Training {len(event.planned)} settings at once, which costs little more than one run "
                        f"({explain_grid} trains one run)."
                    )
                watch = shown.enter_context(queue_progress(progress))
            elif event.planned is not None:
                watch = shown.enter_context(_bar(name, place))
            if watch is not None:
                watch(event)

        yield show


@contextmanager
def queue_progress(progress: bool | None = True) -> Iterator[RunnerWatch | None]:
    """Yield a watcher that shows a queue of jobs: a live table, or one line for each finished job."""
    from intarsia.display.board import Board

    place = place_of(progress)
    if place == "nowhere":
        yield None
    elif place == "lines":
        yield Board().lines
    elif place == "notebook":
        board, cell = Board(), Cell()
        yield _then(board.take, lambda: cell.table(board.table()))
        cell.table(board.table(), now=True)
    else:
        from rich.live import Live

        board = Board()
        with Live(board.table(), console=_stderr(), refresh_per_second=2) as live:
            yield _then(board.take, lambda: live.update(board.table()))


def _then(take: RunnerWatch, draw: Callable[[], None]) -> RunnerWatch:
    """Return a watcher that updates a board and draws it."""

    def watch(event: RunnerEvent) -> None:
        take(event)
        draw()

    return watch


@contextmanager
def _bar(name: str, place: Place) -> Iterator[RunnerWatch]:
    """Yield a watcher that shows a progress bar for one run; without a terminal, a line at every tenth of the run."""
    if place == "lines":
        yield _steps(_lines(name))
    elif place == "notebook":
        cell, last = Cell(), ""

        def on_cell(p: Progress) -> None:
            nonlocal last
            last = str(p)
            cell.bar(name, _share(p), last)

        yield _steps(on_cell)
        cell.bar(name, 1.0, last, now=True)
    else:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f}%"),
        )
        with Bar(*columns, TextColumn("{task.fields[info]}", markup=False), console=_stderr()) as bar:
            task = bar.add_task(name, total=None, info="reading")
            yield _steps(lambda p: bar.update(task, completed=_share(p), total=1.0, info=printable(str(p))))


def _steps(watch: Watch) -> RunnerWatch:
    """Return a watcher of a runner that passes on the progress of its steps."""

    def on_event(event: RunnerEvent) -> None:
        if event.progress is not None:
            watch(event.progress)

    return on_event


def _lines(name: str) -> Watch:
    printed = (False, -1)

    def watch(p: Progress) -> None:
        nonlocal printed
        done = 100 * p.step // p.steps if p.reading is None else int(100 * p.reading)
        if (p.reading is not None, done // 10) != printed:
            printed = (p.reading is not None, done // 10)
            from intarsia.display.terminal import tell

            tell(f"{name}: {done:3d}% · {p}")

    return watch


def _share(p: Progress) -> float:
    return p.step / p.steps if p.reading is None else p.reading


def _stderr() -> Console:
    from intarsia.display.terminal import PlainConsole

    return PlainConsole(stderr=True, soft_wrap=True)
