"""The paper's figures: curves over a logarithmic axis, with bands or error bars, and the heatmap of layer spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.lab.paper.experiment_report import short_count
from intarsia.lab.report import COLOURS, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#555555"
PARAMETERS = "trained parameters a task, without the head"
# Marker and line style repeat the colour's meaning for colour-blind readers.
STYLES = ((COLOURS[0], "o", "-"), (COLOURS[1], "s", "--"), (COLOURS[2], "^", "-."), (COLOURS[3], "D", ":"))


@dataclass(frozen=True)
class Curve:
    """Points (x, middle, low, high), from left to right."""

    name: str
    points: Sequence[tuple[float, float, float, float]]


def curves(
    given: Sequence[Curve],
    *,
    x: str,
    y: str,
    band: bool = False,
    line: tuple[float, str] | None = None,
    counts: bool = False,
    bounds: str = "",
    apart: float = 1.0,
) -> Figure:
    """Draw curves over a logarithmic x axis.

    `band` shades the area from low to high; otherwise error bars are drawn. `line` is a height and a name, drawn
    dashed. `counts` formats the x axis as parameter counts. `bounds` is a title that explains the bars. `apart` is a
    factor between the x of neighbouring curves, so that their bars do not overlap.
    """
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    for i, (curve, (colour, marker, style)) in enumerate(zip(given, STYLES, strict=False)):
        across = [p[0] * apart ** (i - (len(given) - 1) / 2) for p in curve.points]
        middle, low, high = ([p[place] for p in curve.points] for place in (1, 2, 3))
        single = len(across) == 1
        axes.plot(
            across, middle, marker=marker, markersize=6, linestyle="" if single else style, color=colour,
            label=curve.name, zorder=4,
        )  # fmt: skip
        if band and not single:
            axes.fill_between(across, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
        elif low != middle or high != middle:
            axes.vlines(across, low, high, color=colour, linewidth=1.2, alpha=0.7, zorder=3)
            for edge in (low, high):
                axes.plot(across, edge, marker="_", markersize=7, linestyle="", color=colour, alpha=0.7, zorder=3)
    axes.set_xscale("log")
    axes.minorticks_off()
    if counts:
        _count_ticks(axes, [p[0] for curve in given for p in curve.points])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.margins(y=0.12)
    if line is not None:
        axes.axhline(line[0], linestyle=(0, (6, 3)), color=GREY, linewidth=1, zorder=1)
        axes.annotate(
            line[1], (1, line[0]), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            fontsize=8.5, va="center", color=GREY, annotation_clip=False,
        )  # fmt: skip
    if bounds:
        axes.set_title(bounds, fontsize=9, color=GREY, loc="right")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=len(given), fontsize=9, frameon=False)
    return figure


def _count_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Label the x axis with parameter counts: 10 k, 100 k, 1 M."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    if not values:
        return
    least, most = min(values) / 1.8, max(values) * 1.8
    decades = [10.0**n for n in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]
    steps = [n * d for d in decades for n in range(1, 10) if least <= n * d <= most]
    labelled = [step for step in steps if step in decades]
    if len(labelled) < 2:  # the range has too few powers of ten
        labelled = [n * d for d in decades for n in (1, 2, 5) if n * d in steps]
    axes.set_xlim(least, most)
    axes.xaxis.set_major_locator(FixedLocator(labelled))
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    axes.xaxis.set_minor_locator(FixedLocator([step for step in steps if step not in labelled]))
    axes.xaxis.set_minor_formatter(NullFormatter())


def heatmap(given: Sequence[tuple[str, dict[tuple[int, int], float]]], layers: int) -> Figure:
    """Draw the relative change in per cent for each removed span: first layer down, last layer across."""
    import numpy as np

    worst = min([-1.0, *(value for _, cells in given for value in cells.values())])
    size = 2.4 + 0.3 * layers
    figure = new_figure(0.9 + size * len(given), size)
    grid = figure.subplots(1, len(given), squeeze=False)[0]
    for axes, (name, cells) in zip(grid, given, strict=True):
        values = np.full((layers, layers), np.nan)
        for (first, last), value in cells.items():
            values[first, last] = value
        # cividis is perceptually uniform, also for colour-blind readers and in grey. Light: no loss; dark: large loss.
        image = axes.imshow(values, cmap="cividis", vmin=worst, vmax=0, origin="upper")
        for (first, last), value in cells.items():
            dark = value < worst * 0.5
            text = f"{value:+.0f}" if abs(value) >= 0.5 else "0"
            axes.text(last, first, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black")
        axes.set_xticks(range(layers))
        axes.set_yticks(range(layers))
        axes.set_xlabel("last layer removed")
        axes.set_ylabel("first layer removed")
        axes.set_title(name, fontsize=10)
        axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
        axes.tick_params(length=0)
    figure.colorbar(image, ax=list(grid), shrink=0.8, label="relative change of accuracy (%)")
    return figure
