"""Trained adapters taken out again, from every contiguous span of layers, without retraining."""

from __future__ import annotations

import statistics

from intarsia.lab.paper import names, published
from intarsia.lab.paper.drawn import Drawn, Picture, Sheet, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.figures import heatmap
from intarsia.lab.paper.plan import Asked, Planned, Searched
from intarsia.lab.paper.runs import Record
from intarsia.lab.paper.selection import Mean, Results
from intarsia.methods import Bottleneck

TITLE = "Adapters removed from spans of layers"
TASKS = ("glue/mnli", "glue/cola")


def planned(asked: Asked, depth: int) -> list[Planned]:
    found = []
    for task in asked.tasks:
        grid = asked.values(task)
        rate, epochs = grid.one
        options = {"metric": "accuracy", "extras": ("spans",)}  # as in the paper, also on CoLA
        found += Searched(task, "adapters", [Bottleneck(grid.fixed)], [rate], [epochs], options).planned(asked)
    return found


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("ablation", TITLE)
    maps, rows = [], []
    for task in asked.tasks:
        runs = [r for one in planned(asked, depth) if one.task == task and (r := results.record(one)) is not None]
        runs = [r for r in runs if "spans" in r.extras]
        if not runs:
            continue
        title = names.title(task, runs[0].data)
        cells = changes(runs)
        maps.append((title, cells))
        rows += _rows(task, title, runs, cells, depth)
    columns = ["task", "adapters removed", "accuracy", "change", "published"]
    size = asked.values(asked.tasks[0]).fixed
    made.sheets.append(
        Sheet(
            f"Accuracy on test without the adapters (size {size}) of some layers; published: BERT-base, size 64",
            columns, rows, left=2,
        )
    )  # fmt: skip
    if maps:
        caption = (
            f"{encoder_name(results)}: relative change of test accuracy when the trained adapters of layers first … "
            "last are removed. On the diagonal one layer; at the upper right all of them. The tuned LayerNorms stay."
        )
        made.pictures.append(Picture("ablation", heatmap(maps, depth), caption))
    published_are = (
        f"BERT-base, on validation: no single layer costs more than {published.ABLATION_SINGLE_DROP:g} %; all removed "
        f"gives the majority class; {published.ABLATION_LOWER}"
    )
    made.notes = about(results, planned(asked, depth), published_are, searched=False)
    return made


def changes(runs: list[Record]) -> dict[tuple[int, int], float]:
    """Of each span, the change relative to the intact score, in per cent: the mean over seeds."""
    found: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        spans = run.extras["spans"]
        for first, last, value in spans["removed"]:
            found.setdefault((first, last), []).append(100 * (value - spans["intact"]) / max(spans["intact"], 1e-9))
    return {span: statistics.fmean(values) for span, values in found.items()}


def _rows(
    task: str, title: str, runs: list[Record], cells: dict[tuple[int, int], float], depth: int
) -> list[list[str]]:
    def accuracy(span: tuple[int, int]) -> str:
        return str(Mean.of([v for run in runs for f, last, v in run.extras["spans"]["removed"] if (f, last) == span]))

    single = {layer: cells[layer, layer] for layer in range(depth)}
    worst = min(single, key=lambda layer: single[layer])
    lower = (0, max(0, round(5 * depth / 12) - 1))  # the share of the depth that layers 0–4 of 12 are
    everything = (0, depth - 1)
    official = published.ABLATION_ALL.get(task)
    rows = [[title, "none", str(Mean.of([run.extras["spans"]["intact"] for run in runs])), "", ""]]
    rows += [["", f"layer {n}", accuracy((n, n)), f"{change:+.1f}%", ""] for n, change in single.items()]
    drop = f"at most -{published.ABLATION_SINGLE_DROP:g}%" if task in TASKS else ""
    rows += [
        ["", f"the costliest layer ({worst})", accuracy((worst, worst)), f"{single[worst]:+.1f}%", drop],
        ["", f"layers {lower[0]}–{lower[1]}", accuracy(lower), f"{cells[lower]:+.1f}%",
         "nearly free" if task == "glue/mnli" else ""],
        ["", "all", accuracy(everything), f"{cells[everything]:+.1f}%",
         "" if official is None else f"accuracy {official:.0f}"],
        ["", "(the majority class)", f"{100 * runs[0].extras['spans']['majority']:.1f}", "", ""],
    ]  # fmt: skip
    return rows


ABLATION = Experiment("ablation", TITLE, TASKS, planned, draw)
