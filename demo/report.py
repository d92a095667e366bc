"""The demonstration's HTML report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intarsia import formatting
from intarsia.cli.tables import test_score
from intarsia.lab.report import COLOURS, Page, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from demo.__main__ import Outcome
    from intarsia.bank.bank import Bank


def write_report(path: Path, bank: Bank, outcome: Outcome, took: float) -> None:
    cost = bank.cost()
    page = Page("Intarsia: three tasks over one frozen base")
    page.text(
        f"One pretrained encoder ({bank.encoder.name}, {bank.encoder.shape.parameters:,} parameters) stays frozen. "
        f"{len(outcome.steps)} tasks arrived one after another; each was learned as Houlsby adapters of size 64 "
        f"with its own LayerNorms and head. In all this took {formatting.seconds(took)}."
    )
    page.heading("What was learned")
    rows = []
    for step, entry, seconds in zip(outcome.steps, outcome.entries, outcome.seconds, strict=True):
        header = entry.header
        counts, data = header.parameters, header.data
        rows.append(
            [
                step.name,
                step.about,
                f"{data['rows']['train']:,} of {data['whole_train']:,}",
                f"{data['rows']['test']:,}",
                test_score(header.metrics),
                f"{counts['total']:,} ({counts['total'] / counts['base']:.2%})",
                formatting.size(entry.bytes),
                f"{seconds:.0f} s",
            ]
        )
    columns = ["task", "what", "trained on", "tested on", "test accuracy in % (95 % interval)"]
    columns += ["trained parameters (of the base)", "file", "time"]
    page.table(columns, rows, left=(0, 1))
    page.text(
        f"Each task learned from a seeded part of its training texts, cut to "
        f"{outcome.entries[0].header.training['max_length']} tokens. The tests are whole: the official files of "
        "Reuters R8 and R52, and a tenth of the tweets. The epoch was chosen on other texts, held out, never on the "
        "test."
    )
    page.figure(_scores(outcome), "Test accuracy with 95 % bootstrap intervals.")
    page.heading("What it costs")
    page.text(
        f"Base and all tasks: {cost.total_with_heads:.2f}× the base. Full fine-tuning keeps a copy of the base for "
        f"each task: {cost.fine_tuning}×."
    )
    page.figure(_growth(bank, outcome), "Stored parameters, in multiples of the base, as the tasks arrived.")
    page.heading("Nothing was forgotten")
    page.text(
        f"{outcome.steps[0].name} answered {outcome.same} test texts before and after the other tasks came: "
        "every label and every probability equal, bit for bit.",
        "good",
    )
    page.heading("All tasks in one pass")
    shown = [
        [name, f"{text[:90]}…" if len(text) > 90 else text, f"{p.label} ({p.probability:.2f})"]
        for name, text, p in outcome.mixed
    ]
    page.table(["task", "text", "answer"], shown, left=(0, 1, 2))
    page.text(
        "Asked one by one the answers are the same."
        if outcome.alone
        else "Asked one by one the answers differ: please report this.",
        "good" if outcome.alone else "bad",
    )
    path.write_text(page.render(), encoding="utf-8")


def _scores(outcome: Outcome) -> Figure:
    figure = new_figure(7, 0.6 + 0.5 * len(outcome.steps))
    axes = figure.add_subplot()
    for i, entry in enumerate(outcome.entries):
        test = entry.header.metrics["test"]
        low, value, high = (100 * test[k] for k in ("low", "value", "high"))
        axes.errorbar(value, i, xerr=[[value - low], [high - value]], fmt="o", capsize=4, color=COLOURS[0])
        axes.annotate(f"{value:.1f}", (high, i), xytext=(8, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(outcome.steps)), [s.name for s in outcome.steps])
    axes.set_ylim(len(outcome.steps) - 0.5, -0.5)
    axes.margins(x=0.15)
    axes.set_xlabel("test accuracy (%)")
    tidy(axes)
    return figure


def _growth(bank: Bank, outcome: Outcome) -> Figure:
    figure = new_figure(7, 3)
    axes = figure.add_subplot()
    base = bank.cost().base
    inlays, full = [1.0], [1.0]
    for i, entry in enumerate(outcome.entries):
        inlays.append(inlays[-1] + entry.header.parameters["total"] / base)
        full.append(float(i + 1))
    arrivals = range(len(inlays))
    axes.plot(arrivals, full, "s--", color=COLOURS[1], label="full fine-tuning")
    axes.plot(arrivals, inlays, "o-", color=COLOURS[0], label="base and inlays")
    axes.annotate(f"{full[-1]:.0f}×", (arrivals[-1], full[-1]), xytext=(8, -4), textcoords="offset points")
    axes.annotate(f"{inlays[-1]:.2f}×", (arrivals[-1], inlays[-1]), xytext=(8, -4), textcoords="offset points")
    axes.set_xticks(arrivals, ["base alone", *[f"+ {s.name}" for s in outcome.steps]])
    axes.set_xlim(-0.2, len(arrivals) - 0.6)
    axes.set_ylim(0, full[-1] * 1.15)
    axes.set_ylabel("parameters (× base)")
    axes.legend(frameon=False, loc="upper left")
    tidy(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    return figure
