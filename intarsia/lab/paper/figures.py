"""The paper's kinds of figures: curves over a logarithmic axis, with bands or bars, and the heatmap of layer spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.lab.paper.drawn import short
from intarsia.lab.report import COLOURS, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#555555"
PARAMETERS = "trained parameters a task, without the head"
# Colour, marker and line say the same, for those who cannot tell the colours apart.
LOOKS = ((COLOURS[0], "o", "-"), (COLOURS[1], "s", "--"), (COLOURS[2], "^", "-."), (COLOURS[3], "D", ":"))


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
    """`band`: shade from low to high, else bars. `line`: a height with its name, dashed. `counts`: x are parameters.

    `apart`: a factor that keeps the bars of curves with the same x from hiding each other.
    """
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    for i, (curve, (colour, marker, style)) in enumerate(zip(given, LOOKS, strict=False)):
        across = [p[0] * apart ** (i - (len(given) - 1) / 2) for p in curve.points]
        middle, low, high = ([p[place] for p in curve.points] for place in (1, 2, 3))
        alone = len(across) == 1
        axes.plot(
            across, middle, marker=marker, markersize=6, linestyle="" if alone else style, color=colour,
            label=curve.name, zorder=4,
        )  # fmt: skip
        if band and not alone:
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
    """Numbers of parameters: 10 k, 100 k, 1 M."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    if not values:
        return
    least, most = min(values) / 1.8, max(values) * 1.8
    decades = [10.0**n for n in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]
    steps = [n * d for d in decades for n in range(1, 10) if least <= n * d <= most]
    named = [step for step in steps if step in decades]
    if len(named) < 2:  # too narrow for powers of ten
        named = [n * d for d in decades for n in (1, 2, 5) if n * d in steps]
    axes.set_xlim(least, most)
    axes.xaxis.set_major_locator(FixedLocator(named))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.xaxis.set_minor_locator(FixedLocator([step for step in steps if step not in named]))
    axes.xaxis.set_minor_formatter(NullFormatter())


def heatmap(given: Sequence[tuple[str, dict[tuple[int, int], float]]], layers: int) -> Figure:
    """The relative change, in per cent, without the adapters of each span: first layer down, last layer across."""
    import numpy as np

    worst = min([-1.0, *(value for _, cells in given for value in cells.values())])
    size = 2.4 + 0.3 * layers
    figure = new_figure(0.9 + size * len(given), size)
    grid = figure.subplots(1, len(given), squeeze=False)[0]
    for axes, (name, cells) in zip(grid, given, strict=True):
        values = np.full((layers, layers), np.nan)
        for (first, last), value in cells.items():
            values[first, last] = value
        # From light (free) to dark (costly), in steps that all eyes see alike, and that are even in grey.
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
