"""Segments as flat arrays, for passes of fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from intarsia.encoder.packed import Segment


class SegmentArrays:
    """The tokens of some segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.lengths = np.array([len(s.ids) for s in segments], np.int64)
        self.longest = int(self.lengths.max(initial=0))

    @cached_property
    def offsets(self) -> np.ndarray:
        """[segments] the start of each segment in `ids`."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def ids(self) -> np.ndarray:
        """[tokens] the token ids of all segments, concatenated."""
        ids = chain.from_iterable(s.ids for s in self.segments)
        return np.fromiter(ids, np.int32, int(self.lengths.sum()))

    @cached_property
    def types(self) -> np.ndarray | None:
        """[tokens] the token types of all segments, concatenated; None if no segment has types."""
        if all(s.types is None for s in self.segments):
            return None
        types = chain.from_iterable(s.types or [0] * len(s.ids) for s in self.segments)
        return np.fromiter(types, np.int32, int(self.lengths.sum()))

    def of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the lengths of these segments [rows], and of their tokens the positions, ids and types [tokens]."""
        lengths = self.lengths[rows]
        ends = lengths.cumsum()
        positions = np.arange(ends[-1]) - (ends - lengths).repeat(lengths)
        source = positions + self.offsets[rows].repeat(lengths)
        types = np.zeros(len(source), np.int32) if self.types is None else self.types[source]
        return lengths, positions, self.ids[source], types
