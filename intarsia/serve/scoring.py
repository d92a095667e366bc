"""The score of a task on labelled examples, computed as the task is served."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.encoder.encoder import Encoder
from intarsia.serve.predictor import Predictor
from intarsia.tasks.examples import Example
from intarsia.tasks.learned import Learned
from intarsia.tasks.metrics import Interval

RESAMPLES = 1000  # of a bootstrap interval


def score(
    learned: Learned, examples: Sequence[Example], encoder: Encoder, *, metric: str, max_length: int | None
) -> Interval:
    """With a 95 % bootstrap interval over the examples."""
    inputs = learned.task_kind.inputs(examples, encoder, max_length)
    predictor = Predictor(encoder, lambda _: learned, slots=1)
    predictions = predictor.predict([("", segment) for segment in inputs.segments])
    return learned.task_kind.measure(metric, examples, inputs, predictions, RESAMPLES)
