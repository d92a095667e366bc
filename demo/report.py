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


def write_report(path: Path, bank: Bank, outcome: Outcome, total_seconds: float) -> None:
    """Write the HTML page of a demonstration."""
    cost = bank.cost()
    page = Page("Intarsia: three tasks over one frozen base")
    page.text(
        f"One pretrained encoder ({bank.encoder.name}, {bank.encoder.shape.parameters:,} parameters) stays frozen. "
        f"{len(outcome.steps)} tasks arrived one after another. Each task has trained Houlsby adapters of size 64, "
        f"LayerNorms and a head of its own. The whole demonstration took {formatting.seconds(total_seconds)}."
    )
    page.heading("Trained tasks")
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
    columns = ["task", "description", "trained on", "tested on", "test accuracy in % (95 % interval)"]
    columns += ["trained parameters (of the base)", "file", "time"]
    page.table(columns, rows, left=(0, 1))
    page.text(
        f"Each task was trained on a random sample of its training texts with a fixed seed, truncated to "
        f"{outcome.entries[0].header.training['max_length']} tokens. The test sets are complete: the official files "
        "of Reuters R8 and R52, and a tenth of the tweets. The epoch was selected on held-out texts, never on the test "
        "set."
    )
    page.figure(_scores(outcome), "Test accuracy with 95 % intervals.")
    page.heading("Cost")
    page.text(
        f"Base and all tasks: {cost.total_with_heads:.2f}× the base. Full fine-tuning stores a copy of the base "
        f"for each task: {cost.fine_tuning}×."
    )
    page.figure(_growth(bank, outcome), "Stored parameters, in multiples of the base, as the tasks arrived.")
    page.heading("No forgetting")
    page.text(
        f"{outcome.steps[0].name} predicted {outcome.unchanged} test texts before and after the other tasks were "
        "added: all labels and probabilities are bit-identical.",
        "good",
    )
    page.heading("All tasks in one pass")
    shown = [
        [name, f"{text[:90]}…" if len(text) > 90 else text, f"{p.label} ({p.probability:.2f})"]
        for name, text, p in outcome.mixed
    ]
    page.table(["task", "text", "prediction"], shown, left=(0, 1, 2))
    page.text(
        "Separate predictions of the same texts are equal."
        if outcome.mixed_agree
        else "Separate predictions of the same texts differ. This is a bug: please report it.",
        "good" if outcome.mixed_agree else "bad",
    )
    path.write_text(page.render(), encoding="utf-8")


def _scores(outcome: Outcome) -> Figure:
    """Draw the test accuracy of each task with its interval."""
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
    """Draw the stored parameters after each task, next to those of full fine-tuning."""
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
