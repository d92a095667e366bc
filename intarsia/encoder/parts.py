"""The parts of a composition in a pass: each has the tensors of its own, and perhaps slots of its own.

Several owners of a group may use one frozen inlay as a part. Its tensors are in one slot of another table, which all of
them name, so nothing is copied. In the view of the part, adjacent owners that use the same slot are one owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a composition, for the owners of one group."""

    places: frozenset[tuple[str, int]]  # (site, layer) pairs where it acts
    tensors: Mapping[str, Tensor]  # each [slots, …], by the part's own names
    slots: tuple[int, ...]  # its slot in `tensors` for each owner of the group
    parts: tuple[Part, ...] = ()  # if the part is itself a composition
    table: int = 0  # the number of the table with its slots: 0 is the composition's own; others have frozen inlays
    low_precision: Mapping[str, Tensor] = field(default_factory=dict)  # `tensors` in the base's precision, if needed


def table_sizes(parts: tuple[Part, ...]) -> list[int]:
    """Return the numbers of slots of the tables that have the frozen inlays, by the number of the table, from 1 on."""
    sizes: dict[int, int] = {}
    for part in _all(parts):
        sizes.setdefault(part.table, next((tensor.shape[0] for tensor in part.tensors.values()), 1))
    sizes.pop(0, None)
    return [sizes[number] for number in sorted(sizes)]


def _all(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        yield part
        yield from _all(part.parts)


def leaves(parts: tuple[Part, ...]) -> Iterator[Part]:
    """Yield the parts that are no compositions, at every depth, in order."""
    for part in parts:
        if part.parts:
            yield from leaves(part.parts)
        else:
            yield part
