"""A comparison as rows of text, for the terminal and the HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.formatting import number, seconds
from intarsia.tasks.intervals import FEW

if TYPE_CHECKING:
    from intarsia.lab.comparison import Comparison, ComparisonRow


def share(value: float | None) -> str:
    """Format a share of the base in per cent. A small share other than 0 never prints as 0."""
    if value is None:
        return "–"
    if 0 < value < 0.00005:
        return "<0.01%"
    return f"{value:.0%}" if value >= 1 else f"{value:.2%}"


def comparison_columns(comparison: Comparison) -> list[str]:
    return ["method", "parameters", "of base", f"test {comparison.metric}", "time"]


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for row in comparison.rows:
        count = "–" if row.parameters is None else number(row.parameters["method"])
        took = "–" if row.seconds is None else seconds(row.seconds)
        rows.append([row.name, count, share(row.share), _score(row, comparison.seeds), took])
    return rows


def baseline_row(comparison: Comparison) -> list[str]:
    known, score = comparison.baseline or {}, comparison.baseline_score
    if score is None:
        return ["no BERT", "–", "–", "failed", "–"]
    return ["no BERT", number(known["parameters"]["total"]), "–", str(score), seconds(known["seconds"])]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return notes for below the table, failed runs first."""
    notes = [f"{row.name}: {problem}" for row in comparison.rows for problem in row.problems]
    rows = comparison.provenance["data"]["rows"]
    intervals = "with 95 % intervals over the test rows"
    if comparison.seeds > 1:
        intervals = (
            f"mean over {comparison.seeds} seeds ± the standard error of the mean, which does not include the "
            "uncertainty from the choice of test rows"
        )
    notes += [
        f"Scores times 100 on {rows['test']:,} test rows, after training on {rows['train']:,} rows: {intervals}.",
        "Parameters are those of the method, without the head. Time is the mean of one run, up to its test score; runs "
        "that share passes count their share by tokens.",
    ]
    if rows["test"] < FEW:
        notes.append(f"{rows['test']} test rows are too few to tell methods apart.")
    if comparison.baseline is not None:
        if comparison.baseline_score is None:
            notes.append(f"no BERT: {comparison.baseline['reason']}")
        else:
            winner, tried = comparison.baseline["winner"]["name"], comparison.baseline["tried"]
            notes.append(f"no BERT: {winner}, the best of {tried:,} candidates on dev, with a 95 % interval.")
    return notes


def _score(row: ComparisonRow, seeds: int) -> str:
    score = row.score
    if score is None:
        return "not applicable" if row.parameters is None else "failed"
    finished = sum(result.test is not None for result in row.results)
    return str(score) if finished == seeds else f"{score} [{finished} of {seeds} seeds]"
