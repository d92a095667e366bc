"""Compositions of methods that change weights of the base: their differences from the base add up, the lowest first.

A sparse difference is added to what the parts below gave, entry by entry, so that taking it out gives the same bits as
before. Whole weights W of a part count as the difference W - base.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from intarsia.errors import IntarsiaError
from intarsia.methods.full import whole_weights
from intarsia.methods.method import Ending, Method, Phase, Spec, Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape


class Composition(Protocol):
    """What these functions need of a composition."""

    @property
    def methods(self) -> tuple[Method, ...]: ...
    def tensors(self, shape: Shape) -> dict[str, Spec]: ...
    def own_tensors(self, shape: Shape) -> dict[str, Spec]: ...
    def part_tensors(self, number: int, tensors: Tensors) -> Tensors: ...


def check(composition: Composition, shape: Shape) -> None:
    """Raise if the parts that change the base cannot be trained together with the others."""
    number = _changing(composition, shape)
    if number is None:
        return
    changing = composition.methods[number]
    others = [part.name for part in composition.methods if part is not changing and part.tensors(shape)]
    if others or composition.own_tensors(shape):
        raise IntarsiaError(
            f"{type(composition).__name__} cannot train {changing.name}, which changes weights of the base, together "
            f"with {others[0] if others else 'tensors of its own'}. Learn one of them first, and use its task as a "
            "part."
        )


def phases(composition: Composition, shape: Shape) -> tuple[Phase, ...]:
    """Return the phases of the part that trains weights of the base; else a single phase."""
    number = _changing(composition, shape)
    if number is None:
        return (Phase("train", composition.tensors(shape)),)
    found = composition.methods[number].phases(shape)
    return tuple(replace(phase, specs={f"{number}.{k}": v for k, v in phase.specs.items()}) for phase in found)


def weights(
    composition: Composition,
    phase: str,
    shape: Shape,
    tensors: Tensors,
    kept: Tensors,
    base: Tensors,
    noise: Noise | None,
) -> dict[str, Tensor]:
    """Return the weights that replace the base's; `tensors` also has those of the frozen inlays (`parent_tensors`)."""
    changed: dict[str, Tensor] = {}
    for number, part in enumerate(composition.methods):
        method: Method = getattr(part, "method", part)  # of a frozen inlay
        if not method.changes_base:
            continue
        own, left = composition.part_tensors(number, tensors), composition.part_tensors(number, kept)
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
    composition: Composition, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors
) -> Ending:
    number = _changing(composition, shape)
    assert number is not None, "only parts that change weights of the base have several phases"
    own, left = composition.part_tensors(number, tensors), composition.part_tensors(number, kept)
    ending = composition.methods[number].end_phase(phase, shape, own, left, base)
    kept, starts = ({f"{number}.{k}": v for k, v in named.items()} for named in (ending.kept, ending.starts))
    return Ending(kept, starts, ending.keep_head)


def _changing(composition: Composition, shape: Shape) -> int | None:
    """Return the number of the part that trains weights of the base, or None."""
    found = (i for i, part in enumerate(composition.methods) if part.changes_base and part.tensors(shape))
    return next(found, None)
