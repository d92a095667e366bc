"""Examples as rows of tokens: an example has one row, or several where it is too long for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from intarsia.encoder.packed import Segment

if TYPE_CHECKING:
    from intarsia.tasks.masking import Vocabulary


@dataclass(frozen=True)
class Inputs:
    segments: Sequence[Segment]
    owners: Sequence[int] = ()  # which example each row is of, in order; empty: each example has one row
    places: Sequence[np.ndarray] = field(default=(), repr=False)  # of each row: what its tokens stand for, by kind
    left_out: int = 0  # words that no row holds
    vocabulary: Vocabulary | None = field(default=None, repr=False)  # of kinds that hide words, and name them
