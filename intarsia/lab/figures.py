"""The trade-off figure of a comparison: test score over trained parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, get_args

from intarsia.lab.labels import Box, put_labels
from intarsia.lab.report import COLOURS, new_figure, tidy
from intarsia.methods import METHODS, Full, Method
from intarsia.methods.method import Category
from intarsia.tasks.metrics import title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from intarsia.lab.comparison import Comparison, ComparisonRow, Score

_GREY = "#555555"
_MANY = 12  # points from which outliers may get a compressed scale
# Colour and marker both show the category of a method, for readers who cannot distinguish the colours.
_LOOKS: dict[str, tuple[str, str]] = dict(zip(get_args(Category), zip(COLOURS, "os^Dv", strict=False), strict=True))


class Point(NamedTuple):
    """A method in the figure."""

    x: float
    row: ComparisonRow
    score: Score

    @property
    def category(self) -> str:
        return METHODS.get(self.row.method["type"], Method).category


def tradeoff(comparison: Comparison, bars: str | None = None) -> Figure:
    """Return the figure of test scores over trained parameters.

    Methods that train only the head stand apart, at the left. `bars` describes the error bars, if they do not come from
    the comparison itself.
    """
    points, zero, decades = _placed(comparison)
    figure = new_figure(8.0, 5.0 + 0.12 * max(0, len(points) - 9))
    axes = figure.add_subplot()
    for p in points:
        value, low, high = (100 * v for v in p.score[:3])
        colour, marker = _LOOKS[p.category]
        axes.vlines(p.x, low, high, color=colour, linewidth=1.2, alpha=0.6, zorder=3)
        axes.plot([p.x, p.x], [low, high], marker="_", markersize=7, linestyle="", color=colour, alpha=0.6, zorder=3)
        axes.plot(p.x, value, marker=marker, markersize=6, color=colour, zorder=4)
    _scale(axes, comparison, zero, decades, points)
    below = _sparse_below(points)
    if below is not None:
        _compress(axes, points, below)
    lines = _lines(axes, comparison)
    about = (bars or _describe_bars(points)) + ("" if below is None else "; grey: compressed scale")
    axes.set_title(about, fontsize=9, color=_GREY, loc="right")
    tidy(axes)
    _ticks(axes, below)
    _legend(figure, {p.category for p in points})
    figure.draw_without_rendering()  # fixes the layout, so that positions in pixels are known
    if points:
        named = [(p.x, 100 * p.score.value, p.row.name, _LOOKS[p.category][0]) for p in points]
        marks = [_pixels(axes, x, x, y, y).grown(6) for x, y, _, _ in named]
        taken = [_pixels(axes, p.x, p.x, 100 * p.score.low, 100 * p.score.high).grown(2) for p in points]
        taken += [_pixels(axes, *axes.get_xlim(), y, y).grown(1) for y in lines]
        put_labels(axes, named, marks, taken, 9.5)
    return figure


def _describe_bars(points: list[Point]) -> str:
    """Return the description of the error bars."""
    seeds = [sum(result.test is not None for result in p.row.results) for p in points]
    count = max(seeds, default=1)
    most = f"{count} seed{'s' * (count > 1)}"
    bounds = {p.score.bounds for p in points if p.score.low != p.score.high}
    if not bounds:
        return most
    up_to = "up to " * (len(set(seeds)) > 1)
    texts = {"standard error": f"standard error over {up_to}{most}", "95 % interval": "95 % interval"}
    return "bars: " + ", for one seed ".join(text for kind, text in texts.items() if kind in bounds)


def _placed(comparison: Comparison) -> tuple[list[Point], float | None, list[float]]:
    """Return the points, the x position of methods without parameters, and the powers of ten on the axis."""
    scored = [(row, row.score, row.parameters) for row in comparison.rows]
    usable = [(row, score, count["method"]) for row, score, count in scored if score is not None and count is not None]
    counts = [count for _, _, count in usable if count] or [1000]
    low, high = math.floor(math.log10(min(counts))), math.ceil(math.log10(max(counts)))
    decades = [10.0**n for n in range(low, max(high, low + 1) + 1)]
    zero = 10.0 ** (low - 0.8) if any(not count for _, _, count in usable) else None
    points = [Point(float(count or zero or 1.0), row, score) for row, score, count in usable]
    return _apart(points, 0.009 * math.log10(decades[-1] / (zero or decades[0]))), zero, decades


def _apart(points: list[Point], gap: float) -> list[Point]:
    """Return the points, with those whose bars would overlap moved apart by `gap` powers of ten."""
    groups: list[list[Point]] = []
    for point in points:
        for group in groups:
            hidden = (p for p in group if abs(math.log10(p.x / point.x)) < gap / 2)
            if any(p.score.low <= point.score.high and point.score.low <= p.score.high for p in hidden):
                group.append(point)
                break
        else:
            groups.append([point])
    moved = []
    for group in groups:
        for i, point in enumerate(group):
            moved.append(point._replace(x=point.x * 10 ** (gap * (i - (len(group) - 1) / 2))))
    return moved


def _scale(axes: Axes, comparison: Comparison, zero: float | None, decades: list[float], points: list[Point]) -> None:
    """Set the scales, the ticks of the x axis, and the titles of both axes."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    axes.set_xscale("log")
    least = zero if zero is not None else min((p.x for p in points), default=decades[0])
    most = max((p.x for p in points), default=decades[-1])
    axes.set_xlim(min(least, decades[0]) / 1.6 if zero is not None else least / 2.5, most * 2.5)
    shown = [d for d in decades if least <= d <= most * 2.5]
    ticks = [*([zero] if zero is not None else []), *shown]
    axes.set_xticks(ticks, ["head only"] * (zero is not None) + [_short(d) for d in shown])
    minor = [n * d for d in decades for n in range(2, 10) if decades[0] <= n * d]
    axes.xaxis.set_minor_locator(FixedLocator(minor))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if zero is not None:  # mark the break of the axis between zero and the lowest power of ten
        middle = math.sqrt(zero * decades[0])
        axes.plot(
            [middle], [0], transform=axes.get_xaxis_transform(), marker=r"$/\!/$", markersize=11, color="black",
            markeredgewidth=0.3, clip_on=False, zorder=6,
        )  # fmt: skip
    base = comparison.provenance["encoder"]["parameters"]
    axes.set_xlabel(f"trained parameters, without the head (the base has {_short(base)})")
    metric = comparison.metric
    title = title_of(metric) + (f" of {metric.partition(':')[2]}" if ":" in metric else "")
    axes.set_ylabel(f"{title} on test ({'× 100' if 'correlation' in title else '%'})")
    axes.margins(y=0.12)


def _sparse_below(points: list[Point]) -> float | None:
    """Return the score below which only outliers lie, or None. On one scale, outliers would crowd the other points."""
    ordered = sorted(points, key=lambda p: -p.score.value)
    if len(ordered) < _MANY:
        return None
    top, bottom = ordered[0].score.value, ordered[-1].score.value
    for i in range(math.ceil(0.6 * len(ordered)), len(ordered)):
        least, next_one = min(p.score.low for p in ordered[:i]), max(p.score.high for p in ordered[i:])
        if least - next_one > 0.03 * (top - bottom) and top - least < 0.45 * (top - bottom):
            return 50 * (least + next_one)
    return None


def _compress(axes: Axes, points: list[Point], below: float) -> None:
    """Compress the scale below a score, so that the range above takes three quarters of the height."""
    import numpy as np

    high, low = 100 * max(p.score.high for p in points), 100 * min(p.score.low for p in points)
    factor = 3 * (below - low) / (high - below)
    axes.set_yscale(
        "function",
        functions=(
            lambda y: np.where(y < below, below + (y - below) / factor, y),
            lambda y: np.where(y < below, below + (y - below) * factor, y),
        ),
    )
    axes.axhspan(-1000, below, color="#f4f4f4", zorder=0, linewidth=0)
    axes.set_ylim(low - 0.12 * factor * (high - below), high + 0.1 * (high - below))


def _ticks(axes: Axes, below: float | None) -> None:
    """Set the ticks of the y axis to round scores up to 100, with fewer ticks on a compressed scale."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()  # includes the horizontal lines
    if below is None:
        ticks = list(axes.get_yticks())
    else:
        ticks = [t for t in MaxNLocator(3).tick_values(low, below) if t < below]
        ticks += [t for t in MaxNLocator(6).tick_values(below, high) if t >= below]
    axes.set_yticks([tick for tick in ticks if low <= tick <= min(high, 100)])


def _legend(figure: Figure, categories: set[str]) -> None:
    """Add a legend if the points have several categories."""
    from matplotlib.lines import Line2D

    if len(categories) > 1:
        shown = {category: look for category, look in _LOOKS.items() if category in categories}
        handles = [Line2D([], [], color=c, marker=m, linestyle="", label=name) for name, (c, m) in shown.items()]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=5, fontsize=8.5, frameon=False, handletextpad=0.2
        )


def _lines(axes: Axes, comparison: Comparison) -> list[float]:
    """Draw labelled lines for full fine-tuning (dashed) and the best model without a transformer (dotted).

    Returns the heights of the lines.
    """
    full = next((row.score for row in comparison.rows if row.method["type"] == Full.name), None)
    references = ((full, "--", "full fine-tuning"), (comparison.baseline_score, ":", "no BERT"))
    lines = [(100 * score.value, style, name) for score, style, name in references if score is not None]
    for y, style, _ in lines:
        axes.axhline(y, linestyle=style, color=_GREY, linewidth=1, zorder=1)
    low, high = axes.get_ylim()
    close = len(lines) == 2 and abs(lines[0][0] - lines[1][0]) < 0.04 * (high - low)
    top = max((y for y, _, _ in lines), default=0.0)
    for y, _, name in lines:
        axes.annotate(
            name, (1, y), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points", fontsize=8.5,
            va="center" if not close else "bottom" if y == top else "top", color=_GREY, annotation_clip=False,
        )  # fmt: skip
    return [y for y, _, _ in lines]


def _pixels(axes: Axes, left: float, right: float, bottom: float, top: float) -> Box:
    """Convert a box from data coordinates to pixels."""
    (x0, y0), (x1, y1) = axes.transData.transform([(left, bottom), (right, top)])
    return Box(float(x0), float(y0), float(x1), float(y1))


def _short(count: float) -> str:
    """Format a count: 1,000 → 1 k, 22,713,216 → 22.7 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.0f}"
