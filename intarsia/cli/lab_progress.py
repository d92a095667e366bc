"""Progress on standard error: of a comparison, and of a search without a transformer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from intarsia.cli.console import err
from intarsia.formatting import score, seconds

if TYPE_CHECKING:
    from intarsia.lab import no_bert
    from intarsia.lab.bench import Moment, Watch
    from intarsia.lab.comparison import Result

_BAR = 14  # columns


@contextmanager
def comparison_bar(*, quiet: bool = False) -> Iterator[Watch | None]:
    """One bar for all of it, and a line for each run that has ended; on something that is no terminal, only lines."""
    if quiet:
        yield None
    elif not err.is_terminal:
        yield _lines
    else:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(bar_width=_BAR), TextColumn("{task.percentage:3.0f}%")
        with Bar(*columns, TextColumn("{task.fields[info]}"), console=err) as bar:
            task = bar.add_task("reading", total=1.0, info="")

            def watch(moment: Moment) -> None:
                if moment.result is not None:
                    bar.console.print(f"{moment.title}: {ended(moment.result, moment.stored)}", markup=False)
                info = " · ".join(part for part in (_left(moment), moment.info) if part)
                room = (
                    err.width - len(moment.title) - _BAR - len(" 100% ") - 2
                )  # what is too long would squeeze the rest
                bar.update(task, description=moment.title, completed=moment.share, info=info[: max(0, room)])

            yield watch


def _lines(moment: Moment) -> None:
    if moment.result is not None:
        print(f"{moment.title}: {ended(moment.result, moment.stored)}", file=sys.stderr, flush=True)
    elif not moment.info:
        parts = [f"{100 * moment.share:.0f}% of all", _left(moment)]
        text = " · ".join(part for part in parts if part)
        print(f"{moment.title}: begins ({text})", file=sys.stderr, flush=True)


def ended(result: Result, stored: bool) -> str:
    """How a run ended, in a few words."""
    if result.test is None:
        text = str(result.reason)
    else:
        value, low, high = (score(result.test[k], result.test["value"]) for k in ("value", "low", "high"))
        text = f"{result.metric} {value} ({low}–{high}) in {seconds(result.seconds)}"
    return f"{text}, stored before" if stored else text


def _left(moment: Moment) -> str:
    return "" if moment.seconds_left is None else f"{seconds(moment.seconds_left)} left in all"


@contextmanager
def search_status(*, quiet: bool = False) -> Iterator[no_bert.SearchWatch | None]:
    """What is being tried, on one line; on something that is no terminal, a line for each tenth of the search."""
    if quiet:
        yield None
    elif not err.is_terminal:
        yield _tenths()
    else:
        with err.status("baseline: reading") as status:
            yield lambda p: status.update(f"baseline: {p}")


def _tenths() -> no_bert.SearchWatch:
    shown = -1

    def watch(p: no_bert.Progress) -> None:
        nonlocal shown
        if int(10 * p.share) != shown:
            shown = int(10 * p.share)
            print(f"baseline: {100 * p.share:3.0f}% · {p}", file=sys.stderr, flush=True)

    return watch
