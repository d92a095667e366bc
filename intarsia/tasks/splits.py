"""Stratified splits that keep equal texts together.

Every split made here has these properties:

- Each example is in exactly one part, and the parts keep the order of the examples.
- Examples with the same text (or the same pair of texts) are in the same part. Two texts are the same if they differ
  only in case, white space or Unicode composition.
- Every label is in the first part.
- Each part has its share of the rows of each label, within about one row if no text occurs twice.
- The part of a text depends on the seed and on the examples, not on their order or on the machine.
"""

from __future__ import annotations

import random
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeVar

from intarsia.tasks.examples import Example, Kind, Question

SCORE_BINS = 10

T = TypeVar("T")


def split(
    examples: Sequence[Example], shares: tuple[float, float, float] = (0.8, 0.1, 0.1), *, seed: int, kind: Kind
) -> tuple[list[Example], list[Example], list[Example]]:
    """The examples split into train, dev and test."""
    train, dev, test = _divide(examples, shares, seed, kind)
    return train, dev, test


def hold_out(
    train: Sequence[Example], share: float = 0.1, *, seed: int, kind: Kind
) -> tuple[list[Example], list[Example]]:
    """The training examples without a share of them, and that share."""
    remaining, held_out = _divide(train, (1 - share, share), seed, kind)
    return remaining, held_out


def sample(examples: Sequence[Example], size: int, *, seed: int, kind: Kind) -> list[Example]:
    """Exactly `size` examples (or all if there are fewer), in order. Each label keeps its share.

    No label is lost if `size` is at least the number of labels. With several labels per example, this holds for each
    label that is the rarest of some example.
    """
    if size >= len(examples):
        return list(examples)
    scores = _sorted_scores(examples, kind)
    names = [_strata(example, scores) for example in examples]
    frequency = Counter(name for own_names in names for name in own_names)
    members: dict[str, list[int]] = defaultdict(list)
    for index, own_names in enumerate(names):
        members[_rarest(own_names, frequency)].append(index)

    generator = random.Random(seed)
    queue: list[tuple[float, float, int]] = []
    for name in sorted(members):
        for turn, index in enumerate(_shuffled(members[name], generator)):
            # Each stratum's members are spaced evenly, so it has its share in every initial part of the queue.
            place = -1.0 if turn == 0 and size >= len(members) else (turn + 0.5) / len(members[name])
            queue.append((place, generator.random(), index))
    return [examples[index] for index in sorted(index for *_, index in sorted(queue)[:size])]


def same_text(example: Example) -> tuple[str, str]:
    """A key that is equal for examples with the same text, and for questions about the same context."""
    if isinstance(example, Question):
        return _folded(example.context), ""
    return _folded(example.text), _folded(example.pair or "")


def _folded(text: str) -> str:
    """The text without differences in case, white space and Unicode composition."""
    # Case folding can undo the composition ("ΐ"), so the composition is repeated at the end.
    return unicodedata.normalize("NFC", " ".join(unicodedata.normalize("NFC", text).casefold().split()))


def _divide(examples: Sequence[Example], shares: Sequence[float], seed: int, kind: Kind) -> list[list[Example]]:
    """The parts of a split with the given shares.

    Groups of equal texts are assigned label by label, each to the part that is furthest below its share. The groups of
    one label follow each other, so each label keeps the shares. A rounding error in a small label is corrected in the
    next, so the parts have the right sizes even if every label is small.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        groups[same_text(example)].append(index)
    scores = _sorted_scores(examples, kind)
    frequency = Counter(name for example in examples for name in _strata(example, scores))
    strata: dict[str, list[tuple[str, str]]] = defaultdict(list)
    names_of = {
        key: {name for i in members for name in _strata(examples[i], scores)} for key, members in groups.items()
    }
    for key in sorted(groups):
        strata[_rarest(names_of[key], frequency)].append(key)

    generator = random.Random(seed)
    filled = [0] * len(shares)
    part_of = [0] * len(examples)
    in_first: set[str] = set()
    for name in sorted(strata):
        for key in _shuffled(strata[name], generator):
            size = len(groups[key])
            lacking = [share * (sum(filled) + size) - fill for share, fill in zip(shares, filled, strict=True)]
            part = lacking.index(max(lacking)) if names_of[key] <= in_first else 0
            if part == 0:
                in_first |= names_of[key]
            filled[part] += size
            for index in groups[key]:
                part_of[index] = part
    return [
        [example for example, its_part in zip(examples, part_of, strict=True) if its_part == part]
        for part in range(len(shares))
    ]


def _sorted_scores(examples: Sequence[Example], kind: Kind) -> list[float]:
    """All scores, sorted, to look up the quantile of a score; empty for labels."""
    return (
        sorted(example.label for example in examples if isinstance(example.label, int | float))
        if kind == "score"
        else []
    )


def _strata(example: Example, scores: list[float]) -> tuple[str, ...]:
    """The labels of an example; for a score the number of its quantile."""
    label = example.label
    if isinstance(label, int | float):
        return (str(bisect_left(scores, label) * SCORE_BINS // max(len(scores), 1)),)
    if isinstance(label, str):
        return (label,)
    return label or ()


def _rarest(names: Sequence[str] | set[str], frequency: Counter[str]) -> str:
    """The rarest of an example's labels, which is the hardest to place; "" if it has none."""
    return min(names, key=lambda name: (frequency[name], name), default="")


def _shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    """The items in random order."""
    # Python guarantees the same numbers in every version for random(), but not for shuffle().
    keys = [generator.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]
