"""What the readers of AdapterHub's methods share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.adapterhub_names import Own
from intarsia.methods import Method, Stack

GATING = (
    "a gate is the mean over all tokens of the padded input, so its value depends on the padding and on the neighbours "
    "in the batch, and here no input is padded"
)


@dataclass(frozen=True)
class HubPart:
    """The method of one configuration, with its tensors; a union has several."""

    method: Method
    tensors: Mapping[str, Tensor]
    folded: tuple[str, ...] = ()


def joined(parts: Sequence[HubPart]) -> HubPart:
    """Return parts that act at different places as one: a stack."""
    if len(parts) == 1:
        return parts[0]
    named = {f"{i}.{name}": tensor for i, part in enumerate(parts) for name, tensor in part.tensors.items()}
    folded = tuple(dict.fromkeys(note for part in parts for note in part.folded))
    return HubPart(Stack(*(part.method for part in parts)), named, folded)


def not_left_out(flags: Flags, own: tuple[Own, ...]) -> tuple[Own, ...]:
    """Return the layer modules that have the method."""
    left_out = flags.take("leave_out", None) or []
    if not isinstance(left_out, list) or not all(type(i) is int and 0 <= i < len(own) for i in left_out):
        raise ExchangeError(
            f"{flags.where}: leave_out is {left_out!r:.80}; expected a list of layers from 0 to {len(own) - 1}."
        )
    kept = tuple(o for o in own if o.number not in left_out)
    if not kept:
        raise ExchangeError(f"{flags.where}: leave_out names all layers: the adapter has no place.")
    return kept


def layers_of(own: tuple[Own, ...], every: tuple[Own, ...]) -> tuple[int, ...] | None:
    """Return the layers that use these modules; None: all layers of the base."""
    return None if own == every else tuple(sorted(layer for o in own for layer in o.layers))


def repeated(own: tuple[Own, ...]) -> tuple[str, ...]:
    """Return the note for tensors that several layers share."""
    shared = any(len(o.layers) > 1 for o in own)
    return ("the tensors of shared layers repeated for each layer",) if shared else ()
