"""What a task is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.tasks.examples import Question

Text = str | Sequence[str] | Question  # a text; a pair of texts, or the words of a sentence, by the task's kind


@dataclass(frozen=True)
class Prediction:
    """One answer. `label` for one of n, `labels` for several of n, `score` for a number, `tags` for words, with the
    `entities` that the tags make; `answer` for a span, empty where there is none; `masks` for words to fill in."""

    task: str
    label: str | None = None
    labels: tuple[str, ...] | None = None
    score: float | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    tags: list[dict[str, Any]] | None = None  # word, tag, probability
    entities: list[dict[str, Any]] | None = None  # type, start and end (words), text
    answer: str | None = None
    start: int | None = None  # the answer's first character in the context
    no_answer_score: float | None = (
        None  # by how much no answer is better than the best; above a threshold, none is given
    )
    candidates: list[dict[str, Any]] | None = None  # text, start, probability
    masks: list[dict[str, Any]] | None = None  # start (character), words: the likeliest, each with its probability

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if v is not None}

    @classmethod
    def of(cls, task: str, answer: dict[str, Any]) -> Prediction:
        """From the plain values that a task kind describes an answer with."""
        if "labels" in answer:
            answer = {**answer, "labels": tuple(answer["labels"])}
        return cls(task, **answer)
