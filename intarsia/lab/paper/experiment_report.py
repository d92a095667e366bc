"""The report of an experiment: tables, figures and notes, for the terminal and the HTML page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia import files
from intarsia.lab.paper import names
from intarsia.lab.paper.plan import PlannedRun
from intarsia.lab.paper.runs import Record
from intarsia.lab.paper.selection import Results
from intarsia.lab.report import svg
from intarsia.tasks.suites.registry import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ReportTable:
    """A table. The last `summary_rows` rows summarise the rows above them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # number of left-aligned columns, from the first
    summary_rows: int = 0


@dataclass(frozen=True)
class ReportFigure:
    name: str
    figure: Figure
    caption: str


@dataclass
class ExperimentReport:
    name: str
    title: str
    tables: list[ReportTable] = field(default_factory=list)
    figures: list[ReportFigure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> list[Path]:
        """Write each figure as SVG and PNG; return the paths."""
        if self.figures:
            files.make_folder(folder)
        written = []
        for item in self.figures:
            png = io.BytesIO()
            item.figure.savefig(png, format="png", bbox_inches="tight", dpi=150)
            for kind, image in (("svg", svg(item.figure)), ("png", png.getvalue())):
                written.append(folder / f"{item.name}.{kind}")
                files.replace(written[-1], [image])
        return written


def short_count(count: float) -> str:
    """Return a count with a unit: 1,000 → 1 k, 22,713,216 → 22.7 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.0f}"


def percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def encoder_name(results: Results) -> str:
    return str(results.store.encoder["name"])


def provenance_notes(
    results: Results, planned: Sequence[PlannedRun], published: str, *, searched: bool = True
) -> list[str]:
    """Return notes on the encoder, data and seeds of the measured scores, and on the source of the published ones.

    `searched` says whether the experiment selects settings on validation, or only the epoch.
    """
    encoder, config = results.store.encoder, results.config
    records = [record for run in planned if (record := results.record(run)) is not None]
    seeds = sorted({r.settings["seed"] for r in records})
    seed_list = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds)) or '–'}"
    kinds = {find(run.task).kind for run in planned}
    head_input = "every token" if kinds == {"span"} else config.pooling
    length = max(run.settings(config.max_length)["max_length"] for run in planned)
    selected = "The best setting and the best epoch were" if searched else "The best epoch was"
    notes = [
        f"Measured: {encoder['name']} ({short_count(encoder['parameters'])} parameters, {encoder['layers']} layers, "
        f"fingerprint {encoder['fingerprint'][:12]}), {seed_list}, head on {head_input}, texts of ≤ {length} tokens, "
        f"grid {config.grid}{', bias correction' * bool(config.bias_correction)}; {_machines(records)}.",
        f"{selected} selected on validation. Scores are test scores times 100. With several seeds, they are the mean ± "
        "the standard error of the mean.",
        *_splits(records),
        f"Published: {published}.",
    ]
    wanted = len({(p.task, p.method, p.learning_rate, p.epochs, p.seed, p.metric) for p in planned})
    stored = len({r.identity for r in records})
    if stored < wanted:
        notes.append(f"Incomplete: {stored:,} of {wanted:,} planned runs are stored.")
    if failed := {r.identity: r for r in records if r.reason is not None}:
        notes.append(f"{len(failed)} runs failed. The first error: {next(iter(failed.values())).reason}")
    if config.limit is not None:
        notes.append(f"Limited to {config.limit} training rows per task: these are not results of the official tasks.")
    elif any(r.data.get("partial") for r in records):
        notes.append("(sample): trained or tested on a part of the official rows. Not a result of the official task.")
    return notes


def _machines(records: Iterable[Record]) -> str:
    kinds = {f"{r.machine.get('accelerator') or r.machine.get('processor')}, {r.machine['precision']}" for r in records}
    return "; ".join(sorted(kinds)) or "no runs yet"


def _dev_part(record: Record) -> str:
    """Return "official" if the test rows are the whole official dev part, else "given".

    A sample or a limited task may still have the whole dev part.
    """
    rows, official = record.data.get("rows") or {}, find(record.task).rows.get("dev")
    reduced = record.data.get("partial") or record.data.get("limit")
    return "given" if reduced and rows.get("test") != official else "official"


def _splits(records: Iterable[Record]) -> list[str]:
    """Return a note for each kind of split, with the tasks that use it."""
    tasks_by_split: dict[str, list[str]] = {}
    for record in records:
        split = str(record.data.get("split"))
        description = (
            f"the {_dev_part(record)} dev part serves as test, a tenth of train as validation"
            if "the given dev is test" in split
            else "a random tenth serves as test, another tenth as validation"
            if "80/10/10" in split
            else f"parts {split}"
        )
        task = names.title(record.task, record.data)
        if task not in tasks_by_split.setdefault(description, []):
            tasks_by_split[description].append(task)
    return [f"{', '.join(tasks)}: {description}." for description, tasks in tasks_by_split.items()]
