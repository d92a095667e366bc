"""Tokenizes texts and records the characters of each token; splits long texts into overlapping windows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from intarsia.encoder.packed import Segment
from intarsia.encoder.tokenizing import second_text

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

TEXTS_PER_CALL = 1000  # of the tokenizer


class Window(NamedTuple):
    """One segment of a text, or of a text with its pair."""

    text: int  # the index of the text
    segment: Segment
    characters: np.ndarray  # [tokens, 2] start and end in the pair, or in the text if there is no pair; other tokens -1


def windows(
    encoder: Encoder,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    overlap: int = 0,
) -> Iterator[Window]:
    """Yield the windows of each text, in order. Without `max_length` each text is one window of any length.

    With `max_length`, windows split the pair (or the text, if there is no pair); neighbours share `overlap` tokens.
    """
    measured = 0 if pairs is None else 1  # the sequence whose characters are recorded
    truncation = {"truncation": False} if max_length is None else _truncation(pairs is not None, max_length, overlap)
    for first in range(0, len(texts), TEXTS_PER_CALL):
        part = slice(first, first + TEXTS_PER_CALL)
        encoded = encoder.tokenizing.with_options(
            list(texts[part]),
            None if pairs is None else list(pairs[part]),
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
            **truncation,
        )
        types = encoded.get("token_type_ids") if encoder.family.token_types else None
        text_of_row = encoded.get("overflow_to_sample_mapping") or range(len(encoded["input_ids"]))
        for row, (ids, offsets, text) in enumerate(
            zip(encoded["input_ids"], encoded["offset_mapping"], text_of_row, strict=True)
        ):
            characters, sides = np.array(offsets, np.int32).reshape(-1, 2), encoded.sequence_ids(row)
            characters[[side != measured for side in sides]] = -1
            row_types = None if types is None else array("b", types[row])
            segment = Segment(array("i", ids), row_types, second=second_text(sides))
            yield Window(first + text, segment, characters)


def _truncation(pairs: bool, max_length: int, overlap: int) -> dict[str, object]:
    return {
        "truncation": "only_second" if pairs else True,
        "max_length": max_length,
        "stride": overlap,
        "return_overflowing_tokens": True,
    }
