"""An experiment's tables and notes, for the terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from intarsia.cli.console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.lab.paper.experiment_report import ExperimentReport

WIDTH = 100  # columns of a terminal


def paper_tables(report: ExperimentReport) -> list[RenderableType]:
    """Return each table under its title, then the wrapped notes."""
    made: list[RenderableType] = []
    for content in report.tables:
        count = len(content.rows) - content.summary_rows
        body = table(content.columns, content.rows[:count], left=content.left)
        if content.summary_rows:
            body.add_section()
            for row in content.rows[count:]:
                body.add_row(*row)
        made += [*textwrap.wrap(content.title, WIDTH), body, ""]
    for note in report.notes:
        made += textwrap.wrap(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return made
