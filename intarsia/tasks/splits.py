"""Stratified splits that keep equal texts together.

What holds for every split made here:

- each example is in exactly one part, and the parts keep the order of the examples;
- examples with the same text (or the same pair of texts) are in the same part, where two texts are the same if they
  differ only in case, white space or Unicode composition;
- every label is in the first part;
- each part has its share of the rows of each label, within a row or so where no text occurs twice;
- which part a text goes to depends on the seed and on the examples, not on their order or on the machine.
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
    """Examples as train, dev and test."""
    train, dev, test = _divide(examples, shares, seed, kind)
    return train, dev, test


def hold_out(
    train: Sequence[Example], share: float = 0.1, *, seed: int, kind: Kind
) -> tuple[list[Example], list[Example]]:
    """Examples as what remains for training and the share held out of it."""
    rest, held = _divide(train, (1 - share, share), seed, kind)
    return rest, held


def sample(examples: Sequence[Example], size: int, *, seed: int, kind: Kind) -> list[Example]:
    """Exactly `size` examples (or all, if there are fewer), each label by its share, in their order.

    No label is lost as long as `size` is no smaller than the number of labels; with several labels an example, that
    holds for each label that is the rarest one of some example.
    """
    if size >= len(examples):
        return list(examples)
    scores = _sorted_scores(examples, kind)
    names = [_strata(example, scores) for example in examples]
    frequency = Counter(name for some in names for name in some)
    members: dict[str, list[int]] = defaultdict(list)
    for index, some in enumerate(names):
        members[_rarest(some, frequency)].append(index)

    generator = random.Random(seed)
    queue: list[tuple[float, float, int]] = []
    for name in sorted(members):
        for turn, index in enumerate(_shuffled(members[name], generator)):
            # Spacing each stratum's turns evenly over the queue gives each its share of any beginning of the queue.
            place = -1.0 if turn == 0 and size >= len(members) else (turn + 0.5) / len(members[name])
            queue.append((place, generator.random(), index))
    return [examples[index] for index in sorted(index for *_, index in sorted(queue)[:size])]


def same_text(example: Example) -> tuple[str, str]:
    """What two examples have in common if their texts count as the same; questions, if they are about one context."""
    if isinstance(example, Question):
        return _folded(example.context), ""
    return _folded(example.text), _folded(example.pair or "")


def _folded(text: str) -> str:
    # Folding case can undo the composition ("ΐ"), hence the composition comes last.
    return unicodedata.normalize("NFC", " ".join(unicodedata.normalize("NFC", text).casefold().split()))


def _divide(examples: Sequence[Example], shares: Sequence[float], seed: int, kind: Kind) -> list[list[Example]]:
    """Walks over the groups of equal texts, label by label, giving each to the part that lacks most.

    Each stretch of the walk keeps the shares, and so does each label, being one stretch; what rounding costs a small
    label is made up for by the next one, so the parts have their sizes even where every label is small.
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
        [example for example, own in zip(examples, part_of, strict=True) if own == part] for part in range(len(shares))
    ]


def _sorted_scores(examples: Sequence[Example], kind: Kind) -> list[float]:
    """All scores in order, by which a score finds its quantile; nothing for labels."""
    return (
        sorted(example.label for example in examples if isinstance(example.label, int | float))
        if kind == "score"
        else []
    )


def _strata(example: Example, scores: list[float]) -> tuple[str, ...]:
    """The labels of an example; of a score, the name of its quantile."""
    label = example.label
    if isinstance(label, int | float):
        return (str(bisect_left(scores, label) * SCORE_BINS // max(len(scores), 1)),)
    if isinstance(label, str):
        return (label,)
    return label or ()


def _rarest(names: Sequence[str] | set[str], frequency: Counter[str]) -> str:
    """The label that is hardest to place; examples without any label form a stratum of their own."""
    return min(names, key=lambda name: (frequency[name], name), default="")


def _shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    # Only random() is promised to give the same numbers in every version of Python; shuffle() is not.
    keys = [generator.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]
