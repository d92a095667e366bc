"""Names beside points, so that they cover neither each other nor a point or an error bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TURNS = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 158, -158, 68, -68, 112, -112)  # degrees, the first preferred
_REACH = (9, 16, 25, 36, 50, 66)  # points between a point and its name


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

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.bottom <= y <= self.top

    def grown(self, by: float) -> Box:
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)


def offsets(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    taken: Sequence[Box],
    inside: Box,
    scale: float = 1.0,
) -> list[tuple[float, float]]:
    """For each point, how far from it the middle of its name stands.

    `taken` is what names shall not cover; all in one unit, of which `scale` make a typographic point. Points in the
    thick of others choose first; each takes the cheapest of a few places around it.
    """
    found: dict[int, tuple[float, float]] = {}
    boxes: list[Box] = list(taken)
    for i in sorted(range(len(points)), key=lambda i: -_crowd(i, points)):
        best = min(_places(sizes[i], scale), key=lambda place: _price(points[i], sizes[i], place, boxes, inside, scale))
        found[i] = best[1]
        boxes.append(_box(points[i], sizes[i], best[1]).grown(1.5 * scale))
    return [found[i] for i in range(len(points))]


def _crowd(i: int, points: Sequence[tuple[float, float]]) -> float:
    return sum(1 / (1 + math.dist(points[i], other)) for j, other in enumerate(points) if j != i)


def _places(size: tuple[float, float], scale: float) -> list[tuple[float, tuple[float, float]]]:
    """(price, offset of the middle) around a point: nearer ones are cheaper, and so are the first turns."""
    places = []
    for reach in _REACH:
        for rank, turn in enumerate(_TURNS):
            x, y = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            # The name's edge, not its middle, keeps the distance.
            across = min(size[0] / 2 / abs(x) if abs(x) > 1e-9 else math.inf, size[1] / 2 / abs(y) if y else math.inf)
            far = reach * scale + min(across, size[0] / 2)
            places.append((reach + rank / 4, (far * x, far * y)))
    return places


def _price(
    point: tuple[float, float],
    size: tuple[float, float],
    place: tuple[float, tuple[float, float]],
    boxes: Sequence[Box],
    inside: Box,
    scale: float,
) -> float:
    box = _box(point, size, place[1])
    covered = sum(box.overlap(other) for other in boxes) / scale**2
    crossed = sum(_crosses(point, place[1], other) for other in boxes)
    return place[0] + 10 * covered + 40 * crossed + 1000 * box.outside(inside) / scale


def _crosses(point: tuple[float, float], offset: tuple[float, float], box: Box) -> bool:
    """Whether the way from a point to its name leads through something that is not the point's own."""
    if box.holds(*point):
        return False
    return any(box.holds(point[0] + offset[0] * i / 12, point[1] + offset[1] * i / 12) for i in range(1, 12))


def _box(point: tuple[float, float], size: tuple[float, float], offset: tuple[float, float]) -> Box:
    x, y = point[0] + offset[0], point[1] + offset[1]
    return Box(x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)


def put_labels(axes: Axes, points: Sequence[tuple[float, float, str, str]], taken: Sequence[Box], size: float) -> None:
    """Write names beside points (x, y, name, colour), in data units; `taken` is in pixels of the figure as it is."""
    figure = axes.figure
    scale = figure.dpi / 72
    places = [(float(x), float(y)) for x, y in axes.transData.transform([(x, y) for x, y, _, _ in points])]
    measured = []
    for _, _, name, _ in points:
        text = axes.text(0, 0, name, fontsize=size)
        extent = text.get_window_extent()
        text.remove()
        measured.append((float(extent.width), float(extent.height)))
    frame = axes.get_window_extent()
    inside = Box(frame.x0, frame.y0, frame.x1, frame.y1).grown(-2 * scale)
    for (x, y, name, colour), wide, (dx, dy) in zip(
        points, measured, offsets(places, measured, taken, inside, scale), strict=True
    ):
        gap = max(abs(dx) - wide[0] / 2, abs(dy) - wide[1] / 2) if abs(dx) > scale else 0.0  # along a bar: no line
        line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
        written = axes.annotate(
            name, (x, y), xytext=(dx / scale, dy / scale), textcoords="offset points", ha="center", va="center",
            fontsize=size, color=colour, arrowprops=line if gap > 14 * scale else None, zorder=5,
        )  # fmt: skip
        written.set_in_layout(False)
