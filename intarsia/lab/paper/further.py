"""The seventeen further classification tasks: the paper's second table."""

from __future__ import annotations

from intarsia.lab.paper import published, suite_table
from intarsia.lab.paper.drawn import Drawn, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.selection import Results

TITLE = "Seventeen further tasks"
TASKS = tuple(published.FURTHER.rows["full"].scores)


def draw(results: Results) -> Drawn:
    beside, depth = published.FURTHER, int(results.store.encoder["layers"])
    title = f"Further tasks, accuracy: {encoder_name(results)}, and beside it the published figures of {beside.encoder}"
    made = Drawn("further", TITLE, [suite_table.sheet(results, beside, title, metrics=False)])
    made.notes = about(results, suite_table.planned(results.asked, depth), f"{beside.encoder}, {beside.taken_on}")
    made.notes.append(suite_table.tried_note(results.asked, depth))
    made.notes += suite_table.published_notes(beside, len(TASKS))
    return made


FURTHER = Experiment("further", TITLE, TASKS, suite_table.planned, draw)
