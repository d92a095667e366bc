"""Tokenized texts: each data set once, for all jobs."""

from __future__ import annotations

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.segment_arrays import SegmentArrays
from intarsia.tasks.examples import Example, TaskData
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.kind_registry import kind_for


class Tokens(SegmentArrays):
    """The tokens of one part (train, dev or test) of a data set."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs.segments)
        self.inputs = inputs


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
