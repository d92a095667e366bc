"""Tokenized texts, as segments and as flat arrays (for passes of fixed shape)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.tasks.examples import Example, TaskData
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.kind_registry import kind_for


class Tokens:
    """The tokens of one part (train, dev or test) of a data set."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        segments: Sequence[Segment] = inputs.segments
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
        return np.fromiter((i for s in self.segments for i in s.ids), np.int32, int(self.lengths.sum()))

    @cached_property
    def types(self) -> np.ndarray | None:
        """[tokens] the token types of all segments, concatenated; None if no segment has types."""
        if all(s.types is None for s in self.segments):
            return None
        return np.fromiter(
            (t for s in self.segments for t in (s.types or [0] * len(s.ids))), np.int32, int(self.lengths.sum())
        )


class Tokenizer:
    """Tokenizes each data set once; all jobs on it share the result."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.cache: dict[tuple[int, int], TokenizedParts] = {}

    def __call__(self, data: TaskData, max_length: int) -> TokenizedParts:
        key = (id(data), max_length)
        if key not in self.cache:  # Parts keeps a reference to the data, so no other object can get the same id
            self.cache[key] = TokenizedParts(data, max_length, self.encoder)
        return self.cache[key]


class TokenizedParts:
    """The parts train, dev and test of a data set; each is tokenized at its first use."""

    def __init__(self, data: TaskData, max_length: int, encoder: Encoder) -> None:
        self.data, self.max_length, self.encoder = data, max_length, encoder
        self.task_kind = kind_for(data)
        self.tokenized: dict[str, Tokens] = {}

    def __getitem__(self, part: str) -> Tokens:
        if part not in self.tokenized:
            examples: list[Example] = getattr(self.data, part)
            inputs = self.task_kind.inputs(examples, self.encoder, self.max_length, training=part == "train")
            self.tokenized[part] = Tokens(inputs)
        return self.tokenized[part]
