"""Which class reads the answers of which kind of task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intarsia.tasks.examples import Kind, TaskData
from intarsia.tasks.kinds import Answers
from intarsia.tasks.tagging import Tags

if TYPE_CHECKING:
    from collections.abc import Mapping

READERS: dict[Kind, type[Answers]] = {"tags": Tags}  # the others: Answers itself


def learned_answers(data: TaskData) -> Answers:
    """How a task that is to be learned will answer."""
    return READERS.get(data.kind, Answers).learn(data.kind, data.labels, data.train)


def stored_answers(kind: Kind, labels: tuple[str, ...], head: Mapping[str, Any]) -> Answers:
    """How a stored task answers; `head` as its inlay describes it."""
    return READERS.get(kind, Answers)(kind, labels, head.get("mean", 0.0), head.get("spread", 1.0))
