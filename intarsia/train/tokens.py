"""Tokenized texts: as segments, and laid end to end for passes of fixed shape."""

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
    """One part of a data set."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        segments: Sequence[Segment] = inputs.segments
        self.segments = segments
        self.lengths = np.array([len(s.ids) for s in segments], np.int64)
        self.longest = int(self.lengths.max(initial=0))

    @cached_property
    def offsets(self) -> np.ndarray:
        """[segments] where each begins in `ids`."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def ids(self) -> np.ndarray:
        return np.fromiter((i for s in self.segments for i in s.ids), np.int32, int(self.lengths.sum()))

    @cached_property
    def types(self) -> np.ndarray | None:
        if all(s.types is None for s in self.segments):
            return None
        return np.fromiter(
            (t for s in self.segments for t in (s.types or [0] * len(s.ids))), np.int32, int(self.lengths.sum())
        )


class Tokenizer:
    """Tokenizes a data set once, however many jobs learn from it."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.known: dict[tuple[int, int], Parts] = {}

    def __call__(self, data: TaskData, max_length: int) -> Parts:
        key = (id(data), max_length)
        if key not in self.known:  # the parts keep the data too: its id stays its own
            self.known[key] = Parts(data, max_length, self.encoder)
        return self.known[key]


class Parts:
    """A data set's train, dev and test, each tokenized when first asked for."""

    def __init__(self, data: TaskData, max_length: int, encoder: Encoder) -> None:
        self.data, self.max_length, self.encoder = data, max_length, encoder
        self.task_kind = kind_for(data)
        self.known: dict[str, Tokens] = {}

    def __getitem__(self, part: str) -> Tokens:
        if part not in self.known:
            examples: list[Example] = getattr(self.data, part)
            made = self.task_kind.inputs(examples, self.encoder, self.max_length, training=part == "train")
            self.known[part] = Tokens(made)
        return self.known[part]
