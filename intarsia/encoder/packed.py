"""Unpadded batches: token segments laid end to end, and the padded views that attention alone needs.

A *segment* is one example's tokens. A batch is a run of segments; the caller sorts them by owner, so every owner is a
slice of the token stream. No padding enters a linear layer. Attention mixes tokens of one segment only: on CPUs it is
computed on *buckets* of segments of similar length, each padded to its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# A bucket may hold segments up to this much longer than its shortest. Wider buckets waste padded attention, narrower
# ones cost calls; 1.6 + 8 was the fastest of a coarse search on two cores.
BUCKET_GROWTH, BUCKET_SLACK = 1.6, 8


class Segment(NamedTuple):
    """One example's token ids, with token types where the tokenizer gives them."""

    ids: Sequence[int]
    types: Sequence[int] | None = None
    asked: np.ndarray | None = None  # [n, 2] where some tokens are asked about: which, and their true ids (-1: unknown)


@dataclass(frozen=True)
class Bucket:
    """Segments of similar length as a padded block [rows, length]."""

    rows: int
    length: int
    members: Tensor  # [rows] which rows of the batch
    tokens: Tensor  # [rows * length] index into the token stream; padding repeats the segment's first token
    padding: Tensor  # [rows, length] bool, True where padded
    padded_places: Tensor  # [number of padded places] index into rows * length
    full: bool  # no padding at all


@dataclass(frozen=True)
class Batch:
    """Segments laid end to end: N tokens of R segments."""

    ids: Tensor  # [N]
    types: Tensor  # [N]
    positions: Tensor  # [N], from 0 within each segment
    lengths: tuple[int, ...]  # R of them
    offsets: tuple[int, ...] = field(repr=False)  # R + 1 of them

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return self.offsets[-1]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        return torch.tensor(self.offsets[:-1], device=self.ids.device)  # [R]

    @cached_property
    def row_lengths(self) -> Tensor:
        return torch.tensor(self.lengths, device=self.ids.device)  # [R]

    def part(self, first: int, last: int) -> Batch:
        """The rows from `first` to before `last` as a batch of their own."""
        if (first, last) == (0, self.rows):
            return self
        tokens = slice(self.offsets[first], self.offsets[last])
        offsets = tuple(o - tokens.start for o in self.offsets[first : last + 1])
        lengths = self.lengths[first:last]
        return Batch(self.ids[tokens], self.types[tokens], self.positions[tokens], lengths, offsets)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        order = sorted(range(self.rows), key=lambda r: self.lengths[r])
        groups: list[list[int]] = []
        limit = 0.0
        for row in order:
            if not groups or self.lengths[row] > limit:
                groups.append([])
                limit = self.lengths[row] * BUCKET_GROWTH + BUCKET_SLACK
            groups[-1].append(row)
        return tuple(self._bucket(sorted(rows)) for rows in groups)

    @cached_property
    def whole(self) -> Bucket:
        """All segments as one padded block, for the padded layout."""
        return self._bucket(list(range(self.rows)))

    def _bucket(self, rows: list[int]) -> Bucket:
        lengths = np.array([self.lengths[r] for r in rows])
        starts = np.array([self.offsets[r] for r in rows])
        longest = int(lengths.max())
        steps = np.arange(longest)
        padding = steps[None, :] >= lengths[:, None]  # [rows, longest]
        tokens = starts[:, None] + np.where(padding, 0, steps[None, :])
        device = self.ids.device
        return Bucket(
            rows=len(rows),
            length=longest,
            members=torch.tensor(rows, device=device),
            tokens=torch.from_numpy(tokens.reshape(-1)).to(device),
            padding=torch.from_numpy(padding).to(device),
            padded_places=torch.from_numpy(np.flatnonzero(padding)).to(device),
            full=not padding.any(),
        )

    @cached_property
    def unbucket(self) -> Tensor:
        """[N] where each token stands in the concatenated padded rows of all buckets."""
        return self._places(self.buckets)

    @cached_property
    def unpad(self) -> Tensor:
        """[N] where each token stands in the one padded block."""
        return self._places((self.whole,))

    def _places(self, buckets: Sequence[Bucket]) -> Tensor:
        places = torch.empty(self.tokens, dtype=torch.long, device=self.ids.device)
        base = 0
        for bucket in buckets:
            real = (~bucket.padding).reshape(-1).nonzero(as_tuple=True)[0]  # [real tokens of the bucket]
            places[bucket.tokens[real]] = real + base
            base += bucket.rows * bucket.length
        return places


def pack(segments: Sequence[Segment], device: torch.device | str = "cpu") -> Batch:
    """Lay segments end to end, in the order given."""
    lengths = tuple(len(s.ids) for s in segments)
    if not lengths or min(lengths) == 0:
        raise ValueError("a batch needs at least one segment, and every segment at least one token")
    offsets = tuple(int(o) for o in np.concatenate([[0], np.cumsum(lengths)]))
    ids = np.fromiter((i for s in segments for i in s.ids), np.int64, offsets[-1])
    types = np.zeros(offsets[-1], np.int64)
    for segment, start, end in zip(segments, offsets, offsets[1:], strict=False):
        if segment.types is not None:
            types[start:end] = segment.types
    positions = np.arange(offsets[-1]) - np.repeat(np.array(offsets[:-1]), np.array(lengths))
    return Batch(
        ids=torch.from_numpy(ids).to(device),
        types=torch.from_numpy(types).to(device),
        positions=torch.from_numpy(positions).to(device),
        lengths=lengths,
        offsets=offsets,
    )


def lengths_of(segments: Sequence[Segment], device: torch.device) -> Tensor:
    """[segments] in tokens."""
    return torch.tensor([len(segment.ids) for segment in segments], device=device)


def by_token_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows in batches of at most `budget` tokens (a longer row alone), neighbours of similar length together."""
    batches: list[list[int]] = []
    used = budget
    for row in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        if used + lengths[row] > budget:
            batches.append([])
            used = 0
        batches[-1].append(row)
        used += lengths[row]
    return batches
