"""The figures of one task: its confusions, precision and recall, calibration, training curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia import files
from intarsia.lab.report import COLOURS, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from intarsia.tasks.calibration import Reliability
    from intarsia.tasks.outcome import Confusion, Outcome
    from intarsia.tasks.ranking import Curve

MOST_LABELS = 30  # in a confusion matrix: those with the most confusions
MOST_CURVES = 6
_GREY = "#555555"


def figures_of(outcome: Outcome) -> dict[str, Figure]:
    """Return the figures that an outcome has, by file name."""
    made: dict[str, Figure] = {}
    if (found := outcome.confusion) is not None and found.counts.sum():
        made["confusion"] = confusion_figure(found)
    if curves := outcome.curves():
        made["precision-recall"] = curves_figure(curves, {row.label: row.support for row in outcome.classes})
    if (reliability := outcome.reliability) is not None:
        made["calibration"] = calibration_figure(reliability)
    if outcome.kind == "score" and outcome.gold is not None and outcome.predicted is not None:
        made["scores"] = scores_figure(outcome.gold, outcome.predicted)
    return made


def write_figures(outcome: Outcome, folder: Path) -> list[Path]:
    """Write the figures of an outcome as PNG files into a folder, and return their paths."""
    paths = []
    for name, figure in figures_of(outcome).items():
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150)
        paths.append(folder / f"{name}.png")
        with files.explained(paths[-1], [image.getvalue()]):
            files.make_folder(folder)
        files.replace(paths[-1], [image.getvalue()])
    return paths


def confusion_figure(confusion: Confusion) -> Figure:
    """Return the confusion matrix: shares of each true label as colours, counts as numbers."""
    labels, counts = _most_confused(confusion)
    size = len(labels)
    side = min(9.0, 2.2 + 0.42 * size)
    figure = new_figure(side + 0.6, side)
    axes = figure.add_subplot()
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if size <= 20:
        for i, j in np.argwhere(counts > 0):
            colour = "white" if shares[i, j] > 0.55 else "black"
            axes.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", fontsize=8, color=colour)
    names = [_short(label) for label in labels]
    axes.set_xticks(range(size), names, rotation=45 if size > 3 else 0, ha="right" if size > 3 else "center")
    axes.set_yticks(range(size), names)
    for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        tick.set_parse_math(False)
        tick.set_fontsize(9 if size <= 20 else 7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_xticks(np.arange(size - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(size - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    if size < len(confusion.labels):
        title = f"the {size} of {len(confusion.labels)} labels with the most confusions"
        axes.set_title(title, fontsize=9, color=_GREY)
    return figure


def curves_figure(curves: dict[str, Curve], support: dict[str, int]) -> Figure:
    """Return precision over recall for the most frequent labels."""
    figure = new_figure(5.2, 3.8)
    axes = figure.add_subplot()
    shown = sorted(curves, key=lambda label: -support.get(label, 0))[:MOST_CURVES]
    for colour, label in zip(COLOURS, shown, strict=False):
        recall, precision = curves[label]
        axes.plot([0, *recall], [precision[0], *precision], color=colour, label=_short(label), drawstyle="steps-pre")
    _unit(axes, "recall", "precision")
    legend = figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=3)
    for text in legend.get_texts():
        text.set_parse_math(False)
    if len(shown) < len(curves):
        axes.set_title(f"the {len(shown)} most frequent of {len(curves)} labels", fontsize=9, color=_GREY)
    return figure


def calibration_figure(reliability: Reliability) -> Figure:
    """Return accuracy over confidence; the area of a point is the number of its rows."""
    figure = new_figure(4.6, 3.8)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle="--", zorder=1)
    confidence = [b.confidence for b in reliability.bins]
    accuracy = [b.accuracy for b in reliability.bins]
    most = max(b.rows for b in reliability.bins)
    axes.plot(confidence, accuracy, color=COLOURS[0], linewidth=1.2, zorder=2)
    sizes = [20 + 180 * b.rows / most for b in reliability.bins]
    axes.scatter(confidence, accuracy, sizes, color=COLOURS[0], alpha=0.7, zorder=3, linewidths=0)
    _unit(axes, "confidence", "accuracy")
    axes.set_title(f"expected calibration error {100 * reliability.ece:.1f}", fontsize=9, color=_GREY, loc="right")
    return figure


def scores_figure(gold: Any, predicted: Any) -> Figure:
    """Return predicted over true scores."""
    figure = new_figure(4.6, 3.8)
    axes = figure.add_subplot()
    ends = [min(gold.min(), predicted.min()), max(gold.max(), predicted.max())]
    axes.plot(ends, ends, color=_GREY, linewidth=1, linestyle="--", zorder=1)
    axes.scatter(gold, predicted, 14, color=COLOURS[0], alpha=min(0.8, 60 / len(gold) ** 0.5 / 10), linewidths=0)
    axes.set_xlabel("true score")
    axes.set_ylabel("predicted score")
    tidy(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    return figure


def history_figure(history: Sequence[dict[str, Any]], metric: str, best_epoch: int) -> Figure | None:
    """Return the loss and the validation score by epoch; None if fewer than two epochs are known."""
    if len(history) < 2:
        return None
    figure = new_figure(7.0, 2.8)
    left, right = figure.subplots(1, 2)
    losses = [(e["epoch"], e["loss"]) for e in history if e.get("loss") is not None]
    scores = [(e["epoch"], 100 * e[metric]) for e in history if e.get(metric) is not None]
    for axes, points, title, colour in (
        (left, losses, "training loss", COLOURS[1]),
        (right, scores, f"validation {metric}", COLOURS[0]),
    ):
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, linewidth=1.4)
        axes.set_title(title, fontsize=10, loc="left", parse_math=False)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        tidy(axes)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    if best_epoch and scores:
        right.axvline(best_epoch, color=_GREY, linewidth=1, linestyle=":")
    return figure


def _most_confused(confusion: Confusion) -> tuple[list[str], Any]:
    """Return the labels and counts to draw, in the labels' order."""
    counts = confusion.counts
    if len(confusion.labels) <= MOST_LABELS:
        return list(confusion.labels), counts
    wrong = counts.sum(axis=0) + counts.sum(axis=1) - 2 * counts.diagonal()
    chosen = np.sort(np.argsort(-wrong, kind="stable")[:MOST_LABELS])
    return [confusion.labels[i] for i in chosen], counts[np.ix_(chosen, chosen)]


def _unit(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.04)
    tidy(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"
