"""Entities in a row of tags, read as the CoNLL evaluation (conlleval, and seqeval after it) reads them.

Any of IOB1, IOB2, BIOES and BILOU is understood without being told which: an entity begins at B and S (U), and where
the type changes; it ends before B, S and O, where the type changes, and after E (L) and S. A tag that should not stand
where it stands, such as I after O, opens an entity all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_SAME = {"L": "E", "U": "S"}  # BILOU's names for the last word, and for the only one


class Entity(NamedTuple):
    type: str
    start: int  # the first word
    end: int  # the one after the last


def has_entities(labels: Iterable[str]) -> bool:
    """Whether tags say where entities are: all of them O, or a letter of a known scheme and a type."""
    labels = list(labels)
    return all(label == "O" or _TAG.fullmatch(label) for label in labels) and any(label != "O" for label in labels)


def entities(tags: Sequence[str]) -> list[Entity]:
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
    """Whether an entity that reaches to `before` ends there."""
    return before in ("E", "S") or letter in ("B", "S", "O") or type_ != type_before
