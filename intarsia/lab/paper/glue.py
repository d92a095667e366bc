"""GLUE: the paper's first table."""

from __future__ import annotations

import statistics

from intarsia.lab.paper import plan, published, suite_table
from intarsia.lab.paper.drawn import Drawn, Sheet, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.selection import Results

TITLE = "GLUE"
GROUPS = ("full", "variable", "adapters", "fixed")
TASKS = tuple(task for task in published.GLUE_TASKS if task != published.MISMATCHED)


def draw(results: Results) -> Drawn:
    beside, depth = published.GLUE, int(results.store.encoder["layers"])
    title = f"GLUE: {encoder_name(results)}, and beside it the published figures of {beside.encoder}"
    made = Drawn("glue", TITLE, [suite_table.sheet(results, beside, title, GROUPS, metrics=True, sizes=True)])
    made.sheets += _by_size(results)
    made.notes = about(
        results,
        suite_table.planned(results.asked, depth),
        f"{beside.encoder}, {beside.taken_on} (adapters: size 8, 64 or 256 by task; then size 64)",
    )
    made.notes.append(suite_table.tried_note(results, depth))
    made.notes += suite_table.published_notes(beside, len(published.GLUE_TASKS))
    plain = ", ".join(f"{statistics.fmean(row.scores.values()):.1f}" for row in beside.rows.values())
    made.notes.append(
        f"The published means are the benchmark's own average, which also has other metrics: the plain means of the "
        f"published columns are {plain}."
    )
    made.notes.append("The paper counts MNLI's two test parts as two of its nine tasks; here it is trained once.")
    return made


def _by_size(results: Results) -> list[Sheet]:
    """One size for all tasks: how little the size matters. Over the tasks that have runs of every size shown."""
    asked = results.asked
    tasks = [task for task in asked.tasks if task.startswith("glue/")]
    found: dict[int, dict[str, float]] = {}
    for size in asked.values("glue/cola").sizes:
        best = {task: results.choose(plan.adapters(task, asked, [size])) for task in tasks}
        scored = {task: one.dev for task, one in best.items() if one is not None and not one.data.get("partial")}
        if scored:
            found[size] = scored
    shared = set.intersection(*map(set, found.values())) if found else set()
    if len(found) < 2 or not shared:
        return []
    rows = []
    for size, scored in found.items():
        official = published.GLUE_BY_SIZE.get(size)
        mean = statistics.fmean(scored[task] for task in shared)
        rows.append([str(size), str(len(shared)), f"{100 * mean:.1f}", "–" if official is None else f"{official:.1f}"])
    title = "The same size for all tasks: mean on validation (measured: official metrics; published: accuracy)"
    return [Sheet(title, ["size", "tasks", "measured", "publ."], rows)]


GLUE = Experiment("glue", TITLE, TASKS, suite_table.planned, draw)
