"""Sparse differences for diff-pruning and lottery tickets: theta = theta0 + delta, where delta has K nonzero entries.

The trained parameters are concatenated in the order of the model; the number of an entry is its index there. A
difference consists of two tensors: the numbers of its entries, ascending, and their values. It is added to copies of
the parameters. The base is never written to, so it stays the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from intarsia.encoder.shape import WeightShape
from intarsia.encoder.spec import Spec
from intarsia.errors import IntarsiaError
from intarsia.methods.method import Tensors

if TYPE_CHECKING:
    from torch import Tensor

MOST_ENTRIES = 2**40


def spans(weights: Sequence[WeightShape]) -> Iterator[tuple[WeightShape, int]]:
    """Yield each parameter and the number of its first entry."""
    first = 0
    for weight in weights:
        yield weight, first
        first += weight.size


def split(weights: Sequence[WeightShape], index: Tensor) -> list[tuple[WeightShape, slice, Tensor]]:
    """Return each parameter that has entries, the slice of `index` with its entries, and their places in the parameter.

    The result is cached for each index: computing it waits for the device, which a recorded pass must not do.
    """
    cached = _splits()
    if index not in cached:
        cached[index] = list(_split(weights, index))
    return cached[index]


@cache
def _splits() -> MutableMapping[Tensor, list[tuple[WeightShape, slice, Tensor]]]:
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()  # drops an entry together with its index


def _split(weights: Sequence[WeightShape], index: Tensor) -> Iterator[tuple[WeightShape, slice, Tensor]]:
    import torch

    starts = [start for _, start in spans(weights)]
    ends = [start + weight.size for weight, start in spans(weights)]
    bounds = torch.searchsorted(index, torch.tensor([starts, ends], device=index.device)).tolist()
    for weight, start, first, last in zip(weights, starts, *bounds, strict=True):
        if last > first:
            yield weight, slice(first, last), index[first:last] - start


def added(weights: Sequence[WeightShape], index: Tensor, values: Tensor, base: Tensors) -> dict[str, Tensor]:
    """Return theta0 + delta for the parameters that delta changes. Only `values` get a gradient."""
    changed = {}
    parts = split(weights, index)
    pieces = values.split([part.stop - part.start for _, part, _ in parts])  # its backward is a single copy
    for (weight, _, places), piece in zip(parts, pieces, strict=True):
        flat = base[weight.name].detach().reshape(-1)
        changed[weight.name] = flat.index_add(0, places, piece.to(flat.dtype)).view(weight.shape)
    return changed


def index_spec(count: int) -> dict[str, Spec]:
    """Return the spec of the tensor with the numbers of a difference's entries."""
    return {"index": Spec((count,), "zeros", trained=False, integer=True)}


def check_index(weights: Sequence[WeightShape], index: Tensor) -> None:
    """Raise unless `index` has ascending numbers of entries of these parameters."""
    total = sum(weight.size for weight in weights)
    if len(index) and not (int(index[0]) >= 0 and int(index[-1]) < total and bool((index[1:] > index[:-1]).all())):
        raise IntarsiaError(f"the tensor 'index' must have ascending numbers of entries, from 0 to {total - 1}.")


def largest(weights: Sequence[WeightShape], magnitude: Callable[[WeightShape], Tensor], count: int) -> Tensor:
    """Return the numbers of the `count` entries with the largest magnitudes over all parameters, ascending.

    `magnitude` returns the magnitudes of one parameter; entries below 0 are excluded. The first of equal entries are
    selected. The function never builds a list of all entries: it finds the threshold by bisection on the bits of the
    float32 values, which have the same order as the values.
    """
    import torch

    def bits(weight: WeightShape) -> Tensor:
        return magnitude(weight).reshape(-1).to(torch.float32).contiguous().view(torch.int32)

    low, high = 0, 0x7F800001  # at least `count` entries are >= low; fewer are >= high
    while high - low > 1:
        middle = (low + high) // 2
        enough = sum(int((bits(w) >= middle).sum()) for w in weights) >= count
        low, high = (middle, high) if enough else (low, middle)
    above = sum(int((bits(w) > low).sum()) for w in weights)
    equal_left = count - above
    selected = []
    for weight, first in spans(weights):
        values = bits(weight)
        taken = values > low
        if equal_left > 0:
            equal = (values == low).nonzero()[:equal_left, 0]
            equal_left -= equal.shape[0]
            taken[equal] = True
        selected.append(taken.nonzero()[:, 0] + first)
    return torch.cat(selected)


def entries_of(share: float, entries: int | None, total: int, available: int) -> int:
    """Return the number of entries for `entries`, or else for a `share` of all parameters of the base."""
    return min(available, entries if entries is not None else max(1, round(share * total)))
