"""Compositions of methods that change weights of the base: their differences from the base add up, the lowest first.

A sparse difference is added to what the parts below gave, entry by entry, so that taking it out gives the same bits as
before. Whole weights W of a part count as the difference W - base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.errors import IntarsiaError
from intarsia.methods.full import whole_weights
from intarsia.methods.method import Ending, Method, Phase, Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape


def check(kind: str, parts: Sequence[Method], own: bool, shape: Shape) -> None:
    """Raise if the parts that change the base cannot be trained together with the others, or with tensors of the
    composition's own."""
    number = _changing(parts, shape)
    if number is None:
        return
    changing = parts[number]
    others = [part.name for part in parts if part is not changing and part.tensors(shape)]
    if others or own:
        raise IntarsiaError(
            f"{kind} cannot train {changing.name}, which changes weights of the base, together "
            f"with {others[0] if others else 'tensors of its own'}. Learn one of them first, and use its task as a "
            "part."
        )


def phases(parts: Sequence[Method], shape: Shape) -> tuple[Phase, ...] | None:
    """Return the phases of the part that trains weights of the base; None: no part does."""
    number = _changing(parts, shape)
    if number is None:
        return None
    found = parts[number].phases(shape)
    return tuple(replace(phase, specs={f"{number}.{k}": v for k, v in phase.specs.items()}) for phase in found)


def weights(
    parts: Sequence[Method],
    phase: str,
    shape: Shape,
    tensors: Tensors,
    kept: Tensors,
    base: Tensors,
    noise: Noise | None,
) -> dict[str, Tensor]:
    """Return the weights that replace the base's; `tensors` also has those of the frozen inlays (`parent_tensors`)."""
    changed: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        method: Method = getattr(part, "method", part)  # of a frozen inlay
        if not method.changes_base:
            continue
        own, left = part_tensors(number, tensors), part_tensors(number, kept)
        frozen = method is not part
        name = method.phases(shape)[-1].name if frozen else phase
        found = method.weights(name, shape, own, {**own, **left} if frozen else left, {**base, **changed}, noise)
        whole = whole_weights(own)
        for parameter, weight in found.items():
            if parameter in whole and parameter in changed:
                weight = changed[parameter] + (weight - base[parameter])
            changed[parameter] = weight
    return changed


def end_phase(
    parts: Sequence[Method], phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors
) -> Ending:
    number = _changing(parts, shape)
    assert number is not None, "only parts that change weights of the base have several phases"
    own, left = part_tensors(number, tensors), part_tensors(number, kept)
    ending = parts[number].end_phase(phase, shape, own, left, base)
    kept, starts = ({f"{number}.{k}": v for k, v in named.items()} for named in (ending.kept, ending.starts))
    return Ending(kept, starts, ending.keep_head)


def _changing(parts: Sequence[Method], shape: Shape) -> int | None:
    """Return the number of the part that trains weights of the base, or None."""
    found = (i for i, part in enumerate(parts) if part.changes_base and part.tensors(shape))
    return next(found, None)


def part_tensors(number: int, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors of one part, by the part's own names."""
    prefix = f"{number}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
