"""The score of a task on labelled examples, computed with the same code as predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.encoder.encoder import Encoder
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks.examples import Example
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.learned import Interface, Learned
from intarsia.tasks.metrics import Interval

RESAMPLES = 1000  # for the bootstrap interval


def score(
    learned: Learned, examples: Sequence[Example], encoder: Encoder, *, metric: str, max_length: int | None
) -> Interval:
    """Return the score with a 95 % interval over the examples."""
    inputs, rows = predictions_of(learned, examples, encoder, max_length=max_length)
    return learned.task_kind.measure(metric, examples, inputs, rows, RESAMPLES)


def predictions_of(
    learned: Learned, examples: Sequence[Example], encoder: Encoder, *, max_length: int | None
) -> tuple[Inputs, list[np.ndarray]]:
    """Return the examples as rows, and the prediction for each row."""
    inputs = learned.task_kind.inputs(examples, encoder, max_length)
    return inputs, predictions(learned, inputs, encoder)


def predictions(learned: Learned, inputs: Inputs, encoder: Encoder) -> list[np.ndarray]:
    """Return the prediction for each row of the inputs."""
    task = Served("", Interface(learned.task_kind), lambda: learned)
    return Predictor(encoder, Limits(slots=1)).predict([(task, segment) for segment in inputs.segments])
