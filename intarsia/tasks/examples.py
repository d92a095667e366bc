"""The data of a task: labelled examples in three parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from intarsia.errors import IntarsiaError

Kind = Literal["label", "labels", "score", "tags", "span", "words"]
"""What a task predicts: one label of n, several labels of n, a number, a tag for each word, a span of a text, or hidden
words of a text."""

KINDS: tuple[Kind, ...] = get_args(Kind)

StoredKind = Literal[Kind, "none"]
"""The kind of an inlay. One without a head (`none`) answers nothing; tasks are learned over it."""

Label = str | float | tuple[str, ...]


def check_answers(kind: str, name: str, doing: str = "predict") -> None:
    """Raise if an inlay of this kind has no head."""
    if kind == "none":
        raise IntarsiaError(
            f'{name!r} has no head, so it cannot {doing}. Learn a task over it: bank.learn("task", data, '
            f'Stack({name!r}, Pfeiffer(48))), or --method "stack({name}, pfeiffer-48)". It gives vectors without a '
            f"head: bank.embed(texts, {name!r})."
        )


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of texts, with its label if known."""

    text: str
    pair: str | None = None
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class Sentence(Example):
    """A sentence as words. `label` has one tag per word if the tags are known."""

    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: tuple[str, ...], tags: tuple[str, ...] | None = None) -> Sentence:
        """The sentence of these words, with tags if known."""
        return cls(" ".join(words), None, tags, words)


@dataclass(frozen=True, slots=True)
class Question(Example):
    """A question (`text`) about a context (`pair`)."""

    id: str = ""
    answers: tuple[tuple[int, str], ...] | None = None  # (first character, text) of each; () if the question has none

    @property
    def context(self) -> str:
        return self.pair or ""


@dataclass(frozen=True, slots=True)
class Cloze(Example):
    """A text with mask tokens in place of the words to predict."""


@dataclass(frozen=True)
class TaskData:
    """A checked data set: every label of dev and test occurs in training, and no part is empty."""

    kind: Kind
    labels: tuple[str, ...]  # sorted; empty for the kinds score, span and words
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    source: dict[str, Any]  # provenance, as plain JSON values

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(getattr(self, part)):,} {part}" for part in ("train", "dev", "test"))
        return f"TaskData({self.kind!r}, {self.asks}; {rows})"

    @property
    def pairs(self) -> bool:
        """Whether the examples are text pairs: either all are or none is."""
        return self.train[0].pair is not None

    @property
    def asks(self) -> str:
        """What the task predicts, in a few words for the user."""
        if self.labels:
            return f"{len(self.labels)} {'tags' if self.kind == 'tags' else 'labels'}"
        return "hidden words" if self.kind == "words" else f"a {self.kind}"
