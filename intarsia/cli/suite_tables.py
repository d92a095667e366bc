"""The public tasks of a data folder, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from intarsia.cli.console import table
from intarsia.tasks.suites.folder import SplitStatus, Status
from intarsia.tasks.suites.suite import PARTIAL

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = ("task", "kind", "metric", "train/all", "dev", "test", "state")
STYLES = {"whole": "green", "partial": "yellow", "missing": "dim"}


def suites_table(found: Sequence[Status], folder: Path) -> list[RenderableType]:
    """Return a table with one line for each task (rows here and official rows), and notes on incomplete tasks."""
    rows: list[list[str | Text]] = []
    for status in found:
        task, parts = status.task, {part.split: part for part in status.parts}
        state = Text(status.state, STYLES[status.state])
        names = [task.full_name, task.kind, task.metrics[0].partition(":")[0]]
        if "all" in task.rows:
            rows.append([*names, _together(status), "", "", state])
            continue
        rows.append([*names, *(_cell(parts.get(split)) for split in ("train", "dev", "test")), state])
        if "dev_mismatched" in parts:
            second = [_cell(parts.get(f"{split}_mismatched")) for split in ("dev", "test")]
            rows.append(["  its mismatched sets", "", "", "", *second, ""])
    states = [status.state for status in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STYLES if state in states)
    made: list[RenderableType] = [
        table(COLUMNS, rows, left=3),
        f"\n{folder}: {counts}. The table shows rows here/official rows where the two differ.",
    ]
    odd = [status.task.full_name for status in found if status.state == "partial" and _all_rows(status)]
    if odd:
        made.append(f"{', '.join(odd)}: all rows, but stored as a sample ({PARTIAL}), so not official.")
    if "missing" in states or "partial" in states:
        made.append(
            "To fetch a task: intarsia data fetch SUITE/TASK --from hub (or --from FOLDER with the official files)."
        )
    return made


def _cell(part: SplitStatus | None) -> str:
    if part is None:
        return ""
    if part.whole:
        return f"{part.rows:,}"
    return f"{'–' if part.rows is None else format(part.rows, ',')}/{_official(part.official)}"


def _together(status: Status) -> str:
    """Return the rows of a task without official parts. A sample may have parts."""
    if status.parts[0].whole:
        return f"{status.parts[0].rows:,}"
    rows = [part.rows for part in status.parts if part.rows is not None]
    return f"{format(sum(rows), ',') if rows else '–'}/{_official(status.parts[0].official)}"


def _all_rows(status: Status) -> bool:
    """Return whether a sample has as many rows as the official task."""
    official = [part.official for part in status.parts if part.official is not None]
    return bool(official) and sum(part.rows or 0 for part in status.parts) == sum(official)


def _official(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"
