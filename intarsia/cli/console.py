"""Terminal output: tables, progress bars, errors.

Texts come from files of strangers (labels, column names, messages with names in them). A plain string is therefore
never markup, and its control characters are shown, not obeyed. Styled output is a `Text` of rich.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from intarsia.formatting import json_text, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.train.progress import Progress, Watch


class PlainConsole(Console):
    """A console on which a string is only text, in sentences and in the cells of tables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **{**options, "markup": False, "emoji": False})


# A file or a pipe has no terminal width: use a fixed width, so that tables are not squeezed.
out = PlainConsole(width=None if sys.stdout.isatty() else 200)
err = PlainConsole(stderr=True, soft_wrap=True)


def say(text: str | Text) -> None:
    """Print a sentence. The terminal wraps long lines; no line breaks are inserted."""
    out.print(text, soft_wrap=True)


def tell(text: str) -> None:
    """Print a line of progress to standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def print_parts(parts: Sequence[RenderableType]) -> None:
    """Print tables, and sentences without inserted line breaks."""
    for part in parts:
        say(part) if isinstance(part, str | Text) else out.print(part)


def print_json(value: Any) -> None:
    print(json_text(value, indent=2))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, left: int = 1, total: Sequence[str] | None = None
) -> Table:
    """Return a plain table. The first `left` columns are left-aligned; the others, usually numbers, right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_footer=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    if total is not None:
        made.add_section()
        made.add_row(*total, style="bold")
    return made


def error(message: str) -> None:
    err.print(styled(("error:", "bold red"), f" {message}"), soft_wrap=True)


def note(message: str) -> None:
    """Print something that the user should know, and that stops nothing."""
    err.print(styled(("note:", "yellow"), f" {message}"), soft_wrap=True)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text of parts, each plain or with a style."""
    return Text.assemble(*((printable(p), "") if isinstance(p, str) else (printable(p[0]), p[1]) for p in parts))


@contextmanager
def training_bar(name: str, *, quiet: bool = False) -> Iterator[Watch | None]:
    """Show a progress bar for one run; without a terminal, print a line at every tenth of the run."""
    if quiet:
        yield None
    elif not err.is_terminal:
        yield _lines(name)
    else:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        with Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.fields[info]}", markup=False),
            console=err,
        ) as bar:
            task = bar.add_task(name, total=None, info="reading")

            def watch(p: Progress) -> None:
                share = p.step / p.steps if p.reading is None else p.reading
                bar.update(task, completed=share, total=1.0, info=printable(str(p)))

            yield watch


def _lines(name: str) -> Watch:
    printed = (False, -1)

    def watch(p: Progress) -> None:
        nonlocal printed
        done = 100 * p.step // p.steps if p.reading is None else int(100 * p.reading)
        if (p.reading is not None, done // 10) != printed:
            printed = (p.reading is not None, done // 10)
            tell(f"{name}: {done:3d}% · {p}")

    return watch
