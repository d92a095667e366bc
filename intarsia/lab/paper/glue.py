"""GLUE: the paper's first table."""

from __future__ import annotations

import statistics

from intarsia.lab.paper import plan, published, suite_table
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import ExperimentReport, ReportTable, encoder_name, provenance_notes
from intarsia.lab.paper.selection import Results

TITLE = "GLUE"
GROUPS = ("full", "variable", "adapters", "fixed")
TASKS = tuple(task for task in published.GLUE_TASKS if task != published.MISMATCHED)


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    paper_table, depth = published.GLUE, int(results.store.encoder["layers"])
    title = f"GLUE: {encoder_name(results)}, with the published scores of {paper_table.encoder}"
    report = ExperimentReport(
        "glue", TITLE, [suite_table.score_table(results, paper_table, title, GROUPS, metrics=True, sizes=True)]
    )
    report.tables += _by_size(results)
    report.notes = provenance_notes(
        results,
        suite_table.planned_runs(results.config, depth),
        f"{paper_table.encoder}, {paper_table.evaluated_on} (adapters: size 8, 64 or 256 by task; then size 64)",
    )
    report.notes.append(suite_table.tried_note(results, depth))
    report.notes += suite_table.published_notes(paper_table, len(published.GLUE_TASKS))
    plain = ", ".join(f"{statistics.fmean(row.scores.values()):.1f}" for row in paper_table.rows.values())
    report.notes.append(
        f"The published means are the benchmark's own average, which includes further metrics. The plain means of the "
        f"published columns are {plain}."
    )
    report.notes.append("The paper counts MNLI's two test parts as two of its nine tasks. Here MNLI is trained once.")
    return report


def _by_size(results: Results) -> list[ReportTable]:
    """Return a table of the mean score with one size for all tasks, over the tasks that have runs of every size."""
    config = results.config
    tasks = [task for task in config.tasks if task.startswith("glue/")]
    found: dict[int, dict[str, float]] = {}
    for size in config.task_grid("glue/cola").sizes:
        best = {task: results.select(plan.adapters(task, config, [size])) for task in tasks}
        scored = {task: s.dev for task, s in best.items() if s is not None and not s.data.get("partial")}
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
    title = "One size for all tasks: mean validation score (measured: official metrics; published: accuracy)"
    return [ReportTable(title, ["size", "tasks", "measured", "publ."], rows)]


GLUE = Experiment("glue", TITLE, TASKS, suite_table.planned_runs, draw)
