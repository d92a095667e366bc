"""Sparse differences: theta = theta0 + delta, delta zero but for K entries. For diff-pruning and lottery tickets.

An entry is numbered by its place in the trained parameters laid end to end, in the order of the model. A difference is
two tensors: the numbers of its entries, ascending, and their values. It is applied to copies: taking it away restores
the base bit for bit, because the base was never written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from intarsia.encoder.shape import WeightShape
from intarsia.methods.method import Tensors

if TYPE_CHECKING:
    from torch import Tensor


def spans(weights: Sequence[WeightShape]) -> Iterator[tuple[WeightShape, int]]:
    """Each parameter, and the number of its first entry."""
    at = 0
    for weight in weights:
        yield weight, at
        at += weight.size


def split(weights: Sequence[WeightShape], index: Tensor) -> list[tuple[WeightShape, slice, Tensor]]:
    """Each parameter that has entries: which of the entries (a slice of them), and their places in the parameter.

    Of one index it is found once: it waits for the device, which a pass that is recorded must not.
    """
    known = _splits()
    if index not in known:
        known[index] = list(_split(weights, index))
    return known[index]


@cache
def _splits() -> MutableMapping[Tensor, list[tuple[WeightShape, slice, Tensor]]]:
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()  # as long as an index lives


def _split(weights: Sequence[WeightShape], index: Tensor) -> Iterator[tuple[WeightShape, slice, Tensor]]:
    import torch

    starts = [at for _, at in spans(weights)]
    ends = [at + weight.size for weight, at in spans(weights)]
    bounds = torch.searchsorted(index, torch.tensor([starts, ends], device=index.device)).tolist()
    for weight, at, first, last in zip(weights, starts, *bounds, strict=True):
        if last > first:
            yield weight, slice(first, last), index[first:last] - at


def added(weights: Sequence[WeightShape], index: Tensor, values: Tensor, base: Tensors) -> dict[str, Tensor]:
    """theta0 + delta, for the parameters that delta touches; a gradient reaches `values` alone."""
    found = {}
    parts = split(weights, index)
    pieces = values.split([part.stop - part.start for _, part, _ in parts])  # whose way back is one copy
    for (weight, _, places), piece in zip(parts, pieces, strict=True):
        flat = base[weight.name].detach().reshape(-1)
        found[weight.name] = flat.index_add(0, places, piece.to(flat.dtype)).view(weight.shape)
    return found


def largest(weights: Sequence[WeightShape], magnitude: Callable[[WeightShape], Tensor], count: int) -> Tensor:
    """The numbers of the `count` entries of the largest magnitude, over all parameters, ascending.

    `magnitude` gives one parameter's; what is below 0 is not taken. No list of all entries is ever built: the threshold
    is found by halving, on the bits of the float32 values, which are ordered as the values are. Of equal ones the first
    are taken.
    """
    import torch

    def bits(weight: WeightShape) -> Tensor:
        return magnitude(weight).reshape(-1).to(torch.float32).contiguous().view(torch.int32)

    low, high = 0, 0x7F800001  # what is at least `low` is enough entries; what is at least `high` is too few
    while high - low > 1:
        middle = (low + high) // 2
        enough = sum(int((bits(w) >= middle).sum()) for w in weights) >= count
        low, high = (middle, high) if enough else (low, middle)
    above = sum(int((bits(w) > low).sum()) for w in weights)
    equal_wanted = count - above
    found = []
    for weight, at in spans(weights):
        values = bits(weight)
        taken = values > low
        if equal_wanted > 0:
            equal = (values == low).nonzero()[:equal_wanted, 0]
            equal_wanted -= equal.shape[0]
            taken[equal] = True
        found.append(taken.nonzero()[:, 0] + at)
    return torch.cat(found)


def entries_of(share: float, entries: int | None, total: int, available: int) -> int:
    """How many entries a share (of all parameters of the base) or a number is."""
    return min(available, entries if entries is not None else max(1, round(share * total)))
