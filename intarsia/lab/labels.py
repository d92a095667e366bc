"""Label placement in figures: a label covers no other label and no point, and as few bars and lines as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ANGLES = (
    0,
    45,
    -45,
    90,
    -90,
    135,
    -135,
    180,
    22,
    -22,
    158,
    -158,
    68,
    -68,
    112,
    -112,
)  # degrees, in order of preference
_DISTANCES = (8, 13, 20, 30, 42, 56)  # between a point and its label, in typographic points
_LINE_FROM = 12.0  # a label at this distance gets a line to its point …
_SHORT_LINE = 9.0  # … or at this distance, if another point is as near
_ROUNDS = 4  # each round places every label again, given all other labels

XY = tuple[float, float]


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Return the area that both boxes cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0

    def outside(self, other: Box) -> float:
        """Return how far this box extends beyond the other, summed over the four sides."""
        beyond = (other.left - self.left, other.bottom - self.bottom, self.right - other.right, self.top - other.top)
        return sum(max(0.0, distance) for distance in beyond)

    def contains(self, point: XY) -> bool:
        return self.left <= point[0] <= self.right and self.bottom <= point[1] <= self.top

    def grown(self, by: float) -> Box:
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def crossed(self, start: XY, end: XY) -> bool:
        """Return whether the line from `start` to `end` crosses the box."""
        first, last = 0.0, 1.0
        for at, to, low, high in zip(start, end, self[:2], self[2:], strict=True):
            length = to - at
            if length == 0:
                if not low <= at <= high:
                    return False
                continue
            near, far = sorted(((low - at) / length, (high - at) / length))
            first, last = max(first, near), min(last, far)
        return first <= last


class Position(NamedTuple):
    """A possible position of a label: its box, and the line to its point if the label is far away."""

    offset: XY  # from the point to the centre of the label
    box: Box
    line: tuple[XY, XY] | None
    cost: float


def place_labels(
    points: Sequence[XY], sizes: Sequence[XY], marks: Sequence[Box], bars: Sequence[Box], inside: Box, scale: float
) -> list[Position]:
    """Return a position for the label of each point. `scale` is the number of units in a typographic point.

    Labels avoid `marks` and each other if possible, and cover `bars` as little as possible. Points in crowded regions
    choose first. Each label takes the cheapest position around its point; a few rounds repeat the choice.
    """
    found: dict[int, Position] = {}
    candidates = [
        _positions(point, size, marks, bars, inside, scale) for point, size in zip(points, sizes, strict=True)
    ]
    order = sorted(range(len(points)), key=lambda i: -_crowding(i, points))
    for _ in range(_ROUNDS):
        before = dict(found)
        for i in order:
            others = [position for j, position in found.items() if j != i]
            found[i] = min(candidates[i], key=lambda position: position.cost + _conflicts(position, others, scale))
        if found == before:
            break
    return [found[i] for i in range(len(points))]


def _crowding(i: int, points: Sequence[XY]) -> float:
    """Return how close the other points are to point i."""
    return sum(1 / (1 + math.dist(points[i], other)) for j, other in enumerate(points) if j != i)


def _positions(
    point: XY, size: XY, marks: Sequence[Box], bars: Sequence[Box], inside: Box, scale: float
) -> list[Position]:
    """Return the possible positions around a point. Their costs do not include conflicts with other labels."""
    found = []
    other_marks = [mark for mark in marks if not mark.contains(point)]
    for distance in _DISTANCES:
        for rank, angle in enumerate(_ANGLES):
            x, y = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # The distance is measured to the label's edge, not to its centre.
            across = min(size[0] / 2 / abs(x) if abs(x) > 1e-9 else math.inf, size[1] / 2 / abs(y) if y else math.inf)
            to_centre = distance * scale + min(across, size[0] / 2)
            centre = (point[0] + to_centre * x, point[1] + to_centre * y)
            box = Box(
                centre[0] - size[0] / 2, centre[1] - size[1] / 2, centre[0] + size[0] / 2, centre[1] + size[1] / 2
            )
            cost = distance + rank / 4 + 1000 * box.outside(inside) / scale
            cost += sum(10 * box.overlap(mark) for mark in marks) / scale**2
            cost += sum(0.8 * box.overlap(bar) for bar in bars) / scale**2
            line = _line(point, box, other_marks, scale)
            cost += 6 * _ambiguous(point, box, other_marks, scale)
            if line is not None:
                cost += 8 + 40 * sum(mark.crossed(*line) for mark in other_marks)
                cost += 4 * sum(bar.crossed(*line) for bar in bars)
            found.append(Position((centre[0] - point[0], centre[1] - point[1]), box, line, cost))
    return found


def _line(point: XY, box: Box, other_marks: Sequence[Box], scale: float) -> tuple[XY, XY] | None:
    """Return a line from the point to its label, or None if the label is near and unambiguous."""
    end = _nearest(point, box)
    least = _SHORT_LINE if _ambiguous(point, box, other_marks, scale) else _LINE_FROM
    return (point, end) if math.dist(point, end) > least * scale else None


def _ambiguous(point: XY, box: Box, other_marks: Sequence[Box], scale: float) -> bool:
    """Return whether another point is about as near to the label as its own point."""
    limit = math.dist(point, _nearest(point, box)) + 2 * scale
    centres = [((mark.left + mark.right) / 2, (mark.bottom + mark.top) / 2) for mark in other_marks]
    return any(math.dist(centre, _nearest(centre, box)) < limit for centre in centres)


def _nearest(point: XY, box: Box) -> XY:
    """Return the point of the box that is nearest to `point`."""
    return min(max(point[0], box.left), box.right), min(max(point[1], box.bottom), box.top)


def _conflicts(position: Position, others: Sequence[Position], scale: float) -> float:
    """Return the additional cost of a position because of the labels that are already placed."""
    cost = 0.0
    for other in others:
        cost += 10 * position.box.grown(1.5 * scale).overlap(other.box) / scale**2
        if position.line is not None:
            cost += 40 * other.box.crossed(*position.line)
        if other.line is not None:
            cost += 40 * position.box.crossed(*other.line)
            if position.line is not None:
                cost += 25 * _cross(position.line, other.line)
    return cost


def _cross(a: tuple[XY, XY], b: tuple[XY, XY]) -> bool:
    """Return whether two line segments cross."""

    def side(start: XY, end: XY, point: XY) -> float:
        return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])

    return side(*a, b[0]) * side(*a, b[1]) < 0 and side(*b, a[0]) * side(*b, a[1]) < 0


def put_labels(
    axes: Axes, points: Sequence[tuple[float, float, str, str]], marks: Sequence[Box], bars: Sequence[Box], size: float
) -> None:
    """Label points (x, y, name, colour), given in data units. `marks` and `bars` are in pixels of the drawn figure."""
    from matplotlib.patheffects import withStroke

    scale = axes.figure.dpi / 72
    pixels = [(float(x), float(y)) for x, y in axes.transData.transform([(x, y) for x, y, _, _ in points])]
    sizes = []
    for _, _, name, _ in points:
        text = axes.text(0, 0, name, fontsize=size)
        extent = text.get_window_extent()
        text.remove()
        sizes.append((float(extent.width), float(extent.height)))
    frame = axes.get_window_extent()
    inside = Box(frame.x0, frame.y0, frame.x1, frame.y1).grown(-2 * scale)
    positions = place_labels(pixels, sizes, marks, bars, inside, scale)
    for (x, y, name, colour), start, position in zip(points, pixels, positions, strict=True):
        if position.line is not None:
            end = (position.line[1][0] - start[0], position.line[1][1] - start[1])
            line = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
            axes.annotate(
                "", (x, y), xytext=(end[0] / scale, end[1] / scale), textcoords="offset points", arrowprops=line,
                zorder=5,
            ).set_in_layout(False)  # fmt: skip
        axes.annotate(
            name, (x, y), xytext=(position.offset[0] / scale, position.offset[1] / scale), textcoords="offset points",
            ha="center", va="center", fontsize=size, color=colour, zorder=6,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        ).set_in_layout(False)  # fmt: skip
