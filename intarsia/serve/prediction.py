"""The input and the result of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import Question

Text = str | Sequence[str] | Question  # the task kind determines which: a text, a pair of texts, a list of words …


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text. Only the fields of the task's kind are set.

    `label` (one of n), `labels` (any of n), `score` (a number), `tags` with their `entities` (one tag for each word),
    `answer` (a span; empty if the context holds no answer), `masks` (words for the mask tokens).
    """

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
    no_answer_score: float | None = None  # score of "no answer" minus the best answer's; a threshold applies to it
    candidates: list[dict[str, Any]] | None = None  # text, start, probability
    masks: list[dict[str, Any]] | None = None  # start (character), words: the most likely, with probabilities

    def __repr__(self) -> str:
        """The fields that the task's kind has."""
        return f"Prediction({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def at_threshold(self, threshold: float) -> Prediction:
        """Return the prediction with the labels (of several) whose probability reaches a threshold."""
        if self.labels is None or self.probabilities is None:
            raise IntarsiaError(f"a threshold is for tasks with several labels of n, and {self.task!r} is not one.")
        if not 0 < threshold < 1:
            raise IntarsiaError(f"threshold is a probability and must be between 0 and 1, not {threshold}.")
        labels = tuple(label for label, p in self.probabilities.items() if p >= threshold)
        return dataclasses.replace(self, labels=labels)

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if v is not None}

    @classmethod
    def of(cls, task: str, answer: dict[str, Any]) -> Prediction:
        """Return the prediction with the values that `TaskKind.describe_all` gives."""
        if "labels" in answer:
            answer = {**answer, "labels": tuple(answer["labels"])}
        prediction = cls.__new__(cls)
        vars(prediction).update(task=task, **answer)  # the constructor would also set the fields of all other kinds
        return prediction
