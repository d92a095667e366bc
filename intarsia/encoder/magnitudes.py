"""The gains of DoRA in compiled passes: computed when an inlay is put into a slot, not in each pass."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_float, c_int32, c_void_p

import torch
from torch import Tensor

WeightAt = Callable[[str, int], Tensor]  # the base's weight [out, in] at a linear site of a layer
_PARTS = ("a.weight", "b.weight", "magnitude")


class Magnitudes:
    """The gains of all outputs that have magnitudes, by slot of one table: (|W| + magnitude) / |W + s B A| - 1."""

    def __init__(
        self,
        gains: Mapping[tuple[str, int], Tensor],
        weights: Mapping[tuple[str, int], Tensor],
        scales: Mapping[tuple[str, int], float],
    ) -> None:
        self.gains, self._weights, self._scales = gains, weights, scales
        self._known: set[int] = set()  # slots whose gains are those of `_of`
        self._of: tuple[weakref.ref[Tensor] | None, int] = None, 0  # a tensor of the table, and its counter of writes

    @classmethod
    def of(
        cls, scales: Mapping[tuple[str, int], float | None], tensors: Mapping[str, Tensor], weight_at: WeightAt
    ) -> Magnitudes:
        """`scales`: of the differences, by linear site and layer."""
        weights = {place: weight_at(*place) for place in scales}
        slots = next(iter(tensors.values())).shape[0]
        outputs = [weight.shape[0] for weight in weights.values()]
        whole = torch.empty(slots, sum(outputs))  # a slot's row is written before a pass reads it
        gains = dict(zip(weights, whole.split(outputs, 1), strict=True))
        return cls(gains, weights, {place: scale or 0.0 for place, scale in scales.items()})

    def update(self, library: ctypes.CDLL, tensors: Mapping[str, Tensor], slots: Iterable[int]) -> None:
        """Compute the gains of these slots, if any slot was written since.

        Each slot is computed alone, on one thread: its bits do not depend on the pass that first needs it.
        """
        first = next(iter(tensors.values()))  # of one buffer: all tensors of a table count their writes together
        known, writes = self._of
        if known is None or known() is not first or writes != first._version:
            self._known.clear()
            self._of = weakref.ref(first), first._version
        for slot in sorted(set(slots) - self._known):
            for (site, layer), gain in self.gains.items():
                a, b, magnitude = (tensors[f"{layer}.{site}.{part}"][slot] for part in _PARTS)
                weight = self._weights[site, layer]
                library.intarsia_magnitudes(
                    *(c_void_p(x.data_ptr()) for x in (weight, a, b, magnitude)), *map(c_int32, weight.shape[::-1]),
                    c_int32(len(a)), c_float(self._scales[site, layer]), c_void_p(gain[slot].data_ptr()),
                )  # fmt: skip
            self._known.add(slot)
