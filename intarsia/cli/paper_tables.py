"""An experiment's tables and notes, for the terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from intarsia.cli.console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.lab.paper.drawn import Drawn

WIDTH = 100  # columns of a terminal


def paper_tables(drawn: Drawn) -> list[RenderableType]:
    """Return each table under its title, then the wrapped notes."""
    made: list[RenderableType] = []
    for sheet in drawn.sheets:
        body = table(sheet.columns, sheet.rows[: len(sheet.rows) - sheet.sums], left=sheet.left)
        if sheet.sums:
            body.add_section()
            for row in sheet.rows[len(sheet.rows) - sheet.sums :]:
                body.add_row(*row)
        made += [*textwrap.wrap(sheet.title, WIDTH), body, ""]
    for note in drawn.notes:
        made += textwrap.wrap(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return made
