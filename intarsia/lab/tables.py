"""The laboratory's results as tables for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from intarsia.console import number, out, seconds, table
from intarsia.lab.cost import ASSUMED, ROWS, STEPS, TOKENS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.lab.catalogue import Catalogue, Listed
    from intarsia.lab.comparison import Comparison, Row


WIDTH = 100  # columns that a table of methods may take
NARROW = 92  # in fewer, its column of papers is left out


def share(value: float | None) -> str:
    """Of the base, in per cent; what would round to nothing is no nothing."""
    if value is None:
        return "–"
    if 0 < value < 0.00005:
        return "<0.01%"
    return f"{value:.0%}" if value >= 1 else f"{value:.2%}"


def methods_table(found: Catalogue) -> list[RenderableType]:
    """The table, and under it what its columns mean."""
    columns = ["method", "paper", "what trains", "parameters", "of base", "merge", "mix", "step"]
    rows = [_methods_row(listed) for listed in found.methods]
    if out.width < NARROW:
        columns, rows = [c for c in columns if c != "paper"], [[row[0], *row[2:]] for row in rows]
    made = table(columns, rows, left=columns.index("parameters"))
    made.columns[columns.index("what trains")].no_wrap = False
    made.width = min(WIDTH, out.width)
    notes = [f"{m.name}: {m.reason}" for m in found.methods if m.reason is not None]
    notes += [
        f"base: {found.encoder}, {number(found.parameters)} parameters. A method's are counted without the head.",
        "merge: what was learned fits into a plain model. mix: rows of many tasks run in one pass.",
        f"step: the cost of a training step, {_measured(found) if found.measured else ASSUMED}.",
    ]
    if twice := [m.name for m in found.methods if m.steps == 2]:
        notes.append(f"{' and '.join(twice)} train in two phases: twice as many steps as were asked for.")
    notes.append(
        "features: the base runs over the data once, forward only, a third of what an epoch of full fine-tuning "
        "costs; the steps after that cost next to nothing."
    )
    return [made, "", *(line for note in notes for line in _wrapped(note))]


def _measured(found: Catalogue) -> str:
    full = next(m.step_seconds or 0.0 for m in found.methods if m.name == "full")
    return (
        f"measured, full fine-tuning = 1 ({1000 * full:,.0f} ms): {ROWS} texts of {TOKENS} tokens, medians of {STEPS} "
        "steps, each beside one of full fine-tuning"
    )


def _methods_row(m: Listed) -> list[str]:
    paper = re.sub(r" et al\.| & \S+", "", m.paper)
    if m.reason is not None or m.parameters is None or m.step is None:
        return [m.name, paper, m.trains, "not here,", "see", "below", "", ""]
    merge, mix = ("yes" if flag else "no" for flag in (m.mergeable, m.mixable))
    return [m.name, paper, m.trains, number(m.parameters), share(m.share), merge, mix, f"{m.step:.2f}"]


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def comparison_table(found: Comparison) -> list[RenderableType]:
    """The table, and under it what went wrong and what its figures mean."""
    made = table(comparison_columns(found), comparison_rows(found))
    if found.baseline is not None:
        made.add_section()
        made.add_row(*baseline_row(found))
    return [made, "", *comparison_notes(found)]


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
        "Parameters are those of the method, without the head. Time is that of one run, to its score.",
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
