"""The words of a text, as explanations count them: what stands between white space, without punctuation at its ends.

A run of punctuation is a word of its own, and so is each character of a script that is written without spaces.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

Span = tuple[int, int]  # first character, the character after the last

CHUNK = re.compile(r"\S+")
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def words(text: str) -> list[Span]:
    """Return the words of a text."""
    return [span for chunk in CHUNK.finditer(text) for span in _parts(text, *chunk.span())]


def without(text: str, span: Span) -> str:
    """Return the text without a word, and without one of the spaces around it if there is one on both sides."""
    before, after = text[: span[0]], text[span[1] :]
    if (not before or before[-1].isspace()) and after[:1].isspace():
        after = after[1:]
    return before + after if after else before.rstrip()


def _parts(text: str, start: int, end: int) -> Iterator[Span]:
    first, last = start, end
    while first < end and _is_mark(text[first]):
        first += 1
    while last > first and _is_mark(text[last - 1]):
        last -= 1
    if first > start:
        yield start, first
    at = first
    for character in UNSPACED.finditer(text, first, last):
        if character.start() > at:
            yield at, character.start()
        yield character.span()
        at = character.end()
    if last > at:
        yield at, last
    if end > last and first < end:
        yield last, end


def _is_mark(character: str) -> bool:
    """Return whether a character is punctuation or a symbol."""
    return unicodedata.category(character)[0] in "PS"
