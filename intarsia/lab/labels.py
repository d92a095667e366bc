"""Names beside points, so that they cover neither each other nor a point, and seldom a bar or a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TURNS = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 158, -158, 68, -68, 112, -112)  # degrees, the first preferred
_REACH = (8, 13, 20, 30, 42, 56)  # typographic points between a point and its name
_LINE_FROM = 12.0  # a name this far away gets a line to its point …
_SHORT_LINE = 9.0  # … or this far, where another point is as near
_ROUNDS = 4  # of choosing again, with all other names in place

Spot = tuple[float, float]


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return wide * high if wide > 0 and high > 0 else 0.0

    def outside(self, other: Box) -> float:
        """How far it sticks out of the other."""
        beyond = (other.left - self.left, other.bottom - self.bottom, self.right - other.right, self.top - other.top)
        return sum(max(0.0, distance) for distance in beyond)

    def holds(self, spot: Spot) -> bool:
        return self.left <= spot[0] <= self.right and self.bottom <= spot[1] <= self.top

    def grown(self, by: float) -> Box:
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def crossed(self, start: Spot, end: Spot) -> bool:
        """Whether the straight way between two spots leads through it."""
        first, last = 0.0, 1.0
        for at, to, low, high in zip(start, end, self[:2], self[2:], strict=True):
            way = to - at
            if way == 0:
                if not low <= at <= high:
                    return False
                continue
            near, far = sorted(((low - at) / way, (high - at) / way))
            first, last = max(first, near), min(last, far)
        return first <= last


class Place(NamedTuple):
    """Where a name may stand: what it covers, and the line to its point, if it is so far away that it needs one."""

    offset: Spot  # from the point to the middle of the name
    box: Box
    line: tuple[Spot, Spot] | None
    price: float


def places(
    points: Sequence[Spot], sizes: Sequence[Spot], marks: Sequence[Box], bars: Sequence[Box], inside: Box, scale: float
) -> list[Place]:
    """A place for each point's name, all in one unit, of which `scale` make a typographic point.

    Names cover neither `marks` nor each other if that is possible, and `bars` as little as possible. Points in the
    thick of others choose first, each the cheapest of the places around it; then all choose again, a few times.
    """
    found: dict[int, Place] = {}
    around = [_around(point, size, marks, bars, inside, scale) for point, size in zip(points, sizes, strict=True)]
    order = sorted(range(len(points)), key=lambda i: -_crowd(i, points))
    for _ in range(_ROUNDS):
        before = dict(found)
        for i in order:
            others = [place for j, place in found.items() if j != i]
            found[i] = min(around[i], key=lambda place: place.price + _beside(place, others, scale))
        if found == before:
            break
    return [found[i] for i in range(len(points))]


def _crowd(i: int, points: Sequence[Spot]) -> float:
    return sum(1 / (1 + math.dist(points[i], other)) for j, other in enumerate(points) if j != i)


def _around(
    point: Spot, size: Spot, marks: Sequence[Box], bars: Sequence[Box], inside: Box, scale: float
) -> list[Place]:
    """The places around a point, with their price if no other name were there."""
    found = []
    foreign = [mark for mark in marks if not mark.holds(point)]
    for reach in _REACH:
        for rank, turn in enumerate(_TURNS):
            x, y = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            # The name's edge, not its middle, keeps the distance.
            across = min(size[0] / 2 / abs(x) if abs(x) > 1e-9 else math.inf, size[1] / 2 / abs(y) if y else math.inf)
            far = reach * scale + min(across, size[0] / 2)
            middle = (point[0] + far * x, point[1] + far * y)
            box = Box(
                middle[0] - size[0] / 2, middle[1] - size[1] / 2, middle[0] + size[0] / 2, middle[1] + size[1] / 2
            )
            price = reach + rank / 4 + 1000 * box.outside(inside) / scale
            price += sum(10 * box.overlap(mark) for mark in marks) / scale**2
            price += sum(0.8 * box.overlap(bar) for bar in bars) / scale**2
            line = _line(point, box, foreign, scale)
            price += 6 * _doubtful(point, box, foreign, scale)
            if line is not None:
                price += 8 + 40 * sum(mark.crossed(*line) for mark in foreign) + 4 * sum(b.crossed(*line) for b in bars)
            found.append(Place((middle[0] - point[0], middle[1] - point[1]), box, line, price))
    return found


def _line(point: Spot, box: Box, foreign: Sequence[Box], scale: float) -> tuple[Spot, Spot] | None:
    """From the point to the nearest spot of its name, where that is far away, or another point is as near."""
    end = _nearest(point, box)
    least = _SHORT_LINE if _doubtful(point, box, foreign, scale) else _LINE_FROM
    return (point, end) if math.dist(point, end) > least * scale else None


def _doubtful(point: Spot, box: Box, foreign: Sequence[Box], scale: float) -> bool:
    """Whether another point is about as near to a name as its own."""
    limit = math.dist(point, _nearest(point, box)) + 2 * scale
    middles = [((mark.left + mark.right) / 2, (mark.bottom + mark.top) / 2) for mark in foreign]
    return any(math.dist(middle, _nearest(middle, box)) < limit for middle in middles)


def _nearest(spot: Spot, box: Box) -> Spot:
    return min(max(spot[0], box.left), box.right), min(max(spot[1], box.bottom), box.top)


def _beside(place: Place, others: Sequence[Place], scale: float) -> float:
    """What a place costs more because of the names that are there."""
    price = 0.0
    for other in others:
        price += 10 * place.box.grown(1.5 * scale).overlap(other.box) / scale**2
        if place.line is not None:
            price += 40 * other.box.crossed(*place.line)
        if other.line is not None:
            price += 40 * place.box.crossed(*other.line)
            if place.line is not None:
                price += 25 * _cross(place.line, other.line)
    return price


def _cross(a: tuple[Spot, Spot], b: tuple[Spot, Spot]) -> bool:
    def side(start: Spot, end: Spot, spot: Spot) -> float:
        return (end[0] - start[0]) * (spot[1] - start[1]) - (end[1] - start[1]) * (spot[0] - start[0])

    return side(*a, b[0]) * side(*a, b[1]) < 0 and side(*b, a[0]) * side(*b, a[1]) < 0


def put_labels(
    axes: Axes, points: Sequence[tuple[float, float, str, str]], marks: Sequence[Box], bars: Sequence[Box], size: float
) -> None:
    """Write names beside points (x, y, name, colour), in data units; boxes are in pixels of the figure as it is."""
    from matplotlib.patheffects import withStroke

    scale = axes.figure.dpi / 72
    spots = [(float(x), float(y)) for x, y in axes.transData.transform([(x, y) for x, y, _, _ in points])]
    sizes = []
    for _, _, name, _ in points:
        text = axes.text(0, 0, name, fontsize=size)
        extent = text.get_window_extent()
        text.remove()
        sizes.append((float(extent.width), float(extent.height)))
    frame = axes.get_window_extent()
    inside = Box(frame.x0, frame.y0, frame.x1, frame.y1).grown(-2 * scale)
    chosen = places(spots, sizes, marks, bars, inside, scale)
    for (x, y, name, colour), spot, place in zip(points, spots, chosen, strict=True):
        if place.line is not None:
            end = (place.line[1][0] - spot[0], place.line[1][1] - spot[1])
            line = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
            axes.annotate(
                "", (x, y), xytext=(end[0] / scale, end[1] / scale), textcoords="offset points", arrowprops=line,
                zorder=5,
            ).set_in_layout(False)  # fmt: skip
        axes.annotate(
            name, (x, y), xytext=(place.offset[0] / scale, place.offset[1] / scale), textcoords="offset points",
            ha="center", va="center", fontsize=size, color=colour, zorder=6,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        ).set_in_layout(False)  # fmt: skip
