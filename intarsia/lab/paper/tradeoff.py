"""The trade-off between trained parameters and score: over the tasks of a suite, and on single tasks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.drawn import Drawn, Picture, Sheet, about, encoder_name, short
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.figures import PARAMETERS, Curve, curves
from intarsia.lab.paper.further import TASKS as FURTHER_TASKS
from intarsia.lab.paper.glue import TASKS as GLUE_TASKS
from intarsia.lab.paper.plan import Asked, Planned
from intarsia.lab.paper.selection import Chosen, Results, percentile
from intarsia.methods import Method, short_name, to_dict

TITLE = "Trade-off of trained parameters and score"
SINGLE = ("glue/mnli", "glue/cola")  # that the paper draws alone
SUITES = {"glue": "GLUE", "extra": "further tasks"}
CURVES = {"adapters": "adapters", "variable": "variable fine-tuning (top layers)", "layernorm": "LayerNorms only"}
Points = dict[Method, Chosen]


def of_task(task: str, asked: Asked, depth: int) -> list[Planned]:
    """A task that is drawn alone has all sizes and all numbers of top layers."""
    grid, alone = asked.values(task), task in SINGLE
    sizes = sorted({*grid.sizes, grid.fixed, *(grid.curve_sizes if alone else ())})
    return [
        *plan.full(task, asked),
        *plan.adapters(task, asked, sizes),
        *plan.variable(task, asked, depth, every=alone),
        *plan.layernorm(task, asked),
    ]


def planned(asked: Asked, depth: int) -> list[Planned]:
    return [one for task in asked.tasks for one in of_task(task, asked, depth)]


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("tradeoff", TITLE)
    found = {task: _chosen(results, of_task(task, asked, depth)) for task in asked.tasks}
    for suite, title in SUITES.items():
        tasks = [t for t in asked.tasks if t.startswith(f"{suite}/") and found[t] and "full" in found[t]]
        if len(tasks) > 1:
            _over_tasks(made, results, {t: found[t] for t in tasks}, suite, title)
    for task in SINGLE:
        if found.get(task):
            _single(made, results, task, found[task])
    known = ", ".join(
        f"{names.official(k.task)} {k.what} {k.score} ± {k.error}" for k in published.SINGLE if k.error is not None
    )
    drops = ", ".join(f"{d:g} on {names.official(t)}" for t, d in published.LAYERNORM_DROP.items())
    predictions = f"BERT-base, on validation: {known}; LayerNorms only about {drops} below full fine-tuning"
    made.notes = about(results, planned(asked, depth), predictions)
    return made


def _chosen(results: Results, all_of_task: list[Planned]) -> dict[str, Points]:
    """For each curve, the best setting of each of its methods."""
    found: dict[str, Points] = {}
    for group in dict.fromkeys(one.group for one in all_of_task):
        for method in dict.fromkeys(one.method for one in all_of_task if one.group == group):
            best = results.choose(all_of_task, lambda one, m=method, g=group: (one.method, one.group) == (m, g))  # type: ignore[misc]
            if best is not None:
                found.setdefault(group, {})[method] = best
    return found


def differences(tasks: Iterable[dict[str, Points]], group: str, method: Method) -> list[float]:
    """What a method's score is beside full fine-tuning's on each task, in points."""
    return [
        100 * (points[group][method].score.value - next(iter(points["full"].values())).score.value) for points in tasks
    ]


def _over_tasks(made: Drawn, results: Results, found: dict[str, dict[str, Points]], suite: str, title: str) -> None:
    drawn, rows = [], []
    for group, name in CURVES.items():
        shared = [set(points.get(group, ())) for points in found.values()]
        points = []
        for method in set.intersection(*shared):  # with a figure on every task
            values = differences(found.values(), group, method)
            count = statistics.fmean(task[group][method].parameters["method"] for task in found.values())
            low, middle, high = (percentile(values, share) for share in (20, 50, 80))
            points.append((count, middle, low, high))
            label = "LayerNorms" if group == "layernorm" else short_name(to_dict(method))
            rows.append((count, [label, short(count), f"{low:+.1f}", f"{middle:+.1f}", f"{high:+.1f}"]))
        if points:
            drawn.append(Curve(name, sorted(points)))
    shown = ", ".join(names.title(t, next(iter(p["full"].values())).data) for t, p in found.items())
    made.sheets.append(
        Sheet(
            f"{title}: test score minus full fine-tuning's, in points; percentiles over {len(found)} tasks ({shown})",
            ["method", "parameters", "20th", "median", "80th"],
            [row for _, row in sorted(rows, key=lambda pair: pair[0])],
        )
    )
    if drawn:
        figure = curves(
            drawn, x=PARAMETERS, y="Score minus full fine-tuning's (points)", band=True, line=(0.0, "full fine-tuning"),
            counts=True, bounds="line: median over tasks; band: 20th to 80th percentile",
        )  # fmt: skip
        caption = f"{encoder_name(results)}, {len(found)} tasks: {shown}."
        made.pictures.append(Picture(f"tradeoff-{suite}", figure, caption))


def _single(made: Drawn, results: Results, task: str, found: dict[str, Points]) -> None:
    drawn, rows = [], []
    beside = {k.what: k for k in published.SINGLE if k.task == task}
    full = next(iter(found.get("full", {}).values()), None)
    for group in ("full", *CURVES):
        points = []
        for method, best in found.get(group, {}).items():
            score, count = best.score, best.parameters["method"]
            points.append((float(count), *score.bounds))
            name = short_name(to_dict(method))
            known = beside.get(name)
            told = "–" if known is None else f"{known.score}"
            if group == "layernorm" and task in published.LAYERNORM_DROP:
                told = f"full -{published.LAYERNORM_DROP[task]:g}"
            rows.append((count, [name, short(count), str(score), told]))
        if points and group in CURVES:
            drawn.append(Curve(CURVES[group], sorted(points)))
    title = names.title(task, next(iter(next(iter(found.values())).values())).data)
    metric = names.metric_title(names.metric(task))
    made.sheets.append(
        Sheet(
            f"{title}, {metric} on test; published: BERT-base, on validation",
            ["method", "parameters", "measured", "publ."],
            [row for _, row in sorted(rows, key=lambda pair: pair[0])],
        )
    )
    if drawn:
        several = len(full.records) > 1 if full else False
        figure = curves(
            drawn, x=PARAMETERS, y=f"{metric} on test ({'× 100' if 'correlation' in metric else '%'})",
            line=None if full is None else (100 * full.score.value, "full fine-tuning"), counts=True,
            bounds="bars: standard error over seeds" if several else "one seed",
        )  # fmt: skip
        made.pictures.append(
            Picture(f"tradeoff-{task.partition('/')[2]}", figure, f"{title}, {encoder_name(results)}.")
        )


TRADEOFF = Experiment("tradeoff", TITLE, (*GLUE_TASKS, *FURTHER_TASKS), planned, draw)
