"""What an experiment shows: tables, figures and sentences, for the terminal and for the page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia import files
from intarsia.lab.paper import names
from intarsia.lab.paper.plan import Planned
from intarsia.lab.paper.runs import Record
from intarsia.lab.paper.selection import Results
from intarsia.lab.report import svg
from intarsia.tasks.suites.registry import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sheet:
    """A table; its last `sums` rows are about all the others."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # columns of words, the first ones
    sums: int = 0


@dataclass(frozen=True)
class Picture:
    name: str
    figure: Figure
    caption: str


@dataclass
class Drawn:
    name: str
    title: str
    sheets: list[Sheet] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> list[Path]:
        """Each figure as SVG and PNG."""
        if self.pictures:
            files.make_folder(folder)
        written = []
        for picture in self.pictures:
            png = io.BytesIO()
            picture.figure.savefig(png, format="png", bbox_inches="tight", dpi=150)
            for kind, image in (("svg", svg(picture.figure)), ("png", png.getvalue())):
                written.append(folder / f"{picture.name}.{kind}")
                files.replace(written[-1], [image])
        return written


def short(count: float) -> str:
    """1,000 → 1 k, 22,713,216 → 22.7 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.0f}"


def percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def encoder_name(results: Results) -> str:
    return str(results.store.encoder["name"])


def about(results: Results, planned: Sequence[Planned], published: str, *, searched: bool = True) -> list[str]:
    """Which encoder, data and seeds were used, and what the published figures are of."""
    known, asked = results.store.encoder, results.asked
    records = [record for one in planned if (record := results.record(one)) is not None]
    seeds = sorted({r.settings["seed"] for r in records})
    counted = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds)) or '–'}"
    kinds = {find(one.task).kind for one in planned}
    reads = "every token" if kinds == {"span"} else asked.pooling
    length = max(one.settings(asked.max_length)["max_length"] for one in planned)
    chosen = "The best setting and the best epoch were" if searched else "The best epoch was"
    notes = [
        f"Measured: {known['name']} ({short(known['parameters'])} parameters, {known['layers']} layers, fingerprint "
        f"{known['fingerprint'][:12]}), {counted}, head on {reads}, texts of ≤ {length} tokens, "
        f"grid {asked.grid}{', bias correction' * bool(asked.bias_correction)}; {_machines(records)}.",
        f"{chosen} chosen on validation. Scores are on test, times 100: means over seeds ± the standard error of the "
        "mean, where there are several seeds.",
        *_splits(records),
        f"Published: {published}.",
    ]
    wanted = len({(p.task, p.method, p.learning_rate, p.epochs, p.seed, p.metric) for p in planned})
    there = len({r.identity for r in records})
    if there < wanted:
        notes.append(f"Only {there:,} of {wanted:,} runs are there; the others have not ended, or have no data here.")
    if failed := {r.identity: r for r in records if r.reason is not None}:
        notes.append(f"{len(failed)} runs failed; the first: {next(iter(failed.values())).reason}")
    if asked.limit is not None:
        notes.append(f"Limited to {asked.limit} training rows a task: these are not results of the official tasks.")
    elif any(r.data.get("partial") for r in records):
        notes.append("(sample): a part of the official task's rows. Not a result of the official task.")
    return notes


def _machines(records: Iterable[Record]) -> str:
    kinds = {f"{r.machine.get('accelerator') or r.machine.get('processor')}, {r.machine['precision']}" for r in records}
    return "; ".join(sorted(kinds)) or "no runs yet"


def _which(record: Record) -> str:
    """Whether the dev part is the official one: of a sample, or of a limited task, it may be."""
    rows, official = record.data.get("rows") or {}, find(record.task).rows.get("dev")
    some = record.data.get("partial") or record.data.get("limit")
    return "given" if some and rows.get("test") != official else "official"


def _splits(records: Iterable[Record]) -> list[str]:
    """On what each task was tested."""
    ways: dict[str, list[str]] = {}
    for record in records:
        how = str(record.data.get("split"))
        way = (
            f"the {_which(record)} dev part is test, and a tenth of train was held out for validation"
            if "the given dev is test" in how
            else "a random tenth is test, another validation"
            if "80/10/10" in how
            else f"parts {how}"
        )
        task = names.title(record.task, record.data)
        if task not in ways.setdefault(way, []):
            ways[way].append(task)
    return [f"{', '.join(tasks)}: {way}." for way, tasks in ways.items()]
