"""The score of a task on labelled examples, computed with the same code as predictions."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.encoder.encoder import Encoder
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks.examples import Example
from intarsia.tasks.learned import Interface, Learned
from intarsia.tasks.metrics import Interval

RESAMPLES = 1000  # for the bootstrap interval


def score(
    learned: Learned, examples: Sequence[Example], encoder: Encoder, *, metric: str, max_length: int | None
) -> Interval:
    """Return the score with a 95 % bootstrap interval over the examples."""
    inputs = learned.task_kind.inputs(examples, encoder, max_length)
    task = Served("", Interface(learned.task_kind, max_length=max_length), lambda: learned)
    predictions = Predictor(encoder, Limits(slots=1)).predict([(task, segment) for segment in inputs.segments])
    return learned.task_kind.measure(metric, examples, inputs, predictions, RESAMPLES)
