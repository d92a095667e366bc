"""Terminal output: tables, progress bars, errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.train.progress import Progress, Watch

# A file or a pipe has no terminal width: use a fixed width, so that tables are not squeezed.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a sentence. The terminal wraps long lines; no line breaks are inserted."""
    out.print(text, soft_wrap=True)


def print_parts(parts: Sequence[RenderableType]) -> None:
    """Print tables, and sentences without markup or inserted line breaks."""
    for part in parts:
        out.print(part, soft_wrap=True, markup=False) if isinstance(part, str) else out.print(part)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, total: Sequence[str] | None = None
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
    err.print(f"[bold red]error:[/] {_escaped(message)}", soft_wrap=True)


def note(message: str) -> None:
    """Print something that the user should know, and that stops nothing."""
    err.print(f"[yellow]note:[/] {_escaped(message)}", soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


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
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.fields[info]}"),
            console=err,
        ) as bar:
            task = bar.add_task(name, total=None, info="reading")

            def watch(p: Progress) -> None:
                share = p.step / p.steps if p.reading is None else p.reading
                bar.update(task, completed=share, total=1.0, info=str(p))

            yield watch


def _lines(name: str) -> Watch:
    printed = (False, -1)

    def watch(p: Progress) -> None:
        nonlocal printed
        done = 100 * p.step // p.steps if p.reading is None else int(100 * p.reading)
        if (p.reading is not None, done // 10) != printed:
            printed = (p.reading is not None, done // 10)
            print(f"{name}: {done:3d}% · {p}", file=sys.stderr, flush=True)

    return watch
