"""From outputs to answers. Runs in the threads of the callers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from intarsia.errors import PassFailed
from intarsia.serve.ask import Answer, Ask
from intarsia.serve.prediction import Prediction
from intarsia.serve.preparing import Group, Prepared
from intarsia.tasks.probabilities import probabilities
from intarsia.tasks.task_kind import TaskKind

SETTINGS = {"label": ("temperature",), "labels": ("temperature",), "score": ("mean", "spread")}
NOT_FINITE = (
    "the model's outputs for this text contain NaN or infinity: the weights of the task or of the base are too large. "
    "Restore an older version of the task, or learn it again."
)


def answers(asks: Sequence[Ask], prepared: Prepared) -> list[Answer]:
    """Return the answers in the order of the asks; call it when all outputs are there."""
    found: list[Any] = [None] * len(asks)
    for place, error in prepared.errors.items():
        found[place] = Answer(asks[place], error=error)
    by_kind: dict[tuple[str, int], list[Group]] = {}
    for group in prepared.groups:
        if group.served is None or group.embed or group.served.interface.task_kind.reads_tokens:
            _answer(group, group.outputs, _not_finite(group), asks, found)
        else:
            by_kind.setdefault((group.served.kind, len(group.outputs[0])), []).append(group)
    for (_, outputs), groups in by_kind.items():
        _answer_rows(groups, outputs, asks, found)
    return found


def _answer_rows(groups: Sequence[Group], outputs: int, asks: Sequence[Ask], found: list[Any]) -> None:
    """Answer groups of one kind whose heads read rows: their outputs are logits, which become probabilities at once."""
    kinds = [group.served.interface.task_kind for group in groups if group.served is not None]
    logits = np.concatenate([row for group in groups for row in group.outputs]).reshape(-1, outputs)
    rows = probabilities_of_tasks(kinds, [len(group.outputs) for group in groups], logits)
    finite = np.isfinite(logits).all(-1).tolist()
    first = 0
    for group in groups:
        last = first + len(group.outputs)
        broken = [i for i, row_is_finite in enumerate(finite[first:last]) if not row_is_finite]
        _answer(group, rows[first:last], broken, asks, found)
        first = last


def probabilities_of_tasks(kinds: Sequence[TaskKind], rows: Sequence[int], logits: np.ndarray) -> np.ndarray:
    """Return the probabilities [V, k] for the logits [V, k] of tasks of one kind with k outputs each; `rows` says how
    many rows each task has. The bits are those of `TaskKind.probabilities`."""
    kind = kinds[0].kind
    by_task = {name: [getattr(task, name) for task in kinds] for name in SETTINGS[kind]}
    by_row = {name: np.array(values, np.float32).repeat(rows)[:, None] for name, values in by_task.items()}
    return probabilities(kind, logits, **by_row)


def _answer(
    group: Group, rows: Sequence[Any] | np.ndarray, broken: Collection[int], asks: Sequence[Ask], found: list[Any]
) -> None:
    """Put the answers of a group in their places. `broken`: the examples whose outputs contain NaN or infinity."""
    served = group.served
    version, kind = (None, None) if served is None else (served.version, served.kind)
    predictions: Any = repeat(None)
    vectors: Any = rows if group.embed else repeat(None)
    if not group.embed:
        assert served is not None
        described = served.interface.task_kind.describe_all(group.examples, group.inputs, rows)  # type: ignore[arg-type]
        predictions = [Prediction.of(served.name, answer) for answer in described]
    sizes = group.sizes()
    for place, prediction, vector, size in zip(group.places, predictions, vectors, sizes, strict=False):
        found[place] = Answer(asks[place], prediction, vector, None, version, kind, *size)
    for i in broken:
        place = group.places[i]
        found[place] = Answer(asks[place], None, None, PassFailed(NOT_FINITE), version, kind, *sizes[i])


def _not_finite(group: Group) -> Collection[int]:
    """Return the examples whose outputs contain NaN or infinity."""
    # An output with fields has probabilities among them.
    values = [output if output.dtype.names is None else output["probabilities"] for output in group.outputs]
    if np.isfinite(np.concatenate(values, axis=None)).all():
        return ()
    owners = group.inputs.owners or range(len(values))
    return {owner for owner, value in zip(owners, values, strict=True) if not np.isfinite(value).all()}
