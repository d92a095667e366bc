"""Which class reads the answers of which kind of task."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from intarsia.tasks.examples import Kind, TaskData
from intarsia.tasks.spans import Spans
from intarsia.tasks.tagging import Tags
from intarsia.tasks.task_kind import TaskKind
from intarsia.tasks.words import Words

if TYPE_CHECKING:
    from collections.abc import Mapping

FEWEST = 3  # tokens of a row: one beside the two marks
READERS: dict[Kind, type[TaskKind]] = {"tags": Tags, "span": Spans, "words": Words}  # the others: TaskKind itself


def kind_for(data: TaskData) -> TaskKind:
    """How a task that is to be learned will answer."""
    return READERS.get(data.kind, TaskKind).learn(data.kind, data.labels, data.train)


def stored_kind(kind: Kind, labels: tuple[str, ...], head: Mapping[str, Any]) -> TaskKind:
    """How a stored task answers; `head` as its inlay describes it."""
    reader = READERS.get(kind, TaskKind)
    known = {field.name for field in fields(reader)}
    return reader(kind, labels, **{k: v for k, v in head.items() if k in known})  # as `to_dict` gave them


def default_length(kind: Kind) -> int:
    """Tokens of a row, unless told otherwise."""
    return READERS.get(kind, TaskKind).max_length
