"""What a task is made of: labelled texts in three parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["label", "labels", "score", "tags", "span", "words"]
"""What is to be predicted: one label of n, several labels of n, a number, a tag for each word, a span of a text, or
words that are hidden in a text."""

KINDS: tuple[Kind, ...] = get_args(Kind)

Label = str | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of texts, with its label where one is known."""

    text: str
    pair: str | None = None
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class Sentence(Example):
    """The words of a text, each with a tag (`label` has them all) where they are known."""

    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: tuple[str, ...], tags: tuple[str, ...] | None = None) -> Sentence:
        return cls(" ".join(words), None, tags, words)


@dataclass(frozen=True, slots=True)
class Question(Example):
    """A question (`text`) about a context (`pair`)."""

    id: str = ""
    answers: tuple[tuple[int, str], ...] | None = None  # where each begins, and its text; (): there is none

    @property
    def context(self) -> str:
        return self.pair or ""


@dataclass(frozen=True, slots=True)
class Cloze(Example):
    """A text with mask tokens in the place of words that are to be found."""


@dataclass(frozen=True)
class TaskData:
    """A checked data set: every label of dev and test occurs in training, and no part is empty."""

    kind: Kind
    labels: tuple[str, ...]  # sorted; empty for scores, spans and words
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    source: dict[str, Any]  # provenance, made of plain JSON values

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts; all are or none is."""
        return self.train[0].pair is not None

    @property
    def asks(self) -> str:
        """What is to be predicted, in a few words."""
        if self.labels:
            return f"{len(self.labels)} {'tags' if self.kind == 'tags' else 'labels'}"
        return "hidden words" if self.kind == "words" else f"a {self.kind}"
