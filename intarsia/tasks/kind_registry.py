"""The task-kind class of each kind."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import Kind, StoredKind, TaskData
from intarsia.tasks.headless import Headless
from intarsia.tasks.spans import Spans
from intarsia.tasks.tagging import Tags
from intarsia.tasks.task_kind import TaskKind
from intarsia.tasks.words import Words

if TYPE_CHECKING:
    from collections.abc import Mapping

# All other kinds are handled by TaskKind itself.
KIND_CLASSES: dict[StoredKind, type[TaskKind]] = {"tags": Tags, "span": Spans, "words": Words, "none": Headless}


def kind_for(data: TaskData) -> TaskKind:
    """The task kind for training on `data`."""
    return KIND_CLASSES.get(data.kind, TaskKind).learn(data.kind, data.labels, data.train)


def stored_kind(kind: StoredKind, labels: tuple[str, ...], head: Mapping[str, Any]) -> TaskKind:
    """The task kind of a stored task. `head` is the head entry of its inlay, which has the values of `to_dict`."""
    import msgspec

    kind_class = KIND_CLASSES.get(kind, TaskKind)
    field_names = {field.name for field in fields(kind_class)}
    values = {k: v for k, v in head.items() if k in field_names}
    try:
        return msgspec.convert({**values, "kind": kind, "labels": labels}, kind_class)
    except msgspec.ValidationError as error:
        raise IntarsiaError(f"the stored head is not valid: {str(error).replace('`', '')}.") from error


def default_length(kind: Kind) -> int:
    """The default `max_length` of a kind."""
    return KIND_CLASSES.get(kind, TaskKind).max_length
