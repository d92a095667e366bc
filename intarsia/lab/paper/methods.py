"""All methods in one figure: score against trained parameters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from intarsia.lab.comparison import Comparison, ComparisonRow, Result, Score, in_order
from intarsia.lab.comparison_rows import share
from intarsia.lab.figures import tradeoff
from intarsia.lab.paper import names
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import (
    ExperimentReport,
    ReportFigure,
    ReportTable,
    encoder_name,
    provenance_notes,
)
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun, RunGrid
from intarsia.lab.paper.selection import Mean, Results, SelectedSetting
from intarsia.methods import parse, to_dict
from intarsia.train.job import Settings

TITLE = "All methods"
_APART = "Points that would overlap are moved apart slightly."
TASKS = ("glue/cola", "glue/mrpc", "glue/rte")
METHODS = (  # attention-only-48 and parallel-24: the best variants below 1 % of BERT-base's parameters
    "houlsby-8", "houlsby-64", "pfeiffer", "bapna-64", "single-64", "attention-only-48", "attention-only-64",
    "parallel-24", "parallel-64", "pal", "lora-8", "ia3", "prefix", "bitfit", "layernorm", "lt-sft-0.5%",
    "diff-pruning-0.5%", "top-1", "top-2", "full", "features", "features-mlp", "features-mix",
)  # fmt: skip


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs of every method with its own recipe."""
    found = []
    for task in config.tasks:
        grid = config.task_grid(task)
        for name in METHODS:
            method = parse(name)
            rates = [Settings.for_method(method).learning_rate * factor for factor in grid.rate_factors]
            options = {"batch_size": None, "bias_correction": config.bias_correction}
            found += RunGrid(task, name, [method], rates, [grid.method_epochs], options).runs(config)
    return found


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    config, depth = results.config, int(results.store.encoder["layers"])
    report = ExperimentReport("methods", TITLE)
    everything = planned_runs(config, depth)
    found = {task: _best(results, everything, task) for task in config.tasks}
    found = {task: methods for task, methods in found.items() if methods}
    titles: dict[str, str] = {}
    for task, methods in found.items():
        metric = names.metric(task)
        title = names.title(task, next(iter(methods.values())).data)
        titles[task] = f"{title}\n{names.metric_title(metric).partition(' ')[0]}"
        caption = f"{title}, {encoder_name(results)}. {_APART}"
        figure = tradeoff(_comparison(results, methods, metric))
        report.figures.append(ReportFigure(f"methods-{task.replace('/', '-')}", figure, caption))
    means = _means(found)
    seeds = {task: max(len(best.records) for best in methods.values()) for task, methods in found.items()}
    if means:
        first = next(iter(found.values()))
        compared = _comparison(results, first, f"mean-score-of-{len(found)}-tasks", means)
        bars = f"bars: standard error of the mean of tasks, {_seed_range(seeds)} seeds each"
        figure = tradeoff(compared, bars if any(mean.error for mean in means.values()) else None)
        tasks = ", ".join(title.replace("\n", " ") for title in titles.values())
        caption = f"Mean over {tasks}; {encoder_name(results)}. {_APART}"
        report.figures.insert(0, ReportFigure("methods", figure, caption))
    base = int(results.store.encoder["parameters"])
    counts = {name: best.parameters["method"] for methods in found.values() for name, best in methods.items()}
    if len(set(seeds.values())) > 1:
        titles = {task: f"{title}\n{seeds[task]} seeds" for task, title in titles.items()}
    rows = [
        [name, f"{counts[name]:,}", share(counts[name] / base),
         *(str(methods[name].score) if name in methods else "–" for methods in found.values()),
         *([str(means[name]) if name in means else "–"] if means else [])]
        for name in sorted(counts, key=lambda name: counts[name])
    ]  # fmt: skip
    recipe = f"each method with its own recipe{_bias_correction(config)}"
    report.tables.append(
        ReportTable(
            f"{encoder_name(results)}: {recipe}, sorted by trained parameters without the head",
            ["method", "parameters", "of base", *titles.values(), *(["mean"] if means else [])],
            rows,
        )
    )
    report.notes = provenance_notes(
        results, everything, "the paper has no figure of these methods; `intarsia paper glue` shows its scores"
    )
    report.notes += _best_on_validation(found, means, {name for name, count in counts.items() if count <= base / 100})
    report.notes += _fewer_seeds(found, seeds)
    return report


def _bias_correction(config: ExperimentConfig) -> str:
    if config.bias_correction is None:
        return ""
    return f", {'with' if config.bias_correction else 'without'} bias correction"


def _best_on_validation(
    found: dict[str, dict[str, SelectedSetting]], means: Mapping[str, Mean], small: set[str]
) -> list[str]:
    """Return a note on the method with the best validation mean.

    The best of many methods by test score would be an optimistic estimate.
    """
    if len(means) < 2:
        return []
    dev = {name: statistics.fmean(methods[name].dev for methods in found.values()) for name in means}
    best: dict[str, list[str]] = {}
    for group, methods in (("all methods", set(means)), ("methods up to 1 % of the base", small & set(means))):
        if methods:
            best.setdefault(max(methods, key=lambda name: (dev[name], name)), []).append(group)
    parts = (
        f"{name} among {' and '.join(groups)} ({100 * dev[name]:.1f}; test {means[name]})"
        for name, groups in best.items()
    )
    return [f"Best mean on validation: {'; '.join(parts)}."]


def _fewer_seeds(found: dict[str, dict[str, SelectedSetting]], seeds: dict[str, int]) -> list[str]:
    """Return a note on the methods that have fewer seeds than the other methods of a task."""
    fewer: dict[str, list[str]] = {}
    for task, methods in found.items():
        for name, best in methods.items():
            if len(best.records) < seeds[task]:
                fewer.setdefault(name, []).append(f"{len(best.records)} on {names.official(task)}")
    text = "; ".join(f"{name} {', '.join(counts)}" for name, counts in fewer.items())
    return [f"Fewer seeds: {text}."] if text else []


def _seed_range(seeds: dict[str, int]) -> str:
    """Return the number of seeds as "5", or as "3–5" if it differs between tasks."""
    return "–".join(str(n) for n in sorted({min(seeds.values()), max(seeds.values())}))


def _best(results: Results, everything: list[PlannedRun], task: str) -> dict[str, SelectedSetting]:
    """Return the best setting of each method that has runs on the task."""
    found = {}
    for name in METHODS:
        best = results.select(everything, lambda run, n=name: (run.task, run.group) == (task, n))  # type: ignore[misc]
        if best is not None:
            found[name] = best
    return found


def _means(found: dict[str, dict[str, SelectedSetting]]) -> dict[str, Mean]:
    """Return the unweighted mean over tasks of each method that all tasks have; empty for a single task."""
    means: dict[str, Mean] = {}
    for name in METHODS if len(found) > 1 else ():
        if all(name in methods for methods in found.values()):
            scores = [methods[name].score for methods in found.values()]
            errors = [score.error for score in scores if score.error is not None]
            error = math.hypot(*errors) / len(scores) if len(errors) == len(scores) else None
            means[name] = Mean(statistics.fmean(score.value for score in scores), error)
    return means


def _comparison(
    results: Results, found: dict[str, SelectedSetting], metric: str, means: Mapping[str, Mean] | None = None
) -> Comparison:
    """Return the input of `intarsia compare`'s figure. `means` replace the scores of a single task."""
    rows = []
    for name in found if means is None else means:
        best = found[name]
        method = to_dict(best.method)
        runs = tuple(
            Result(
                r.key, r.settings["seed"], method, metric, r.seconds, r.settings, r.dev, r.best_epoch,
                dict.fromkeys(("value", "low", "high"), r.test), r.steps,
            )
            for r in best.records
        )  # fmt: skip
        rows.append(
            ComparisonRow(name, method, best.parameters, runs, given=None if means is None else _score(means[name]))
        )
    seeds = max(len(row.results) for row in rows)
    return Comparison(metric, "label", seeds, in_order(rows), None, {"encoder": results.store.encoder})


def _score(mean: Mean) -> Score:
    error = mean.error or 0.0
    return Score(mean.value, mean.value - error, mean.value + error, "standard error")


METHODS_COMPARED = Experiment("methods", TITLE, TASKS, planned_runs, draw)
