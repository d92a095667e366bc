"""What a data folder has, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.cli.console import table
from intarsia.tasks.suites.folder import Part, Status
from intarsia.tasks.suites.suite import PARTIAL

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = ("task", "kind", "metric", "train/all", "dev", "test", "state")
STYLES = {"whole": "green", "partial": "yellow", "missing": "dim"}


def suites_table(found: Sequence[Status], folder: Path) -> list[RenderableType]:
    """A row for each task, its rows here against the official ones, and what to do about the rest."""
    rows = []
    for one in found:
        task, parts = one.task, {part.split: part for part in one.parts}
        state = f"[{STYLES[one.state]}]{one.state}[/]"
        names = [task.full_name, task.kind, task.metrics[0].partition(":")[0]]
        if "all" in task.rows:
            rows.append([*names, _together(one), "", "", state])
            continue
        rows.append([*names, *(_cell(parts.get(split)) for split in ("train", "dev", "test")), state])
        if "dev_mismatched" in parts:
            second = [_cell(parts.get(f"{split}_mismatched")) for split in ("dev", "test")]
            rows.append(["  its mismatched sets", "", "", "", *second, ""])
    states = [one.state for one in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STYLES if state in states)
    made: list[RenderableType] = [
        table(COLUMNS, rows, left=3),
        f"\n{folder}: {counts}. Rows here, of the official number where that differs.",
    ]
    odd = [one.task.full_name for one in found if one.state == "partial" and _all_rows(one)]
    if odd:
        made.append(f"{', '.join(odd)}: all rows, but in a folder of samples ({PARTIAL}), so not the official task.")
    if "missing" in states or "partial" in states:
        made.append("To fetch: intarsia data fetch SUITE/TASK --from hub, or --from FOLDER with the official files.")
    return made


def _cell(part: Part | None) -> str:
    if part is None:
        return ""
    if part.whole:
        return f"{part.rows:,}"
    return f"{'–' if part.rows is None else format(part.rows, ',')}/{_official(part.official)}"


def _together(one: Status) -> str:
    """The rows of a task that officially has no parts; a sample may have some."""
    if one.parts[0].whole:
        return f"{one.parts[0].rows:,}"
    rows = [part.rows for part in one.parts if part.rows is not None]
    return f"{format(sum(rows), ',') if rows else '–'}/{_official(one.parts[0].official)}"


def _all_rows(one: Status) -> bool:
    """Whether a sample has as many rows as the task itself."""
    official = [part.official for part in one.parts if part.official is not None]
    return bool(official) and sum(part.rows or 0 for part in one.parts) == sum(official)


def _official(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"
