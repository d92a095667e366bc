"""A comparison as rows of text, for the terminal and for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.formatting import number, seconds

if TYPE_CHECKING:
    from intarsia.lab.comparison import Comparison, Row


def share(value: float | None) -> str:
    """Of the base, in per cent; what would round to nothing is no nothing."""
    if value is None:
        return "–"
    if 0 < value < 0.00005:
        return "<0.01%"
    return f"{value:.0%}" if value >= 1 else f"{value:.2%}"


def comparison_columns(found: Comparison) -> list[str]:
    return ["method", "parameters", "of base", f"test {found.metric}", "time"]


def comparison_rows(found: Comparison) -> list[list[str]]:
    rows = []
    for row in found.rows:
        count = "–" if row.parameters is None else number(row.parameters["method"])
        took = "–" if row.seconds is None else seconds(row.seconds)
        rows.append([row.name, count, share(row.share), _score(row, found.seeds), took])
    return rows


def baseline_row(found: Comparison) -> list[str]:
    known, score = found.baseline or {}, found.baseline_score
    if score is None:
        return ["no BERT", "–", "–", "failed", "–"]
    return ["no BERT", number(known["parameters"]["total"]), "–", str(score), seconds(known["seconds"])]


def comparison_notes(found: Comparison) -> list[str]:
    """Sentences: first what went wrong."""
    notes = [f"{row.name}: {problem}" for row in found.rows for problem in row.problems]
    rows = found.provenance["data"]["rows"]
    over = "95 % bootstrap intervals over the test rows"
    if found.seeds > 1:
        over = f"means over {found.seeds} seeds ± the standard error of the mean, which says nothing of the test rows"
    notes += [
        f"Scores times 100, on {rows['test']:,} test rows, after training on {rows['train']:,}: {over}.",
        "Parameters are those of the method, without the head. Time is the mean of a run, to its score; where runs "
        "share passes, it is the run's share by tokens.",
    ]
    if found.baseline is not None:
        if found.baseline_score is None:
            notes.append(f"no BERT: {found.baseline['reason']}")
        else:
            winner, tried = found.baseline["winner"]["name"], found.baseline["tried"]
            notes.append(f"no BERT: {winner}, the best of {tried:,} on dev, with a 95 % bootstrap interval.")
    return notes


def _score(row: Row, seeds: int) -> str:
    score = row.score
    if score is None:
        return "not here" if row.parameters is None else "failed"
    ended = sum(result.test is not None for result in row.results)
    return str(score) if ended == seeds else f"{score} [{ended} of {seeds} seeds]"
