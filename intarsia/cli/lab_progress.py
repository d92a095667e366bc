"""The progress of comparisons, and of searches without a transformer, on standard error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from intarsia.cli.console import err, tell
from intarsia.display.time_left import TimeLeft
from intarsia.formatting import printable, score, seconds
from intarsia.lab.comparison import Result

if TYPE_CHECKING:
    from intarsia.lab import no_bert
    from intarsia.methods import Method
    from intarsia.train.job import Job
    from intarsia.train.runner import RunnerEvent, RunnerWatch

_BAR = 14  # columns


@contextmanager
def comparison_progress(
    methods: Mapping[str, Method], *, quiet: bool = False
) -> Iterator[tuple[RunnerWatch | None, no_bert.SearchWatch | None]]:
    """Yield a watcher of the runs, and a watcher of the search without a transformer that may follow them."""
    if quiet:
        yield None, None
        return
    with ExitStack() as shown:
        runs = shown.enter_context(_comparison_bar(methods))
        search: no_bert.SearchWatch | None = None

        def watch(p: no_bert.SearchProgress) -> None:
            nonlocal search
            if search is None:
                shown.close()  # a terminal shows one bar at a time
                search = shown.enter_context(search_status())
            if search is not None:
                search(p)

        yield runs, watch


@contextmanager
def _comparison_bar(methods: Mapping[str, Method]) -> Iterator[RunnerWatch]:
    """Yield a watcher that shows one bar for all runs and a line for each ended run; without a terminal, only lines."""
    board = ComparisonBoard(methods)
    if not err.is_terminal:
        yield board.lines
    else:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        title = TextColumn("{task.description}", markup=False)
        columns = title, BarColumn(bar_width=_BAR), TextColumn("{task.percentage:3.0f}%")
        with Bar(*columns, TextColumn("{task.fields[info]}", markup=False), console=err) as bar:
            task = bar.add_task("reading", total=1.0, info="")

            def watch(event: RunnerEvent) -> None:
                board.take(event)
                if (line := board.ended(event)) is not None:
                    bar.console.print(line, markup=False)
                # A longer text would shrink the other columns.
                room = err.width - len(board.title) - _BAR - len(" 100% ") - 2
                info = printable(f"{board.left} · {board.now}" if board.now else str(board.left))
                bar.update(task, description=board.title, completed=board.left.share, info=info[: max(0, room)])

            yield watch


class ComparisonBoard:
    """The state of a comparison's runs, for the bar and the lines."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self.methods = methods
        self.runs = 0
        self.left = TimeLeft()
        self.begun: set[str] = set()
        self.now = ""  # the last progress of a run

    @property
    def title(self) -> str:
        active = len(self.left.running)
        return f"{len(self.left.ended)} of {self.runs} runs" + (f", {active} active" if active else "")

    def take(self, event: RunnerEvent) -> None:
        """Update the state by an event."""
        self.left.take(event)
        if event.planned is not None:
            self.runs = len(event.planned)
        if (p := event.progress) is not None:
            validation = "" if p.validation is None else f" · {p.metric} {score(p.validation)}"
            progress = str(p) if p.reading is not None else f"epoch {p.epoch}/{p.epochs}{validation}"
            self.now = f"{self.run(p.job)}: {progress}"

    def lines(self, event: RunnerEvent) -> None:
        """Update the state by an event; print a line when a run starts and when it ends."""
        self.take(event)
        if event.progress is not None and event.key not in self.begun:
            self.begun.add(event.key)
            done = f"{100 * self.left.share:.0f}% of all runs done"
            tell(f"{self.run(event.progress.job)}: started ({done} · {self.left})")
        if (line := self.ended(event)) is not None:
            tell(line)

    def ended(self, event: RunnerEvent) -> str | None:
        """Return a line about a run that has ended; None for other events."""
        result = event.result
        if event.job is None or not isinstance(result, Result):
            return None
        if result.test is None:
            text = str(result.reason)
        else:
            value, low, high = (score(result.test[k], result.test["value"]) for k in ("value", "low", "high"))
            text = f"{result.metric} {value} ({low}–{high}) in {seconds(result.seconds)}"
        place = f"{len(self.left.ended)}/{self.runs} {self.run(event.job)}"
        return f"{place}: {text}, already stored" if event.stored else f"{place}: {text}"

    def run(self, job: Job) -> str:
        """Return a run's method and seed."""
        name = next((name for name, method in self.methods.items() if method == job.method), str(job.method))
        return f"{name}, seed {job.settings.seed}"


@contextmanager
def search_status(*, quiet: bool = False) -> Iterator[no_bert.SearchWatch | None]:
    """Yield a watcher that shows the current candidate; without a terminal, a line for each tenth of the search."""
    if quiet:
        yield None
    elif not err.is_terminal:
        yield _tenths()
    else:
        with err.status("baseline: reading") as status:
            yield lambda p: status.update(f"baseline: {p}")


def _tenths() -> no_bert.SearchWatch:
    """Return a watcher that prints a line for each tenth of the search."""
    shown = -1

    def watch(p: no_bert.SearchProgress) -> None:
        nonlocal shown
        if int(10 * p.share) != shown:
            shown = int(10 * p.share)
            tell(f"baseline: {100 * p.share:3.0f}% · {p}")

    return watch
