"""Inlays in slots, and the parts of compositions for a pass: frozen inlays act from the slots that they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from intarsia.encoder.parts import Part
from intarsia.methods.compose import Composite, Parent, parent_tensors
from intarsia.methods.method import Method, Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape


@dataclass(frozen=True, eq=False)
class Held:
    """An inlay in a slot, with the frozen inlays on which it is built, by digest."""

    method: Method
    tensors: Tensors  # each [slots, …]
    slot: int
    parents: Mapping[str, Held] = field(default_factory=dict)
    low_precision: Tensors = field(default_factory=dict)  # `tensors` in the base's precision, where passes are recorded

    @property
    def own(self) -> dict[str, Tensor]:
        """The tensors of this inlay alone."""
        return {name: tensor[self.slot] for name, tensor in self.tensors.items()}

    @property
    def composed(self) -> dict[str, Tensor]:
        """The tensors of this inlay and of its parts, by their names in the composition."""
        return {**self.own, **parent_tensors(self.method, all_own_tensors(self.parents))}

    @cached_property
    def parent_slots(self) -> tuple[int, ...]:
        """The slots of the frozen inlays that are its parts, in the order of `tables` without the first."""
        return tuple(slot for parent in _parents(self) for slot in (parent.slot, *parent.parent_slots))


def parts_of(owners: Sequence[Held], shape: Shape) -> tuple[Part, ...]:
    """Return the parts of the compositions that the owners of a group hold; () if their method is no composition.

    The methods of the owners differ in their frozen inlays only, and inlays at one place are in slots of one table.
    """
    return _parts(owners, shape, 0, count(1))


def _parts(owners: Sequence[Held], shape: Shape, table: int, unused: Iterator[int]) -> tuple[Part, ...]:
    """`table`: the number of the table that holds the owners; `unused`: the numbers of the tables of frozen inlays."""
    first = owners[0]
    if not isinstance(first.method, Composite):
        return ()
    parts = []
    for number, part in enumerate(first.method.methods):
        if isinstance(part, Parent):
            holders, its_table = [_parent(owner, number) for owner in owners], next(unused)
        else:
            tensors, low = (first.method.part_tensors(number, t) for t in (first.tensors, first.low_precision))
            holders = [
                replace(owner, method=_method(owner, number), tensors=tensors, low_precision=low) for owner in owners
            ]
            its_table = table
        holder, slots = holders[0], tuple(holder.slot for holder in holders)
        inner = _parts(holders, shape, its_table, unused)
        parts.append(Part(holder.method.places(shape), holder.tensors, slots, inner, its_table, holder.low_precision))
    return tuple(parts)


def _method(owner: Held, number: int) -> Method:
    assert isinstance(owner.method, Composite)
    return owner.method.methods[number]


def _parent(owner: Held, number: int) -> Held:
    part = _method(owner, number)
    assert isinstance(part, Parent)
    return owner.parents[part.digest]


def all_own_tensors(parents: Mapping[str, Held]) -> dict[str, Tensors]:
    """Return the tensors of each frozen inlay alone, and of those on which they are built, by digest."""
    found: dict[str, Tensors] = {}
    for digest, held in parents.items():
        found |= {digest: held.own, **all_own_tensors(held.parents)}
    return found


def tables(held: Held) -> tuple[int, ...]:
    """Return the identities of the tables that hold an inlay and its parents, in the order of its parts.

    Inlays with equal identities can be owners of one group.
    """
    found = [id(held.tensors)]
    for parent in _parents(held):
        found += tables(parent)
    return tuple(found)


def _parents(held: Held) -> list[Held]:
    """Return the frozen inlays that are parts of an inlay's composition, in order."""
    if not isinstance(held.method, Composite):
        return []
    found = []
    for number, part in enumerate(held.method.methods):
        if isinstance(part, Parent):
            found.append(_parent(held, number))
        else:
            found += _parents(replace(held, method=part))
    return found
