"""The seventeen further classification tasks: the paper's second table."""

from __future__ import annotations

from intarsia.lab.paper import no_bert, published, suite_table
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import ExperimentReport, encoder_name, provenance_notes
from intarsia.lab.paper.selection import Results

TITLE = "Seventeen further tasks"
TASKS = tuple(published.FURTHER.rows["full"].scores)


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    paper_table, depth = published.FURTHER, int(results.store.encoder["layers"])
    title = f"Further tasks, accuracy: {encoder_name(results)}, with the published scores of {paper_table.encoder}"
    groups = (no_bert.GROUP, "full", "variable", "adapters")
    report = ExperimentReport("further", TITLE, [suite_table.score_table(results, paper_table, title, groups)])
    report.tables += suite_table.selection_table(results)
    report.notes = provenance_notes(
        results, suite_table.planned_runs(results.config, depth), f"{paper_table.encoder}, {paper_table.evaluated_on}"
    )
    report.notes.append(suite_table.tried_note(results, depth))
    candidates = max(results.config.task_grid(task).candidates for task in results.config.tasks)
    report.notes.append(
        f"No BERT: n-grams and scikit-learn models, the best of {candidates} candidates on validation. The published "
        "scores come from the authors' own search."
    )
    report.notes += suite_table.published_notes(paper_table, len(TASKS))
    return report


FURTHER = Experiment("further", TITLE, TASKS, suite_table.planned_runs, draw, no_bert=True)
