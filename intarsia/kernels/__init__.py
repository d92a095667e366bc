"""Triton kernels for passes of fixed shape on a GPU. Everything they compute is also computed without them.

A pass's tokens lie sorted by slot; each slot's share begins at a multiple of `Layout.align`, so that a tile of tokens
has one owner. Sizes are fixed, and who owns what is read from small tables on the device: a captured pass serves any
batch that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 512  # tokens of a segment, at most
LONGEST_PREFIX = 64  # keys of a prefix
ROWS = 8  # tokens that a program of the element-wise kernels handles; divides every `align`


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@dataclass(frozen=True)
class Layout:
    """Who owns which tokens of a pass of `tokens`, as tables on the device (all int32)."""

    tokens: int
    align: int
    tile_slot: Tensor  # [tokens / align] the owner of each tile
    slot_start: Tensor  # [slots] a slot's tokens: from here …
    slot_end: Tensor  # [slots] … to here; multiples of `align`, equal where a slot has none
    row_start: Tensor  # [rows] where each segment begins; the segments cover all tokens, padding ones last
    row_length: Tensor  # [rows] 0 for none
    longest: int  # no segment is longer; a power of two
    seeds: Tensor  # [slots] of each slot's dropout in this pass

    @property
    def slots(self) -> int:
        return self.slot_start.shape[0]
