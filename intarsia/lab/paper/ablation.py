"""Ablation: trained adapters removed from every contiguous span of layers, without retraining."""

from __future__ import annotations

import statistics

from intarsia.lab.paper import names, published
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import (
    ExperimentReport,
    ReportFigure,
    ReportTable,
    encoder_name,
    provenance_notes,
)
from intarsia.lab.paper.figures import heatmap
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun, RunGrid
from intarsia.lab.paper.runs import Record
from intarsia.lab.paper.selection import Mean, Results
from intarsia.methods import Bottleneck

TITLE = "Adapters removed from spans of layers"
TASKS = ("glue/mnli", "glue/cola")


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs whose adapters are removed after training."""
    found = []
    for task in config.tasks:
        grid = config.task_grid(task)
        rate, epochs = grid.fixed_recipe
        options = {"metric": "accuracy", "extras": ("spans",)}  # the paper uses accuracy, also on CoLA
        found += RunGrid(task, "adapters", [Bottleneck(grid.fixed_size)], [rate], [epochs], options).runs(config)
    return found


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    config, depth = results.config, int(results.store.encoder["layers"])
    report = ExperimentReport("ablation", TITLE)
    maps, rows = [], []
    for task in config.tasks:
        runs = [r for p in planned_runs(config, depth) if p.task == task and (r := results.record(p)) is not None]
        runs = [r for r in runs if "spans" in r.extras]
        if not runs:
            continue
        title = names.title(task, runs[0].data)
        cells = changes(runs)
        maps.append((title, cells))
        rows += _rows(task, title, runs, cells, depth)
    columns = ["task", "adapters removed", "accuracy", "change", "published"]
    size = config.task_grid(config.tasks[0]).fixed_size
    report.tables.append(
        ReportTable(
            f"Test accuracy after removing adapters (size {size}); published: BERT-base, size 64",
            columns, rows, left=2,
        )
    )  # fmt: skip
    if maps:
        caption = (
            f"{encoder_name(results)}: relative change of test accuracy after removing the trained adapters of a span "
            "of layers. Diagonal: one layer. Upper right: all layers. The trained LayerNorms stay."
        )
        report.figures.append(ReportFigure("ablation", heatmap(maps, depth), caption))
    published_results = (
        f"BERT-base, on validation: no single layer costs more than {published.ABLATION_SINGLE_DROP:g} %; without "
        f"any adapters the model predicts the majority class; {published.ABLATION_LOWER}"
    )
    report.notes = provenance_notes(results, planned_runs(config, depth), published_results, searched=False)
    return report


def changes(runs: list[Record]) -> dict[tuple[int, int], float]:
    """Return for each span the relative change of the score in per cent: the mean over seeds."""
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
    lower = (0, max(0, round(5 * depth / 12) - 1))  # the same share of the depth as layers 0–4 of 12
    everything = (0, depth - 1)
    official = published.ABLATION_ALL.get(task)
    rows = [[title, "none", str(Mean.of([run.extras["spans"]["intact"] for run in runs])), "", ""]]
    rows += [["", f"layer {n}", accuracy((n, n)), f"{change:+.1f}%", ""] for n, change in single.items()]
    drop = f"at most -{published.ABLATION_SINGLE_DROP:g}%" if task in TASKS else ""
    rows += [
        ["", f"largest drop (layer {worst})", accuracy((worst, worst)), f"{single[worst]:+.1f}%", drop],
        ["", f"layers {lower[0]}–{lower[1]}", accuracy(lower), f"{cells[lower]:+.1f}%",
         "nearly free" if task == "glue/mnli" else ""],
        ["", "all", accuracy(everything), f"{cells[everything]:+.1f}%",
         "" if official is None else f"accuracy {official:.0f}"],
        ["", "(majority class)", f"{100 * runs[0].extras['spans']['majority']:.1f}", "", ""],
    ]  # fmt: skip
    return rows


ABLATION = Experiment("ablation", TITLE, TASKS, planned_runs, draw)
