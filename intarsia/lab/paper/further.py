"""The seventeen further classification tasks: the paper's second table."""

from __future__ import annotations

from intarsia.lab.paper import no_bert, published, suite_table
from intarsia.lab.paper.drawn import Drawn, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.selection import Results

TITLE = "Seventeen further tasks"
TASKS = tuple(published.FURTHER.rows["full"].scores)


def draw(results: Results) -> Drawn:
    beside, depth = published.FURTHER, int(results.store.encoder["layers"])
    title = f"Further tasks, accuracy: {encoder_name(results)}, and beside it the published figures of {beside.encoder}"
    groups = (no_bert.GROUP, "full", "variable", "adapters")
    made = Drawn("further", TITLE, [suite_table.sheet(results, beside, title, groups)])
    made.sheets += suite_table.chosen_sheet(results)
    made.notes = about(results, suite_table.planned(results.asked, depth), f"{beside.encoder}, {beside.taken_on}")
    made.notes.append(suite_table.tried_note(results, depth))
    candidates = max(results.asked.values(task).candidates for task in results.asked.tasks)
    made.notes.append(
        f"No BERT: n-grams and models of scikit-learn, one search, the best of {candidates} candidates on validation. "
        "The published figures are of the authors' own search."
    )
    made.notes += suite_table.published_notes(beside, len(TASKS))
    return made


FURTHER = Experiment("further", TITLE, TASKS, suite_table.planned, draw, no_bert=True)
