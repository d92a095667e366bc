"""From requests to predictions: tokenize the texts, run the rows of all tasks in shared passes, decode the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from intarsia.serve.prediction import Prediction, Text
from intarsia.serve.predictor import Predictor, Request
from intarsia.serve.served import Served
from intarsia.tasks.examples import Example
from intarsia.tasks.inputs import Inputs


@dataclass(frozen=True)
class _TaskRequests:
    """The requests of one task, and the rows of the call that belong to them."""

    indices: list[int]  # into the call's requests
    examples: list[Example]
    inputs: Inputs
    rows: slice


def answer(requests: Sequence[tuple[str, Text]], tasks: Mapping[str, Served], predictor: Predictor) -> list[Prediction]:
    """Return a prediction for each (task name, text), in order. Rows of all tasks share passes."""
    rows: list[Request] = []
    by_task: dict[str, _TaskRequests] = {}
    for name, task in tasks.items():
        interface = task.interface
        indices = [i for i, request in enumerate(requests) if request[0] == name]
        examples = [interface.task_kind.parse_request(requests[i][1], name, interface.pairs) for i in indices]
        inputs = interface.inputs(examples, predictor.encoder)
        of_task = slice(len(rows), len(rows) + len(inputs.segments))
        by_task[name] = _TaskRequests(indices, examples, inputs, of_task)
        rows += [(task, segment) for segment in inputs.segments]
    outputs = predictor.predict(rows)
    predictions: dict[int, Prediction] = {}
    for name, of in by_task.items():
        answers = tasks[name].interface.task_kind.describe_all(of.examples, of.inputs, outputs[of.rows])
        predictions |= {i: Prediction.of(name, values) for i, values in zip(of.indices, answers, strict=True)}
    return [predictions[i] for i in range(len(requests))]
