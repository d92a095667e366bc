"""What a method computes below a layer: nothing, or what frozen inlays compute, or what it trained itself.

Rows that compute the same below a layer share the states that enter it: the trunk of training jobs, and the answers of
several tasks to one text.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from intarsia.methods.compose import Composite, Parent, Part, parents
from intarsia.methods.method import Method, lowest, to_dict

if TYPE_CHECKING:
    from intarsia.encoder.shape import Shape


def lowest_trained(method: Method, shape: Shape) -> int:
    """Return the lowest layer in which a method trains, or changes weights of the base; see `lowest`."""
    if isinstance(method, Parent):
        return shape.layers - 1
    if not isinstance(method, Composite):
        return lowest(method, shape)
    if any(parent.method.changes_base for parent in parents(method)):
        return 0
    own = [max(0, layer) for _, layer in method.own_places(shape)]
    return min([shape.layers - 1, *own, *(lowest_trained(part, shape) for part in method.methods)])


def frozen_key(method: Method, layer: int, shape: Shape) -> Hashable:
    """Return a key that is equal for methods which compute the same below a layer; None: what the plain base computes.

    The layer must not be above `lowest_trained`.
    """
    return None if lowest(method, shape) >= layer else _frozen(method)


def _frozen(part: Part) -> Hashable:
    if isinstance(part, Parent):
        return part.digest
    if not isinstance(part, Composite):
        return None  # it acts above the layer only
    options = {name: value for name, value in to_dict(part).items() if name != "parts"}
    return str(sorted(options.items())), tuple(map(_frozen, part.methods))
