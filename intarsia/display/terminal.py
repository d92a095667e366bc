"""The console on which everything is printed.

Texts come from files of strangers (labels, column names, messages with names in them). A plain string is therefore
never markup, and its control characters are shown, not obeyed. Styled output is a `Text` of rich.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from intarsia.formatting import printable


class PlainConsole(Console):
    """A console on which a string is only text, in sentences and in the cells of tables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **{**options, "markup": False, "emoji": False})


def tell(text: str) -> None:
    """Print a line of progress to standard error."""
    print(printable(text), file=sys.stderr, flush=True)
