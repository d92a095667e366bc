"""The variants of the adapter that the authors tried, without gain."""

from __future__ import annotations

import dataclasses
from typing import Any

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.drawn import Drawn, Sheet, about, encoder_name, short
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.plan import Asked, Planned, Searched
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


def _method(task: str, asked: Asked, name: str) -> Bottleneck:
    return dataclasses.replace(Bottleneck(asked.values(task).fixed), **VARIANTS[name])


def planned(asked: Asked, depth: int) -> list[Planned]:
    found = []
    for task in asked.tasks:
        grid = asked.values(task)
        methods = [_method(task, asked, name) for name in VARIANTS]
        found += plan.full(task, asked)
        found += Searched(task, "variants", methods, grid.rates, grid.epochs).planned(asked)
    return found


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("alternatives", TITLE)
    titles: dict[str, str] = {}
    cells: dict[str, dict[str, str]] = {}
    counts: dict[str, str] = {}
    for task in asked.tasks:
        own = [one for one in planned(asked, depth) if one.task == task]
        for name in (*VARIANTS, "full fine-tuning"):
            method = _method(task, asked, name) if name in VARIANTS else None
            best = results.choose(own, lambda one, m=method: one.method == m if m else one.group == "full")  # type: ignore[misc]
            if best is not None:
                metric = names.metric_title(names.metric(task)).partition(" ")[0]
                titles[task] = f"{names.title(task, best.data)} {metric}"
                cells.setdefault(name, {})[task] = str(best.score)
                counts[name] = short(best.parameters["method"])
    rows = [[name, counts[name], *(found.get(task, "–") for task in titles)] for name, found in cells.items()]
    size = asked.values(asked.tasks[0]).fixed
    made.sheets.append(
        Sheet(
            f"{encoder_name(results)}, adapters of size {size} in all layers; published: {published.ALTERNATIVES}",
            ["variant", "parameters", *titles.values()], rows,
        )
    )  # fmt: skip
    made.notes = about(results, planned(asked, depth), f"BERT, {published.ALTERNATIVES}")
    return made


ALTERNATIVES = Experiment("alternatives", TITLE, TASKS, planned, draw)
