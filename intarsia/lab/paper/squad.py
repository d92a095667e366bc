"""SQuAD: extractive question answering, F1 against trained parameters."""

from __future__ import annotations

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.drawn import Drawn, Picture, Sheet, about, encoder_name, percent, short
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.figures import PARAMETERS, Curve, curves
from intarsia.lab.paper.plan import Asked, Planned
from intarsia.lab.paper.selection import Chosen, Results, share
from intarsia.methods import short_name, to_dict

TITLE = "SQuAD"
TASKS = ("squad/v1.1",)
EXACT = "exact-match"


def planned(asked: Asked, depth: int) -> list[Planned]:
    return [one for task in asked.tasks for one in (*plan.full(task, asked), *plan.adapters(task, asked))]


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("squad", TITLE)
    for task in asked.tasks:
        runs = plan.adapters(task, asked)
        full = results.choose(plan.full(task, asked))
        sizes = [results.choose(runs, lambda one, m=m: one.method == m) for m in dict.fromkeys(r.method for r in runs)]  # type: ignore[misc]
        found = [best for best in sizes if best is not None]
        if full or found:
            _draw_task(made, results, task, full, found)
    published_as = "BERT-base, SQuAD 1.1's dev part, the best run"
    made.notes = about(results, planned(asked, depth), published_as)
    made.notes.append("A long context is read in rows that overlap; F1 and exact match are the official program's.")
    return made


def _draw_task(made: Drawn, results: Results, task: str, full: Chosen | None, sizes: list[Chosen]) -> None:
    chosen = [*sizes, *([full] if full else [])]
    title = names.title(task, chosen[0].data)
    made.sheets.append(
        Sheet(
            f"{title}: {encoder_name(results)}, and beside it the published F1 of BERT-base",
            ["method", "parameters", "trained", "F1", "publ.", "exact match", "lr", "epochs"],
            [_row(task, one) for one in chosen],
        )
    )
    if sizes:
        several = any(len(one.records) > 1 for one in chosen)
        figure = curves(
            [Curve("adapters", [(one.parameters["method"], *one.score.bounds) for one in sizes])],
            x=PARAMETERS, y="F1 on test (%)",
            line=None if full is None else (100 * full.score.value, "full fine-tuning"),
            counts=True, bounds="bars: standard error over seeds" if several else "one seed",
        )  # fmt: skip
        made.pictures.append(Picture(task.replace("/", "-"), figure, f"{title}, {encoder_name(results)}."))


def _row(task: str, best: Chosen) -> list[str]:
    name = short_name(to_dict(best.method))
    known = published.SQUAD_F1.get(name) if task in TASKS else None
    settings = best.records[0].settings
    return [
        name, short(best.parameters["method"]), percent(share([best])), str(best.score),
        "–" if known is None else f"{known:.1f}", str(best.extra(EXACT) or "–"), f"{settings['learning_rate']:g}",
        str(settings["epochs"]),
    ]  # fmt: skip


SQUAD = Experiment("squad", TITLE, TASKS, planned, draw, kinds=("span",))
