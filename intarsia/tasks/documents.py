"""Joining lines of plain text to texts. Masked-word training cuts texts into rows.

A blank line ends a text. In a file without blank lines, each line is a text. A heading in WikiText's form
(` = = Plot = = `, between blank lines) belongs to the text below it. A row never has lines of two texts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from intarsia.tasks.tables import RawTable

HEADING = re.compile(r"= .* =")


def documents(table: RawTable) -> RawTable:
    """The table of texts for a table of lines. A text's number is that of its first line."""
    lines = [(row["text"] or "").strip() for row in table.rows]
    texts: list[tuple[int, list[str]]] = []  # the number of the first line, and the lines
    separated = not all(lines)
    ended, only_headings = True, True
    for number, line in zip(table.numbers, lines, strict=True):
        if not line:
            ended = ended or not only_headings
            continue
        if ended or not separated:
            texts.append((number, [line]))
            ended, only_headings = False, True
        else:
            texts[-1][1].append(line)
        only_headings = only_headings and HEADING.fullmatch(line) is not None
    rows = [{"text": "\n".join(own_lines)} for _, own_lines in texts]
    return replace(table, numbers=[number for number, _ in texts], rows=rows, lines=False)
