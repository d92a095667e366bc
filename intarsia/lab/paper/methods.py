"""All methods on one figure: score against trained parameters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from intarsia.lab.comparison import Comparison, Result, Row, Score, in_order
from intarsia.lab.comparison_rows import share
from intarsia.lab.figures import tradeoff
from intarsia.lab.paper import names
from intarsia.lab.paper.drawn import Drawn, Picture, Sheet, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.plan import Asked, Planned, Searched
from intarsia.lab.paper.selection import Chosen, Mean, Results
from intarsia.methods import parse, to_dict
from intarsia.train.job import Settings

TITLE = "All methods"
_APART = "Where points would hide each other they stand a little apart."
TASKS = ("glue/cola", "glue/mrpc", "glue/rte")
METHODS = (  # attention-only-48 and parallel-24: the forms that do best, at less than 1 % of BERT-base
    "houlsby-8", "houlsby-64", "pfeiffer", "bapna-64", "single-64", "attention-only-48", "attention-only-64",
    "parallel-24", "parallel-64", "pal", "lora-8", "ia3", "prefix", "bitfit", "layernorm", "lt-sft-0.5%",
    "diff-pruning-0.5%", "top-1", "top-2", "full", "features", "features-mlp", "features-mix",
)  # fmt: skip


def planned(asked: Asked, depth: int) -> list[Planned]:
    found = []
    for task in asked.tasks:
        grid = asked.values(task)
        for name in METHODS:
            method = parse(name)
            rates = [Settings.for_method(method).learning_rate * factor for factor in grid.factors]
            options = {"batch_size": None, "bias_correction": asked.bias_correction}
            found += Searched(task, name, [method], rates, [grid.method_epochs], options).planned(asked)
    return found


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("methods", TITLE)
    everything = planned(asked, depth)
    found = {task: _best(results, everything, task) for task in asked.tasks}
    found = {task: some for task, some in found.items() if some}
    titles: dict[str, str] = {}
    for task, some in found.items():
        metric = names.metric(task)
        title = names.title(task, next(iter(some.values())).data)
        titles[task] = f"{title}\n{names.metric_title(metric).partition(' ')[0]}"
        caption = f"{title}, {encoder_name(results)}. {_APART}"
        figure = tradeoff(_comparison(results, some, metric))
        made.pictures.append(Picture(f"methods-{task.replace('/', '-')}", figure, caption))
    means = _means(found)
    seeds = {task: max(len(best.records) for best in some.values()) for task, some in found.items()}
    if means:
        first = next(iter(found.values()))
        compared = _comparison(results, first, f"mean-score-of-{len(found)}-tasks", means)
        bars = f"bars: standard error of the mean of tasks, {_numbers(seeds)} seeds each"
        figure = tradeoff(compared, bars if any(mean.error for mean in means.values()) else None)
        over = ", ".join(title.replace("\n", " ") for title in titles.values())
        caption = f"The mean over {over}; {encoder_name(results)}. {_APART}"
        made.pictures.insert(0, Picture("methods", figure, caption))
    base = int(results.store.encoder["parameters"])
    counts = {name: best.parameters["method"] for some in found.values() for name, best in some.items()}
    if len(set(seeds.values())) > 1:
        titles = {task: f"{title}\n{seeds[task]} seeds" for task, title in titles.items()}
    rows = [
        [name, f"{counts[name]:,}", share(counts[name] / base),
         *(str(some[name].score) if name in some else "–" for some in found.values()),
         *([str(means[name]) if name in means else "–"] if means else [])]
        for name in sorted(counts, key=lambda name: counts[name])
    ]  # fmt: skip
    recipe = f"each method by its own recipe{_changed(asked)}"
    made.sheets.append(
        Sheet(
            f"{encoder_name(results)}: {recipe}, by trained parameters without the head",
            ["method", "parameters", "of base", *titles.values(), *(["mean"] if means else [])],
            rows,
        )
    )
    made.notes = about(results, everything, "the paper has no such figure; `intarsia paper glue` has its scores")
    made.notes += _preferred(found, means, {name for name, count in counts.items() if count <= base / 100})
    made.notes += _fewer(found, seeds)
    return made


def _changed(asked: Asked) -> str:
    if asked.bias_correction is None:
        return ""
    return f", {'with' if asked.bias_correction else 'without'} bias correction"


def _preferred(found: dict[str, dict[str, Chosen]], means: Mapping[str, Mean], small: set[str]) -> list[str]:
    """Which method validation would choose for all tasks; test scores alone would flatter the best of many."""
    if len(means) < 2:
        return []
    dev = {name: statistics.fmean(some[name].dev for some in found.values()) for name in means}
    chosen: dict[str, list[str]] = {}
    for where, some in (("of all methods", set(means)), ("of those up to 1 % of the base", small & set(means))):
        if some:
            chosen.setdefault(max(some, key=lambda name: (dev[name], name)), []).append(where)
    told = (
        f"{' and '.join(where)} {name} ({100 * dev[name]:.1f}; test {means[name]})" for name, where in chosen.items()
    )
    return [f"Best in the mean on validation: {'; '.join(told)}."]


def _fewer(found: dict[str, dict[str, Chosen]], seeds: dict[str, int]) -> list[str]:
    """Which methods have fewer seeds than the others of a task."""
    lacking: dict[str, list[str]] = {}
    for task, some in found.items():
        for name, best in some.items():
            if len(best.records) < seeds[task]:
                lacking.setdefault(name, []).append(f"{len(best.records)} on {names.official(task)}")
    told = "; ".join(f"{name} {', '.join(where)}" for name, where in lacking.items())
    return [f"Fewer seeds: {told}."] if told else []


def _numbers(seeds: dict[str, int]) -> str:
    """5, or 3–5 where tasks differ."""
    return "–".join(str(n) for n in sorted({min(seeds.values()), max(seeds.values())}))


def _best(results: Results, everything: list[Planned], task: str) -> dict[str, Chosen]:
    found = {}
    for name in METHODS:
        best = results.choose(everything, lambda one, n=name: (one.task, one.group) == (task, n))  # type: ignore[misc]
        if best is not None:
            found[name] = best
    return found


def _means(found: dict[str, dict[str, Chosen]]) -> dict[str, Mean]:
    """Over the tasks, where there are several, of each method that all have; every task counts the same."""
    means: dict[str, Mean] = {}
    for name in METHODS if len(found) > 1 else ():
        if all(name in some for some in found.values()):
            scores = [some[name].score for some in found.values()]
            errors = [score.error for score in scores if score.error is not None]
            error = math.hypot(*errors) / len(scores) if len(errors) == len(scores) else None
            means[name] = Mean(statistics.fmean(score.value for score in scores), error)
    return means


def _comparison(
    results: Results, found: dict[str, Chosen], metric: str, means: Mapping[str, Mean] | None = None
) -> Comparison:
    """As the figure of `intarsia compare` takes it; `means` stand for the scores of a single task."""
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
        rows.append(Row(name, method, best.parameters, runs, given=None if means is None else _score(means[name])))
    seeds = max(len(row.results) for row in rows)
    return Comparison(metric, "label", seeds, in_order(rows), None, {"encoder": results.store.encoder})


def _score(mean: Mean) -> Score:
    error = mean.error or 0.0
    return Score(mean.value, mean.value - error, mean.value + error, "standard error")


METHODS_COMPARED = Experiment("methods", TITLE, TASKS, planned, draw)
