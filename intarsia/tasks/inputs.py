"""Examples as rows of tokens. An example has one row, or several if it is too long for one."""

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
    """The rows of some examples, as `TaskKind.inputs` makes them."""

    segments: Sequence[Segment]  # one per row
    owners: Sequence[int] = ()  # the example of each row, ascending; empty: each example has one row
    places: Sequence[np.ndarray] = field(default=(), repr=False)  # per row, for kinds that read tokens: see the kind
    left_out: int = 0  # words that are in no row
    vocabulary: Vocabulary | None = field(default=None, repr=False)  # for the kind `words`
