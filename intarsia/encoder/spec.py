"""Descriptions of tensors: those that an inlay holds, and those of the base that an inlay's tensors start from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Spec:
    """One tensor of an inlay: its shape, how it starts, and how the optimizer treats it."""

    shape: tuple[int, ...]
    start: Literal["zeros", "ones", "normal", "identity", "base"]
    std: float = 0.0  # of a "normal" start: truncated at two standard deviations
    site: tuple[str, int] | None = None  # of a "base" start: copied from this site's module …
    tensor: Literal["weight", "bias"] = "weight"  # … and this tensor of it
    parameter: str | None = None  # of a "base" start: or copied from the parameter of this name
    decay: bool = False  # weight decay applies
    trained: bool = True  # False: kept with the inlay, but no gradient reaches it (running statistics)
    rate: float = 1.0  # times the learning rate
    value: float = 0.0  # added to a "zeros" start

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class BaseTensor:
    """A tensor of the base at a site: the parameter it is (rows of), and those rows."""

    parameter: str
    rows: slice
    tensor: Tensor  # the rows
