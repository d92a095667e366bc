"""GLUE: the paper's first table."""

from __future__ import annotations

import statistics

from intarsia.lab.paper import published, suite_table
from intarsia.lab.paper.drawn import Drawn, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.selection import Results

TITLE = "GLUE"
TASKS = tuple(task for task in published.GLUE_TASKS if task != published.MISMATCHED)


def draw(results: Results) -> Drawn:
    beside, depth = published.GLUE, int(results.store.encoder["layers"])
    title = f"GLUE: {encoder_name(results)}, and beside it the published figures of {beside.encoder}"
    made = Drawn("glue", TITLE, [suite_table.sheet(results, beside, title, metrics=True)])
    made.notes = about(
        results,
        suite_table.planned(results.asked, depth),
        f"{beside.encoder}, {beside.taken_on} (adapters: size 8, 64 or 256 by task; then size 64)",
    )
    made.notes += suite_table.published_notes(beside, len(published.GLUE_TASKS))
    plain = ", ".join(f"{statistics.fmean(row.scores.values()):.1f}" for row in beside.rows.values())
    made.notes.append(
        f"The published means are the benchmark's own average, which also has other metrics: the plain means of the "
        f"published columns are {plain}."
    )
    made.notes.append("The paper counts MNLI's two test parts as two of its nine tasks; here it is trained once.")
    return made


GLUE = Experiment("glue", TITLE, TASKS, suite_table.planned, draw)
