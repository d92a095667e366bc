"""Triton kernels for passes of fixed shape on a GPU. Each has a PyTorch equivalent for other devices. The compiled
function of CPU passes is in `cpu/`; `cpu_library.py` builds it.

The tokens of a pass are sorted by slot. Each slot's tokens begin at a multiple of `Layout.align`, so a tile of tokens
has one owner. Sizes are fixed, and the kernels read the owners from small tables on the device. A captured pass can
therefore run any batch that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 512  # the most tokens of a segment
LONGEST_PREFIX = 64  # the most keys of a prefix
ROWS = 8  # tokens per program of the element-wise kernels; divides every `align`


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@dataclass(frozen=True)
class Layout:
    """The owners of the tokens of a pass, as tables on the device (all int32)."""

    tokens: int  # of the pass, including padding
    align: int  # tokens of a tile
    tile_slot: Tensor  # [tokens / align] the slot of each tile
    slot_start: Tensor  # [slots] the first token of each slot
    slot_end: Tensor  # [slots] the end of its tokens; a multiple of `align`, equal to the start if it has none
    row_start: Tensor  # [rows] the first token of each segment; segments cover all tokens, padding last
    row_length: Tensor  # [rows] 0 for an unused row
    longest: int  # an upper bound of the segment lengths; a power of two
    seeds: Tensor  # [slots] the dropout seed of each slot in this pass

    @property
    def slots(self) -> int:
        return self.slot_start.shape[0]
