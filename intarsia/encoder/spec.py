"""Descriptions of tensors: the tensors of an inlay, and the tensors of the base that initialise them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Spec:
    """One tensor of an inlay: its shape, its initial values, and its optimizer settings."""

    shape: tuple[int, ...]
    start: Literal["zeros", "ones", "normal", "identity", "base"]
    std: float = 0.0  # for a "normal" start, truncated at two standard deviations
    site: tuple[str, int] | None = None  # for a "base" start: copied from the module at this site …
    tensor: Literal["weight", "bias"] = "weight"  # … from this tensor
    parameter: str | None = None  # for a "base" start: or copied from the parameter with this name
    decay: bool = False  # weight decay applies
    trained: bool = True  # False: stored with the inlay, without a gradient (running statistics)
    integer: bool = False  # int64 in place of float32
    rate: float = 1.0  # multiplies the learning rate
    value: float = 0.0  # the initial value for a "zeros" start, and off the diagonal of an "identity" start

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class BaseTensor:
    """A tensor of the base at a site: the name of its parameter, and the rows of that parameter that it covers."""

    parameter: str
    rows: slice
    tensor: Tensor  # the rows
