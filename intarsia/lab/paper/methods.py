"""All methods on one figure: score against trained parameters."""

from __future__ import annotations

from intarsia.lab.comparison import Comparison, Result, Row, in_order
from intarsia.lab.figures import tradeoff
from intarsia.lab.paper import names
from intarsia.lab.paper.drawn import Drawn, Picture, Sheet, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.plan import Asked, Planned, Searched
from intarsia.lab.paper.selection import Chosen, Results
from intarsia.lab.tables import share
from intarsia.methods import parse, to_dict

TITLE = "All methods"
TASKS = ("glue/cola", "glue/mrpc", "glue/rte")
METHODS = (
    "houlsby-8", "houlsby-64", "pfeiffer", "bapna-64", "single-64", "attention-only-64", "parallel-64", "pal", "lora-8",
    "ia3", "prefix", "bitfit", "layernorm", "lt-sft-0.5%", "diff-pruning-0.5%", "top-1", "top-2", "full", "features",
    "features-mlp", "features-mix",
)  # fmt: skip


def planned(asked: Asked, depth: int) -> list[Planned]:
    found = []
    for task in asked.tasks:
        grid = asked.values(task)
        for name in METHODS:
            method = parse(name)
            rate = float(method.recipe.get("learning_rate", 3e-4))
            rates = [rate * factor for factor in grid.factors]
            options = {"batch_size": None}
            found += Searched(task, name, [method], rates, [grid.method_epochs], options).planned(asked)
    return found


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("methods", TITLE)
    everything = planned(asked, depth)
    scores: dict[str, dict[str, str]] = {}
    titles: dict[str, str] = {}
    counts: dict[str, int] = {}
    for task in asked.tasks:
        found: dict[str, Chosen] = {}
        for name in METHODS:
            best = results.choose(everything, lambda one, t=task, n=name: (one.task, one.group) == (t, n))  # type: ignore[misc]
            if best is not None:
                found[name] = best
                scores.setdefault(name, {})[task] = str(best.score)
                counts[name] = best.parameters["method"]
        if not found:
            continue
        metric = names.metric(task)
        title = names.title(task, next(iter(found.values())).data)
        titles[task] = f"{title} {names.metric_title(metric).partition(' ')[0]}"
        caption = f"{title}, {encoder_name(results)}. Where points would hide each other they stand a little apart."
        picture = Picture(f"methods-{task.replace('/', '-')}", tradeoff(_comparison(results, found, metric)), caption)
        made.pictures.append(picture)
    base = int(results.store.encoder["parameters"])
    rows = [
        [name, f"{counts[name]:,}", share(counts[name] / base), *(scores[name].get(task, "–") for task in titles)]
        for name in sorted(counts, key=lambda name: counts[name])
    ]
    made.sheets.append(
        Sheet(
            f"{encoder_name(results)}: each method by its own recipe, by trained parameters without the head",
            ["method", "parameters", "of base", *titles.values()], rows,
        )
    )  # fmt: skip
    made.notes = about(results, everything, "the paper has no such figure; `intarsia paper glue` has its scores")
    return made


def _comparison(results: Results, found: dict[str, Chosen], metric: str) -> Comparison:
    """As the figure of `intarsia compare` takes it."""
    rows = []
    for name, best in found.items():
        method = to_dict(best.method)
        runs = tuple(
            Result(
                r.key, r.settings["seed"], method, metric, r.seconds, r.settings, r.dev, r.best_epoch,
                {"value": r.test, "low": r.test, "high": r.test}, r.steps,
            )
            for r in best.records
        )  # fmt: skip
        rows.append(Row(name, method, best.parameters, runs))
    seeds = max(len(best.records) for best in found.values())
    return Comparison(metric, "label", seeds, in_order(rows), None, {"encoder": results.store.encoder})


METHODS_COMPARED = Experiment("methods", TITLE, TASKS, planned, draw)
