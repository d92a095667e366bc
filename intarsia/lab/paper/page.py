"""One page with every table and figure: static, without links to anything outside."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.lab.paper.drawn import Drawn
from intarsia.lab.report import Page


def page(drawn: Sequence[Drawn], encoder: str) -> str:
    made = Page(f"Houlsby et al. 2019, measured with {encoder}")
    made.text(
        "Tables and figures of Parameter-Efficient Transfer Learning for NLP, measured again, and the published "
        "figures beside them. The published ones are of other encoders, and of GLUE's hidden test labels: they say "
        "what to expect, not what must come out."
    )
    for one in drawn:
        made.heading(one.title)
        for sheet in one.sheets:
            made.text(sheet.title)
            made.table(sheet.columns, sheet.rows, left=tuple(range(sheet.left)), sums=sheet.sums)
        for picture in one.pictures:
            made.figure(picture.figure, picture.caption)
        for note in one.notes:
            made.text(note, "note")
    return made.render()
