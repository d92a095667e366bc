"""How far from the identity adapters may start."""

from __future__ import annotations

from intarsia.lab.paper import names, published
from intarsia.lab.paper.drawn import Drawn, Picture, Sheet, about, encoder_name
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.figures import Curve, curves
from intarsia.lab.paper.plan import Asked, Planned, Searched
from intarsia.lab.paper.selection import Mean, Results
from intarsia.methods import Bottleneck, to_dict

TITLE = "Initialisation of adapters"
TASKS = ("glue/mnli", "glue/cola")


def planned(asked: Asked, depth: int) -> list[Planned]:
    found = []
    for task in asked.tasks:
        grid = asked.values(task)
        rate, epochs = grid.one
        methods = [Bottleneck(grid.fixed, std=std) for std in grid.stds]
        found += Searched(task, "adapters", methods, [rate], [epochs], {"metric": "accuracy"}).planned(asked)
    return found


def draw(results: Results) -> Drawn:
    asked, depth = results.asked, int(results.store.encoder["layers"])
    made = Drawn("init", TITLE)
    drawn, table = [], dict[float, dict[str, Mean]]()
    titles: list[str] = []
    for task in asked.tasks:
        own = [one for one in planned(asked, depth) if one.task == task]
        points = []
        title = names.official(task)
        for std in asked.values(task).stds:
            best = results.choose(own, lambda one, s=std: to_dict(one.method)["std"] == s)  # type: ignore[misc]
            if best is None:
                continue
            title, score = names.title(task, best.data), best.score
            points.append((std, *score.bounds))
            table.setdefault(std, {})[title] = score
        if points:
            drawn.append(Curve(title, points))
            titles.append(title)
    rows = [[f"{std:g}", *(str(found.get(title, "–")) for title in titles)] for std, found in sorted(table.items())]
    size = asked.values(asked.tasks[0]).fixed
    made.sheets.append(
        Sheet(
            f"Test accuracy of adapters (size {size}) by the standard deviation of their start; published: "
            f"{published.INIT}", ["std", *titles], rows,
        )
    )  # fmt: skip
    if drawn:
        several = any(point[1] != point[2] for curve in drawn for point in curve.points)
        figure = curves(
            drawn, x="standard deviation of the initial weights", y="Accuracy on test (%)",
            bounds="bars: standard error over seeds" if several else "one seed", apart=1.15,
        )  # fmt: skip
        made.pictures.append(Picture("init", figure, f"{encoder_name(results)}, adapters of size {size}."))
    made.notes = about(
        results, planned(asked, depth), f"BERT-base, size 64, on validation: {published.INIT}", searched=False
    )
    return made


INIT = Experiment("init", TITLE, TASKS, planned, draw)
