"""The trade-off between trained parameters and score: over the tasks of a suite, and on single tasks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import (
    ExperimentReport,
    ReportFigure,
    ReportTable,
    encoder_name,
    provenance_notes,
    short_count,
)
from intarsia.lab.paper.figures import PARAMETERS, Curve, curves
from intarsia.lab.paper.further import TASKS as FURTHER_TASKS
from intarsia.lab.paper.glue import TASKS as GLUE_TASKS
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun
from intarsia.lab.paper.selection import Results, SelectedSetting, percentile
from intarsia.methods import Method, short_name, to_dict

TITLE = "Trade-off of trained parameters and score"
SINGLE = ("glue/mnli", "glue/cola")  # the tasks with a figure of their own in the paper
SUITES = {"glue": "GLUE", "extra": "further tasks"}
CURVES = {"adapters": "adapters", "variable": "variable fine-tuning (top layers)", "layernorm": "LayerNorms only"}
Points = dict[Method, SelectedSetting]


def task_runs(task: str, config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs of one task. A task with its own figure has all sizes and all numbers of top layers."""
    grid, single = config.task_grid(task), task in SINGLE
    sizes = sorted({*grid.sizes, grid.fixed_size, *(grid.curve_sizes if single else ())})
    return [
        *plan.full(task, config),
        *plan.adapters(task, config, sizes),
        *plan.variable(task, config, depth, every=single),
        *plan.layernorm(task, config),
    ]


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs of all tasks."""
    return [run for task in config.tasks for run in task_runs(task, config, depth)]


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    config, depth = results.config, int(results.store.encoder["layers"])
    report = ExperimentReport("tradeoff", TITLE)
    found = {task: _selected(results, task_runs(task, config, depth)) for task in config.tasks}
    for suite, title in SUITES.items():
        tasks = [t for t in config.tasks if t.startswith(f"{suite}/") and found[t] and "full" in found[t]]
        if len(tasks) > 1:
            _over_tasks(report, results, {t: found[t] for t in tasks}, suite, title)
    for task in SINGLE:
        if found.get(task):
            _single(report, results, task, found[task])
    known = ", ".join(
        f"{names.official(k.task)} {k.method} {k.score} ± {k.error}" for k in published.SINGLE if k.error is not None
    )
    drops = ", ".join(f"{d:g} on {names.official(t)}" for t, d in published.LAYERNORM_DROP.items())
    published_scores = f"BERT-base, on validation: {known}; LayerNorms only about {drops} below full fine-tuning"
    report.notes = provenance_notes(results, planned_runs(config, depth), published_scores)
    return report


def _selected(results: Results, runs: list[PlannedRun]) -> dict[str, Points]:
    """Return for each curve the best setting of each of its methods."""
    found: dict[str, Points] = {}
    for group in dict.fromkeys(run.group for run in runs):
        for method in dict.fromkeys(run.method for run in runs if run.group == group):
            best = results.select(runs, lambda run, m=method, g=group: (run.method, run.group) == (m, g))  # type: ignore[misc]
            if best is not None:
                found.setdefault(group, {})[method] = best
    return found


def differences(tasks: Iterable[dict[str, Points]], group: str, method: Method) -> list[float]:
    """Return a method's score minus full fine-tuning's on each task, in points."""
    return [
        100 * (points[group][method].score.value - next(iter(points["full"].values())).score.value) for points in tasks
    ]


def _over_tasks(
    report: ExperimentReport, results: Results, found: dict[str, dict[str, Points]], suite: str, title: str
) -> None:
    lines, rows = [], []
    for group, name in CURVES.items():
        shared = [set(points.get(group, ())) for points in found.values()]
        points = []
        for method in set.intersection(*shared):  # methods with a score on every task
            values = differences(found.values(), group, method)
            count = statistics.fmean(task[group][method].parameters["method"] for task in found.values())
            low, middle, high = (percentile(values, share) for share in (20, 50, 80))
            points.append((count, middle, low, high))
            label = "LayerNorms" if group == "layernorm" else short_name(to_dict(method))
            rows.append((count, [label, short_count(count), f"{low:+.1f}", f"{middle:+.1f}", f"{high:+.1f}"]))
        if points:
            lines.append(Curve(name, sorted(points)))
    shown = ", ".join(names.title(t, next(iter(p["full"].values())).data) for t, p in found.items())
    report.tables.append(
        ReportTable(
            f"{title}: test score minus full fine-tuning's, in points; percentiles over {len(found)} tasks ({shown})",
            ["method", "parameters", "20th", "median", "80th"],
            [row for _, row in sorted(rows, key=lambda pair: pair[0])],
        )
    )
    if lines:
        figure = curves(
            lines, x=PARAMETERS, y="Score minus full fine-tuning's (points)", band=True, line=(0.0, "full fine-tuning"),
            counts=True, bounds="line: median over tasks; band: 20th to 80th percentile",
        )  # fmt: skip
        caption = f"{encoder_name(results)}, {len(found)} tasks: {shown}."
        report.figures.append(ReportFigure(f"tradeoff-{suite}", figure, caption))


def _single(report: ExperimentReport, results: Results, task: str, found: dict[str, Points]) -> None:
    lines, rows = [], []
    published_scores = {k.method: k for k in published.SINGLE if k.task == task}
    full = next(iter(found.get("full", {}).values()), None)
    for group in ("full", *CURVES):
        points = []
        for method, best in found.get(group, {}).items():
            score, count = best.score, best.parameters["method"]
            points.append((float(count), *score.bounds))
            name = short_name(to_dict(method))
            known = published_scores.get(name)
            published_score = "–" if known is None else f"{known.score}"
            if group == "layernorm" and task in published.LAYERNORM_DROP:
                published_score = f"full -{published.LAYERNORM_DROP[task]:g}"
            rows.append((count, [name, short_count(count), str(score), published_score]))
        if points and group in CURVES:
            lines.append(Curve(CURVES[group], sorted(points)))
    title = names.title(task, next(iter(next(iter(found.values())).values())).data)
    metric = names.metric_title(names.metric(task))
    report.tables.append(
        ReportTable(
            f"{title}, {metric} on test; published: BERT-base, on validation",
            ["method", "parameters", "measured", "publ."],
            [row for _, row in sorted(rows, key=lambda pair: pair[0])],
        )
    )
    if lines:
        several = len(full.records) > 1 if full else False
        figure = curves(
            lines, x=PARAMETERS, y=f"{metric} on test ({'× 100' if 'correlation' in metric else '%'})",
            line=None if full is None else (100 * full.score.value, "full fine-tuning"), counts=True,
            bounds="bars: standard error over seeds" if several else "one seed",
        )  # fmt: skip
        report.figures.append(
            ReportFigure(f"tradeoff-{task.partition('/')[2]}", figure, f"{title}, {encoder_name(results)}.")
        )


TRADEOFF = Experiment("tradeoff", TITLE, (*GLUE_TASKS, *FURTHER_TASKS), planned_runs, draw)
