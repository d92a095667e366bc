"""SQuAD: extractive question answering, F1 against trained parameters."""

from __future__ import annotations

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import (
    ExperimentReport,
    ReportFigure,
    ReportTable,
    encoder_name,
    percent,
    provenance_notes,
    short_count,
)
from intarsia.lab.paper.figures import PARAMETERS, Curve, curves
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun
from intarsia.lab.paper.selection import Results, SelectedSetting, share
from intarsia.methods import short_name, to_dict

TITLE = "SQuAD"
TASKS = ("squad/v1.1",)
EXACT = "exact-match"


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs of full fine-tuning and of adapters of each size."""
    return [run for task in config.tasks for run in (*plan.full(task, config), *plan.adapters(task, config))]


def draw(results: Results) -> ExperimentReport:
    """Return the tables, figures and notes of the stored runs."""
    config, depth = results.config, int(results.store.encoder["layers"])
    report = ExperimentReport("squad", TITLE)
    for task in config.tasks:
        runs = plan.adapters(task, config)
        full = results.select(plan.full(task, config))
        sizes = [results.select(runs, lambda run, m=m: run.method == m) for m in dict.fromkeys(r.method for r in runs)]  # type: ignore[misc]
        found = [best for best in sizes if best is not None]
        if full or found:
            _draw_task(report, results, task, full, found)
    published_scores = "BERT-base, SQuAD 1.1's dev part, the best run"
    report.notes = provenance_notes(results, planned_runs(config, depth), published_scores)
    report.notes.append("A long context is split into overlapping rows. F1 and exact match follow the official script.")
    return report


def _draw_task(
    report: ExperimentReport, results: Results, task: str, full: SelectedSetting | None, sizes: list[SelectedSetting]
) -> None:
    selected = [*sizes, *([full] if full else [])]
    title = names.title(task, selected[0].data)
    report.tables.append(
        ReportTable(
            f"{title}: {encoder_name(results)}, with the published F1 of BERT-base",
            ["method", "parameters", "trained", "F1", "publ.", "exact match", "lr", "epochs"],
            [_row(task, setting) for setting in selected],
        )
    )
    if sizes:
        several = any(len(setting.records) > 1 for setting in selected)
        figure = curves(
            [Curve("adapters", [(setting.parameters["method"], *setting.score.bounds) for setting in sizes])],
            x=PARAMETERS, y="F1 on test (%)",
            line=None if full is None else (100 * full.score.value, "full fine-tuning"),
            counts=True, bounds="bars: standard error over seeds" if several else "one seed",
        )  # fmt: skip
        report.figures.append(ReportFigure(task.replace("/", "-"), figure, f"{title}, {encoder_name(results)}."))


def _row(task: str, best: SelectedSetting) -> list[str]:
    name = short_name(to_dict(best.method))
    known = published.SQUAD_F1.get(name) if task in TASKS else None
    settings = best.records[0].settings
    return [
        name, short_count(best.parameters["method"]), percent(share([best])), str(best.score),
        "–" if known is None else f"{known:.1f}", str(best.extra(EXACT) or "–"), f"{settings['learning_rate']:g}",
        str(settings["epochs"]),
    ]  # fmt: skip


SQUAD = Experiment("squad", TITLE, TASKS, planned_runs, draw, kinds=("span",))
