"""`intarsia evaluate --all`: every task of a bank in the precision of its base and, for int8, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cli.console import err, print_json, print_parts, table
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.bank.bank import Bank
    from intarsia.bank.precision_report import PrecisionReport, TaskReport


def evaluate_all(bank: Bank, data: Sequence[str], texts: Path | None, limit: int | None, json: bool) -> None:
    """Measure all tasks and print the report."""
    from intarsia.bank.precision_report import compare

    with err.status("loading the base") as status:
        report = compare(
            bank.store, bank.encoder, _sources(data), texts=texts, limit=limit, watch=lambda name: status.update(name)
        )
    print_json(report.to_dict()) if json else print_parts(report_parts(report))


def _sources(data: Sequence[str]) -> dict[str, Any] | str | None:
    """Return the values of `--data`: NAME=FILE for some tasks, or one folder."""
    if len(data) == 1 and "=" not in data[0]:
        return data[0]
    sources: dict[str, Any] = {}
    for given in data:
        name, equals, source = given.partition("=")
        if not equals or not name or not source or name in sources:
            raise IntarsiaError(f"--data {given!r}: expected NAME=FILE once for each task, or one folder.")
        sources[name] = source
    return sources or None


def report_parts(report: PrecisionReport) -> list[RenderableType]:
    """Return the table, a line for each task that was not measured, and the means."""
    precisions = list(dict.fromkeys(p for task in report.tasks for p in task.precisions))
    both = len(precisions) == 2
    header = ["task", "metric", "rows", *precisions, *(["change", "changed answers"] if both else [])]
    measured = [task for task in report.tasks if task.problem is None]
    rows = [[*_cells(task, precisions), *(_change(task.points, task.changed) if both else [])] for task in measured]
    total = ["mean", "", "", *("" for _ in precisions), *_change(report.points, report.changed)] if both else None
    parts: list[RenderableType] = [table(header, rows, left=2, total=total)] if measured else []
    parts += [f"{task.task}: not measured: {task.problem}" for task in report.tasks if task.problem is not None]
    speeds = {p: speed for p in precisions if (speed := report.speed(p))}
    if speeds:
        parts.append("tokens/s without tokenizing: " + ", ".join(f"{p} {speed:,.0f}" for p, speed in speeds.items()))
    if both and len(speeds) == 2:
        parts.append(f"int8 is {speeds['int8'] / speeds['float32']:.2f} times as fast as float32")
    return parts or ["The bank has no tasks."]


def _cells(task: TaskReport, precisions: Sequence[str]) -> list[str]:
    from intarsia.bank.precision_report import UNBOUNDED

    cells = [task.task, task.metric or "answers", f"{task.rows:,}"]
    for precision in precisions:
        score = task.precisions[precision].score
        shown = "" if score is None else f"{score:.3g}" if task.metric in UNBOUNDED else f"{100 * score:.2f}"
        cells.append(shown)
    return cells


def _change(points: float | None, changed: float | None) -> list[str]:
    return ["" if points is None else f"{points:+.2f}", "" if changed is None else f"{changed:.2%}"]
