"""The adapter variants that the authors tried without gain."""

from __future__ import annotations

import dataclasses
from typing import Any

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import (
    ExperimentReport,
    ReportTable,
    encoder_name,
    provenance_notes,
    short_count,
)
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun, RunGrid
from intarsia.lab.paper.selection import Results
from intarsia.methods import Bottleneck

TITLE = "Variants of the adapter"
TASKS = ("glue/mnli", "glue/cola")
VARIANTS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "batch norm inside": {"inner_norm": "batch"},
    "layer norm inside": {"inner_norm": "layer"},
    "two hidden layers": {"depth": 2},
    "three hidden layers": {"depth": 3},
    "tanh": {"activation": "tanh"},
    "relu": {"activation": "relu"},
    "swish": {"activation": "swish"},
    "behind the attention only": {"places_in_layer": "attention"},
    "behind the feed-forward only": {"places_in_layer": "ffn"},
    "parallel": {"parallel": True},
    "multiplicative": {"multiplicative": True},
    "parallel, multiplicative": {"parallel": True, "multiplicative": True},
}


def _method(task: str, config: ExperimentConfig, name: str) -> Bottleneck:
    return dataclasses.replace(Bottleneck(config.task_grid(task).fixed_size), **VARIANTS[name])


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs of full fine-tuning and of every variant."""
    found = []
    for task in config.tasks:
        grid = config.task_grid(task)
        methods = [_method(task, config, name) for name in VARIANTS]
        found += plan.full(task, config)
        found += RunGrid(task, "variants", methods, grid.rates, grid.epochs).runs(config)
    return found


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    config, depth = results.config, int(results.store.encoder["layers"])
    report = ExperimentReport("alternatives", TITLE)
    titles: dict[str, str] = {}
    cells: dict[str, dict[str, str]] = {}
    counts: dict[str, str] = {}
    for task in config.tasks:
        task_runs = [run for run in planned_runs(config, depth) if run.task == task]
        for name in (*VARIANTS, "full fine-tuning"):
            method = _method(task, config, name) if name in VARIANTS else None
            best = results.select(task_runs, lambda run, m=method: run.method == m if m else run.group == "full")  # type: ignore[misc]
            if best is not None:
                metric = names.metric_title(names.metric(task)).partition(" ")[0]
                titles[task] = f"{names.title(task, best.data)} {metric}"
                cells.setdefault(name, {})[task] = str(best.score)
                counts[name] = short_count(best.parameters["method"])
    rows = [[name, counts[name], *(found.get(task, "–") for task in titles)] for name, found in cells.items()]
    size = config.task_grid(config.tasks[0]).fixed_size
    report.tables.append(
        ReportTable(
            f"{encoder_name(results)}, adapters of size {size} in all layers; published: {published.ALTERNATIVES}",
            ["variant", "parameters", *titles.values()], rows,
        )
    )  # fmt: skip
    report.notes = provenance_notes(results, planned_runs(config, depth), f"BERT, {published.ALTERNATIVES}")
    return report


ALTERNATIVES = Experiment("alternatives", TITLE, TASKS, planned_runs, draw)
