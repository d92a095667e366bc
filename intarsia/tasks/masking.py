"""Which tokens of a row are hidden, and what replaces them (BERT, Devlin et al. 2019).

15 % of a row's tokens are hidden: at least one, never a special token. The mask token replaces 80 % of the hidden
tokens, a random token replaces 10 %, and 10 % stay unchanged. The model must therefore also represent tokens
that are not masked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.encoder.packed import Segment
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

HIDDEN, MASKED, DRAWN = 0.15, 0.8, 0.1
_STREAM = 15  # separates these draws from other draws with the same seed and step


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of an encoder's tokenizer, by their role in masking."""

    mask: int  # the id of the mask token
    special: np.ndarray  # ids that are never hidden
    words: np.ndarray  # ids that may replace a hidden token
    tokenizer: Any

    @classmethod
    def of(cls, encoder: Encoder) -> Vocabulary:
        """The vocabulary of an encoder; raises if its tokenizer has no mask token."""
        tokenizer = encoder.tokenizer
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise IntarsiaError(
                f"the tokenizer of {encoder.name} has no mask token. Choose an encoder that was pretrained with "
                "masked words."
            )
        special = np.array(sorted(tokenizer.all_special_ids))
        words = np.setdiff1d(list(tokenizer.get_vocab().values()), special)
        words = words[words < encoder.shape.words.shape[0]]
        return cls(tokenizer.mask_token_id, special, words, tokenizer)

    def may_hide(self, segment: Segment) -> np.ndarray:
        """The indices of a segment's tokens that may be hidden [n]: all but special tokens."""
        return np.flatnonzero(~np.isin(np.asarray(segment.ids), self.special))

    def masks(self, segment: Segment) -> np.ndarray:
        """The indices of a segment's mask tokens [n]."""
        return np.flatnonzero(np.asarray(segment.ids) == self.mask)

    def word(self, number: int) -> str:
        """A token id as text; a token that is only white space gives its name in the vocabulary."""
        return str(self.tokenizer.decode([number])).strip() or str(self.tokenizer.convert_ids_to_tokens(number))


def hide(segment: Segment, among: np.ndarray, vocabulary: Vocabulary, random: np.random.Generator) -> Segment:
    """The segment with a share of the tokens `among` hidden.

    All draws use `random.random()`, which gives the same numbers in every version of NumPy.
    """
    ids = np.array(segment.ids)
    count = max(1, round(HIDDEN * len(among)))
    chosen = np.sort(among[np.argsort(random.random(len(among)), kind="stable")[:count]])
    hidden = np.stack([chosen, ids[chosen]], 1)
    fate = random.random(count)
    drawn = vocabulary.words[(random.random(count) * len(vocabulary.words)).astype(int)]
    ids[chosen] = np.where(fate < MASKED, vocabulary.mask, np.where(fate < MASKED + DRAWN, drawn, ids[chosen]))
    return Segment(ids.tolist(), segment.types, hidden, second=segment.second)


def step_generator(seed: int, step: int) -> np.random.Generator:
    """The random generator of a training step. It depends on seed and step only, so a resumed run repeats it."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, step, _STREAM])))


def row_generator(segment: Segment) -> np.random.Generator:
    """The random generator of a dev or test row. It depends on the row's tokens only, not on job or batch."""
    digest = hashlib.blake2b(np.asarray(segment.ids, "<i4").tobytes(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little"))))
