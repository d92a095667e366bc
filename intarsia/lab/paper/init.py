"""The experiment on initialisation: test accuracy by the standard deviation of the adapters' initial weights."""

from __future__ import annotations

from intarsia.lab.paper import names, published
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import (
    ExperimentReport,
    ReportFigure,
    ReportTable,
    encoder_name,
    provenance_notes,
)
from intarsia.lab.paper.figures import Curve, curves
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun, RunGrid
from intarsia.lab.paper.selection import Mean, Results
from intarsia.methods import Bottleneck, to_dict

TITLE = "Initialisation of adapters"
TASKS = ("glue/mnli", "glue/cola")


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return one run per task, standard deviation and seed."""
    planned = []
    for task in config.tasks:
        grid = config.task_grid(task)
        rate, epochs = grid.fixed_recipe
        methods = [Bottleneck(grid.fixed_size, std=std) for std in grid.stds]
        planned += RunGrid(task, "adapters", methods, [rate], [epochs], {"metric": "accuracy"}).runs(config)
    return planned


def draw(results: Results) -> ExperimentReport:
    """Return the report: a table and a figure of the curves."""
    config, depth = results.config, int(results.store.encoder["layers"])
    report = ExperimentReport("init", TITLE)
    drawn, table = [], dict[float, dict[str, Mean]]()
    titles: list[str] = []
    for task in config.tasks:
        task_runs = [run for run in planned_runs(config, depth) if run.task == task]
        points = []
        title = names.official(task)
        for std in config.task_grid(task).stds:
            best = results.select(task_runs, lambda run, s=std: to_dict(run.method)["std"] == s)  # type: ignore[misc]
            if best is None:
                continue
            title, score = names.title(task, best.data), best.score
            points.append((std, *score.bounds))
            table.setdefault(std, {})[title] = score
        if points:
            drawn.append(Curve(title, points))
            titles.append(title)
    rows = [[f"{std:g}", *(str(scores.get(title, "–")) for title in titles)] for std, scores in sorted(table.items())]
    size = config.task_grid(config.tasks[0]).fixed_size
    report.tables.append(
        ReportTable(
            f"Test accuracy of adapters (size {size}) by the standard deviation of their initial weights; published: "
            f"{published.INIT}", ["std", *titles], rows,
        )
    )  # fmt: skip
    if drawn:
        several_seeds = any(point[1] != point[2] for curve in drawn for point in curve.points)
        figure = curves(
            drawn, x="standard deviation of the initial weights", y="Accuracy on test (%)",
            bounds="bars: standard error over seeds" if several_seeds else "one seed", apart=1.15,
        )  # fmt: skip
        report.figures.append(ReportFigure("init", figure, f"{encoder_name(results)}, adapters of size {size}."))
    report.notes = provenance_notes(
        results, planned_runs(config, depth), f"BERT-base, size 64, on validation: {published.INIT}", searched=False
    )
    return report


INIT = Experiment("init", TITLE, TASKS, planned_runs, draw)
