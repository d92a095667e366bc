"""An output of a notebook cell that is replaced while a run goes on. It needs IPython, which every notebook has."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY = 0.25  # seconds between two updates, at least
WIDTH = 110  # characters of a table


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook (Jupyter, VS Code, Colab)."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None  # the shell of a terminal has no kernel


class Cell:
    """One output of the present cell."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.shown = 0.0

    def bar(self, name: str, share: float, info: str, *, now: bool = False) -> None:
        """Show a progress bar. Most calls come too soon after the last and do nothing; `now`: show it in any case."""
        text = f"{name} {100 * share:3.0f}% {info}"
        html = f'<b>{escape(name)}</b> <progress value="{share:.4f}"></progress> {100 * share:.0f}% · {escape(info)}'
        self._show(html, text, now)

    def table(self, table: RenderableType, *, now: bool = False) -> None:
        """Show a table."""
        import io

        from intarsia.display.terminal import PlainConsole

        drawn = io.StringIO()
        PlainConsole(file=drawn, width=WIDTH, force_jupyter=False, force_terminal=False).print(table)
        self._show(f"<pre>{escape(drawn.getvalue())}</pre>", drawn.getvalue(), now)

    def _show(self, html: str, text: str, now: bool) -> None:
        if not now and time.monotonic() - self.shown < EVERY:
            return
        self.shown = time.monotonic()
        content = {"text/html": html, "text/plain": text}
        if self.handle is None:
            from IPython.display import display

            self.handle = display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)
