"""Which tokens of a row are hidden, and what stands in their place, as BERT's authors had it (Devlin et al. 2019).

15 % of a row's tokens are asked about (special ones never; at least one). Of these 80 % are replaced by the mask token,
10 % by a random token, and 10 % stay, so that a state is worth something where there is no mask, too.
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

ASKED, MASKED, DRAWN = 0.15, 0.8, 0.1
_STREAM = 15  # keeps these draws apart from others by the same seed and step


@dataclass(frozen=True)
class Vocabulary:
    """What the encoder's tokenizer can hide, put in place of it, and name."""

    mask: int
    special: np.ndarray  # ids that are never hidden
    words: np.ndarray  # ids that may stand in another's place
    tokenizer: Any

    @classmethod
    def of(cls, encoder: Encoder) -> Vocabulary:
        tokenizer = encoder.tokenizer
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise IntarsiaError(
                f"the tokenizer of {encoder.name} has no mask token, so no word can be hidden. Choose an encoder that "
                "was pretrained with masked words."
            )
        special = np.array(sorted(tokenizer.all_special_ids))
        words = np.setdiff1d(list(tokenizer.get_vocab().values()), special)
        words = words[words < encoder.shape.words.shape[0]]
        return cls(tokenizer.mask_token_id, special, words, tokenizer)

    def may_hide(self, segment: Segment) -> np.ndarray:
        """[n] which tokens of a segment are no special ones."""
        return np.flatnonzero(~np.isin(np.asarray(segment.ids), self.special))

    def masks(self, segment: Segment) -> np.ndarray:
        """[n] which tokens of a segment are masks already."""
        return np.flatnonzero(np.asarray(segment.ids) == self.mask)

    def word(self, number: int) -> str:
        """A token as text; one that stands for nothing but space under its own name."""
        return str(self.tokenizer.decode([number])).strip() or str(self.tokenizer.convert_ids_to_tokens(number))


def hide(segment: Segment, among: np.ndarray, vocabulary: Vocabulary, random: np.random.Generator) -> Segment:
    """The segment with a share of the tokens `among` asked about.

    All draws are of `random.random()`, whose numbers are the same in every version of NumPy.
    """
    ids = np.array(segment.ids)
    count = max(1, round(ASKED * len(among)))
    chosen = np.sort(among[np.argsort(random.random(len(among)), kind="stable")[:count]])
    asked = np.stack([chosen, ids[chosen]], 1)
    fate = random.random(count)
    drawn = vocabulary.words[(random.random(count) * len(vocabulary.words)).astype(int)]
    ids[chosen] = np.where(fate < MASKED, vocabulary.mask, np.where(fate < MASKED + DRAWN, drawn, ids[chosen]))
    return Segment(ids.tolist(), segment.types, asked)


def of_step(seed: int, step: int) -> np.random.Generator:
    """The draws of a job's step: a function of these two alone, so that it repeats wherever it is resumed."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, step, _STREAM])))


def of_text(segment: Segment) -> np.random.Generator:
    """The draws of a row that is measured on: its own, whatever the job and the rows beside it."""
    digest = hashlib.blake2b(np.asarray(segment.ids, "<i4").tobytes(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little"))))
