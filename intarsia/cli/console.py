"""Terminal output: tables, progress bars, errors.

Texts come from files of strangers (labels, column names, messages with names in them). A plain string is therefore
never markup, and its control characters are shown, not obeyed. Styled output is a `Text` of rich.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from intarsia.display.terminal import PlainConsole
from intarsia.display.terminal import tell as tell
from intarsia.formatting import json_text, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

# A file or a pipe has no terminal width: use a fixed width, so that tables are not squeezed.
out = PlainConsole(width=None if sys.stdout.isatty() else 200)
err = PlainConsole(stderr=True, soft_wrap=True)


def say(text: str | Text) -> None:
    """Print a sentence. The terminal wraps long lines; no line breaks are inserted."""
    out.print(text, soft_wrap=True)


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


# The keywords of `load_data` that messages name, and the options that the command line has in their place.
KEYWORD = re.compile(
    r"\b(text|pair|label|kind|limit|sep|encoding|metric|drop_missing)=('?)([^\s'(),;]*?)\2(?=[\s),;]|[.:](?:\s|$)|\.\.\.|$)"
)


def error(message: str) -> None:
    err.print(styled(("error:", "bold red"), f" {as_options(message)}"), soft_wrap=True)


def as_options(message: str) -> str:
    """Return a message with options in place of keywords: `--kind words` for `kind='words'`."""
    message = message.replace("drop_missing=True", "--drop-missing").replace("class_weights:", "--class-weights:")
    return KEYWORD.sub(lambda m: f"--{m[1].replace('_', '-')}{' ' * bool(m[3])}{m[3]}", message)


def note(message: str) -> None:
    """Print something that the user should know, and that stops nothing."""
    err.print(styled(("note:", "yellow"), f" {as_options(message)}"), soft_wrap=True)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text of parts, each plain or with a style."""
    return Text.assemble(*((printable(p), "") if isinstance(p, str) else (printable(p[0]), p[1]) for p in parts))
