"""Lines of plain text joined to texts, which are what masked-word training cuts into rows.

A blank line ends a text. Where there is no blank line at all, each line is a text. A heading as WikiText writes it
(` = = Plot = = `, between blank lines) stays with what is below it. Lines of different texts never meet in a row.
"""

from __future__ import annotations

import re
from dataclasses import replace

from intarsia.tasks.tables import Table

HEADING = re.compile(r"= .* =")


def documents(table: Table) -> Table:
    """A table of lines as a table of texts, each numbered by its first line."""
    lines = [(row["text"] or "").strip() for row in table.rows]
    found: list[tuple[int, list[str]]] = []
    separated = not all(lines)
    ended = True
    for number, line in zip(table.numbers, lines, strict=True):
        if not line:
            ended = ended or not all(HEADING.fullmatch(some) for some in found[-1][1])
        elif ended or not separated:
            found.append((number, [line]))
            ended = False
        else:
            found[-1][1].append(line)
    rows = [{"text": "\n".join(some)} for _, some in found]
    return replace(table, numbers=[number for number, _ in found], rows=rows, lines=False)
