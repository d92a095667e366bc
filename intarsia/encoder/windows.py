"""Texts as segments that know which characters each token stands for; long ones as overlapping windows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from intarsia.encoder.packed import Segment

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

AT_ONCE = 1000  # texts


class Window(NamedTuple):
    """One segment of a text, or of a text and its pair."""

    text: int  # which of the texts
    segment: Segment
    characters: np.ndarray  # [tokens, 2] from where to where, in the pair where there is one; -1 for all other tokens


def windows(
    encoder: Encoder,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    overlap: int = 0,
) -> Iterator[Window]:
    """The windows of each text, in order. Without `max_length` a text is one window, however long.

    With it, only the pair is cut (the text, where there is no pair), and neighbouring windows share `overlap` tokens.
    """
    own = 0 if pairs is None else 1
    cut = {"truncation": False} if max_length is None else _cutting(pairs is not None, max_length, overlap)
    for first in range(0, len(texts), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        found = encoder.tokenizer(
            list(texts[part]),
            None if pairs is None else list(pairs[part]),
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
            **cut,
        )
        types = found.get("token_type_ids") if encoder.family.token_types else None
        of = found.get("overflow_to_sample_mapping") or range(len(found["input_ids"]))
        for row, (ids, offsets, text) in enumerate(zip(found["input_ids"], found["offset_mapping"], of, strict=True)):
            characters = np.array(offsets, np.int32).reshape(-1, 2)
            characters[[side != own for side in found.sequence_ids(row)]] = -1
            kinds = None if types is None else array("b", types[row])
            yield Window(first + text, Segment(array("i", ids), kinds), characters)


def _cutting(pairs: bool, max_length: int, overlap: int) -> dict[str, object]:
    return {
        "truncation": "only_second" if pairs else True,
        "max_length": max_length,
        "stride": overlap,
        "return_overflowing_tokens": True,
    }
