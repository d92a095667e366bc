"""The lengths of texts in tokens: how many are cut at a maximum length, and which length to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.tasks.examples import Example, TaskData

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

FEWEST = 3  # the least maximum length: one token and two special tokens
MEASURED = 20_000  # texts, evenly spaced: enough for a quantile
TEXTS_PER_CALL = 1000  # of the tokenizer
CUT_KINDS = ("label", "labels", "score")  # the other kinds spread long texts over several rows
QUANTILES = (1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.5)
MOST_COST = 4.0  # times the tokens of the default length
ROUND = 8  # tokens: proposed lengths are multiples


@dataclass(frozen=True)
class Truncation:
    """How many texts of the training part a maximum length cuts."""

    cut: int
    of: int  # the texts that were measured: all, or `MEASURED` of them
    max_length: int
    mean_tokens: float  # of the texts that are cut, uncut
    longest: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        mean = f"{self.mean_tokens:,.0f} in the mean"
        return f"{self.cut:,} of {self.of:,} texts are cut to {self.max_length} tokens ({mean})"


@dataclass(frozen=True)
class Proposal:
    """A maximum length, chosen for the data."""

    tokens: int
    whole: float  # the share of texts that it does not cut
    cost: float  # tokens in a pass, relative to the default length

    def __str__(self) -> str:
        cost = "" if 0.95 < self.cost < 1.05 else f", at {self.cost:.1f} times the tokens"
        return f"{self.tokens} tokens hold {self.whole:.1%} of the texts whole{cost}"


def lengths_of_texts(examples: Sequence[Example], encoder: Encoder) -> NDArray[np.int64]:
    """The lengths in tokens, special tokens included, of at most `MEASURED` evenly spaced examples, without cutting."""
    step = max(1, -(-len(examples) // MEASURED))
    measured = examples[::step]
    found: list[int] = []
    for first in range(0, len(measured), TEXTS_PER_CALL):
        part = measured[first : first + TEXTS_PER_CALL]
        pairs = None if part[0].pair is None else [e.pair or "" for e in part]
        encoded = encoder.tokenizer(
            [e.text for e in part], pairs, truncation=False, return_attention_mask=False, verbose=False
        )
        found += [len(ids) for ids in encoded["input_ids"]]
    return np.array(found, np.int64)


def truncation(data: TaskData, encoder: Encoder, max_length: int) -> Truncation | None:
    """The training texts that `max_length` (or the base's own limit) cuts; None if there are none."""
    if data.kind not in CUT_KINDS:
        return None
    lengths, limit = lengths_of_texts(data.train, encoder), min(max_length, encoder.max_length)
    longer = lengths[lengths > limit]
    if not len(longer):
        return None
    return Truncation(len(longer), len(lengths), limit, float(longer.mean()), int(longer.max()))


def propose(data: TaskData, encoder: Encoder, default: int) -> Proposal:
    """The longest of several quantiles of the texts' lengths that the base takes, at a bearable cost.

    A pass costs about as much as it has tokens, because batches are not padded: a few long texts cost little.
    """
    if data.kind not in CUT_KINDS:
        return Proposal(default, 1.0, 1.0)
    lengths = lengths_of_texts(data.train, encoder)

    def proposal(tokens: int) -> Proposal:
        cost = np.minimum(lengths, tokens).sum() / np.minimum(lengths, default).sum()
        return Proposal(tokens, float((lengths <= tokens).mean()), float(cost))

    for quantile in QUANTILES:
        tokens = -(-int(np.quantile(lengths, quantile)) // ROUND) * ROUND
        # All texts, if the longest cost little; else all but the longest hundredth, and so on.
        bearable = 1.25 if quantile == 1.0 else MOST_COST
        if tokens <= encoder.max_length and proposal(tokens).cost <= bearable:
            return proposal(tokens)
    fitting = [proposal(tokens) for tokens in (encoder.max_length, default) if tokens <= encoder.max_length]
    return next((found for found in fitting if found.cost <= MOST_COST), proposal(min(default, encoder.max_length)))
