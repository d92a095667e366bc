"""One static HTML page with every table and figure, without external links."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.lab.paper.experiment_report import ExperimentReport
from intarsia.lab.report import Page


def page(reports: Sequence[ExperimentReport], encoder: str) -> str:
    """Return the HTML of all reports."""
    html = Page(f"Houlsby et al. 2019, measured with {encoder}")
    html.text(
        "Tables and figures of Parameter-Efficient Transfer Learning for NLP, reproduced, with the published scores "
        "for comparison. The published scores come from other encoders and, on GLUE, from hidden test labels. They "
        "are therefore a guide, not an exact target."
    )
    for report in reports:
        html.heading(report.title)
        for table in report.tables:
            html.text(table.title)
            html.table(table.columns, table.rows, left=tuple(range(table.left)), summary_rows=table.summary_rows)
        for item in report.figures:
            html.figure(item.figure, item.caption)
        for note in report.notes:
            html.text(note, "note")
    return html.render()
