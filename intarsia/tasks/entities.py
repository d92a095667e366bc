"""Entities in a sequence of tags, by the rules of the CoNLL evaluation (conlleval and seqeval).

The rules cover IOB1, IOB2, BIOES and BILOU; the scheme need not be named. An entity begins at B or S (U), and where the
type changes. It ends before B, S or O, where the type changes, and after E (L) or S. A tag in an invalid position, such
as I after O, also opens an entity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_SAME = {"L": "E", "U": "S"}  # BILOU's letters for the last word and for a single word


class Entity(NamedTuple):
    type: str
    start: int  # the first word
    end: int  # after the last word


def has_entities(labels: Iterable[str]) -> bool:
    """Whether the tags mark entities: each is O, or a letter of a known scheme and a type."""
    labels = list(labels)
    return all(label == "O" or _TAG.fullmatch(label) for label in labels) and any(label != "O" for label in labels)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order."""
    found: list[Entity] = []
    start: int | None = None
    before, type_before = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        match = _TAG.fullmatch(tag)
        letter, type_ = ("O", "") if match is None else (_SAME.get(match[1], match[1]), match[2])
        if start is not None and _ends(before, type_before, letter, type_):
            found.append(Entity(type_before, start, place))
            start = None
        if start is None and letter != "O":
            start = place
        before, type_before = letter, type_
    return found


def _ends(before: str, type_before: str, letter: str, type_: str) -> bool:
    """Whether an entity that includes the word tagged `before` ends with it."""
    return before in ("E", "S") or letter in ("B", "S", "O") or type_ != type_before
