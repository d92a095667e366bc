"""Unpadded batches: concatenated token segments, and the padded views that only attention needs.

A *segment* holds the tokens of one example. A batch is a sequence of segments. The caller sorts them by owner, so every
owner has one slice of the tokens. Linear layers see no padding. Attention mixes only tokens of the same segment. On
CPUs it runs on *buckets*: segments of similar length, padded to the longest of the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# The longest segment of a bucket has at most GROWTH * shortest + SLACK tokens. Wider buckets waste time on padding;
# narrower buckets need more calls. These values were the fastest in a coarse search on two cores.
BUCKET_GROWTH, BUCKET_SLACK = 1.6, 8
# Passes that only predict pad each segment to the next of these lengths (and to multiples of the last), which depends
# on no other segment. The values of a segment are then the same in every batch, bit for bit.
RUNGS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Segment(NamedTuple):
    """The token ids of one example, with token types if the tokenizer returns them."""

    ids: Sequence[int]
    types: Sequence[int] | None = None
    asked: np.ndarray | None = None  # [n, 2] the tokens to predict: their positions and true ids (-1: unknown)
    truncated: bool = False  # the text was longer
    second: int | None = None  # the first token of the second text; None: there is one text


@dataclass(frozen=True)
class Bucket:
    """Segments of similar length as one padded block [rows, length]."""

    rows: int
    length: int
    members: Tensor  # [rows] indices of the batch's rows
    tokens: Tensor  # [rows * length] index into the batch's tokens; padding repeats the segment's first token
    padding: Tensor  # [rows, length] bool, True where padded
    padded_places: Tensor  # [number of padded places] index into rows * length
    full: bool  # True without padding


class Bucketed(NamedTuple):
    """All segments of a batch in buckets."""

    buckets: tuple[Bucket, ...]
    kinds: tuple[int, ...]  # of each bucket
    places: Tensor  # [N] the index of each token in the concatenated padded rows of all buckets


def rung(length: int) -> int:
    """Return the padded length of a segment in passes without gradients."""
    return next((r for r in RUNGS if r >= length), -(-length // RUNGS[-1]) * RUNGS[-1])


@dataclass(frozen=True)
class Batch:
    """Concatenated segments: N tokens in R segments."""

    ids: Tensor  # [N]
    types: Tensor  # [N]
    positions: Tensor  # [N], starting at 0 in each segment
    lengths: tuple[int, ...]  # R lengths
    offsets: tuple[int, ...] = field(repr=False)  # R + 1 offsets
    seconds: tuple[int, ...] = ()  # the first token of each segment's second text, or its length; (): no second texts

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
        """Return the rows from `first` (inclusive) to `last` (exclusive) as a separate batch."""
        if (first, last) == (0, self.rows):
            return self
        tokens = slice(self.offsets[first], self.offsets[last])
        offsets = tuple(o - tokens.start for o in self.offsets[first : last + 1])
        lengths = self.lengths[first:last]
        seconds = self.seconds[first:last]
        return Batch(self.ids[tokens], self.types[tokens], self.positions[tokens], lengths, offsets, seconds)

    @cached_property
    def in_second_text(self) -> Tensor:
        """[N] bool, True for the tokens of second texts."""
        if not self.seconds:
            return torch.zeros_like(self.positions, dtype=torch.bool)
        seconds = torch.tensor(self.seconds, device=self.ids.device)
        return self.positions >= seconds.repeat_interleave(self.row_lengths)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """All segments in buckets of similar length."""
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
        return self._bucket(list(range(self.rows)), rung(self.longest))

    def in_rungs(self, kinds: tuple[int, ...] = ()) -> Bucketed:
        """Return the segments in buckets of equal padded length (and equal kind: a number for each segment)."""
        if kinds not in self._in_rungs:
            members: dict[tuple[int, int], list[int]] = {}
            for row, (length, kind) in enumerate(zip(self.lengths, kinds or (0,) * self.rows, strict=True)):
                members.setdefault((rung(length), kind), []).append(row)
            parts = sorted(members.items())
            buckets = tuple(self._bucket(rows, length) for (length, _), rows in parts)
            self._in_rungs[kinds] = Bucketed(buckets, tuple(kind for (_, kind), _ in parts), self._places(buckets))
        return self._in_rungs[kinds]

    @cached_property
    def _in_rungs(self) -> dict[tuple[int, ...], Bucketed]:
        return {}

    def _bucket(self, rows: list[int], length: int = 0) -> Bucket:
        """Return these segments, padded to `length` tokens or to the longest of them."""
        lengths = np.array([self.lengths[r] for r in rows])
        starts = np.array([self.offsets[r] for r in rows])
        longest = max(int(lengths.max()), length)
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
        """[N] the index of each token in the concatenated padded rows of all buckets."""
        return self._places(self.buckets)

    @cached_property
    def unpad(self) -> Tensor:
        """[N] the index of each token in the padded block `whole`."""
        return self._places((self.whole,))

    def _places(self, buckets: Sequence[Bucket]) -> Tensor:
        places = torch.empty(self.tokens, dtype=torch.long, device=self.ids.device)
        first = 0  # row of the bucket
        for bucket in buckets:
            real = (~bucket.padding).reshape(-1).nonzero(as_tuple=True)[0]  # [real tokens of the bucket]
            places[bucket.tokens[real]] = real + first
            first += bucket.rows * bucket.length
        return places


def pack(segments: Sequence[Segment], device: torch.device | str = "cpu") -> Batch:
    """Return the segments as one batch, in the given order."""
    lengths = tuple(len(s.ids) for s in segments)
    if not lengths or min(lengths) == 0:
        raise ValueError("cannot pack: expected at least one segment, and at least one token in each segment")
    offsets = tuple(int(o) for o in np.concatenate([[0], np.cumsum(lengths)]))
    ids = np.fromiter((i for s in segments for i in s.ids), np.int64, offsets[-1])
    types = np.zeros(offsets[-1], np.int64)
    for segment, start, end in zip(segments, offsets, offsets[1:], strict=False):
        if segment.types is not None:
            types[start:end] = segment.types
    seconds: tuple[int, ...] = ()
    if any(s.second is not None for s in segments):
        seconds = tuple(len(s.ids) if s.second is None else s.second for s in segments)
    positions = np.arange(offsets[-1]) - np.repeat(np.array(offsets[:-1]), np.array(lengths))
    return Batch(
        ids=torch.from_numpy(ids).to(device),
        types=torch.from_numpy(types).to(device),
        positions=torch.from_numpy(positions).to(device),
        lengths=lengths,
        offsets=offsets,
        seconds=seconds,
    )


def lengths_of(segments: Sequence[Segment], device: torch.device) -> Tensor:
    """Return [segments]: the number of tokens in each."""
    return torch.tensor([len(segment.ids) for segment in segments], device=device)


def by_token_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of rows of similar length with at most `budget` tokens each; a longer row is its own batch."""
    batches: list[list[int]] = []
    used = budget
    for row in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        if used + lengths[row] > budget:
            batches.append([])
            used = 0
        batches[-1].append(row)
        used += lengths[row]
    return batches
