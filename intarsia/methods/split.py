"""Split: the tokens of a pair's first and second text have methods of their own, as question and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intarsia.errors import IntarsiaError
from intarsia.methods.compose import Composite, Part


@dataclass(frozen=True, init=False, repr=False)
class Split(Composite):
    """The first part acts on the tokens of each segment's first text, the second part on those of its second text."""

    parts: tuple[Part, ...]

    name: ClassVar[str] = "split"
    trains: ClassVar[str] = "what its parts train"

    def __init__(self, *parts: Part) -> None:
        if len(parts) != 2:
            raise IntarsiaError(
                f"Split has {len(parts)} parts; expected two: one for the first text of a pair, one for the second."
            )
        self._init(parts)
