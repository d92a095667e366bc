"""From requests to answers: texts become rows of tokens, all rows share passes, and each request gets its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from intarsia.serve.prediction import Prediction, Text
from intarsia.serve.predictor import Predictor, Request
from intarsia.serve.served import Served
from intarsia.tasks.examples import Example
from intarsia.tasks.inputs import Inputs


@dataclass(frozen=True)
class _Asked:
    """The requests of one task: which they are, and which rows of the call are theirs."""

    requests: list[int]
    examples: list[Example]
    inputs: Inputs
    rows: slice


def answer(requests: Sequence[tuple[str, Text]], tasks: Mapping[str, Served], predictor: Predictor) -> list[Prediction]:
    """An answer for each (task name, text), in order; rows of all tasks share passes."""
    rows: list[Request] = []
    asked: dict[str, _Asked] = {}
    for name, task in tasks.items():
        interface = task.interface
        own = [i for i, request in enumerate(requests) if request[0] == name]
        examples = [interface.task_kind.asked(requests[i][1], name, interface.pairs) for i in own]
        inputs = interface.inputs(examples, predictor.encoder)
        asked[name] = _Asked(own, examples, inputs, slice(len(rows), len(rows) + len(inputs.segments)))
        rows += [(task, segment) for segment in inputs.segments]
    predictions = predictor.predict(rows)
    found: dict[int, Prediction] = {}
    for name, of in asked.items():
        answers = tasks[name].interface.task_kind.describe_all(of.examples, of.inputs, predictions[of.rows])
        found |= {i: Prediction.of(name, values) for i, values in zip(of.requests, answers, strict=True)}
    return [found[i] for i in range(len(requests))]
