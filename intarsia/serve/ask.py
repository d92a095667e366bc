"""What a request asks, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from intarsia.errors import IntarsiaError
from intarsia.serve.prediction import Prediction, Text


class Ask(NamedTuple):
    """One row of a request."""

    task: str | None  # None: the plain base, for `embed`
    text: Text
    version: int | None = None  # None: the version that the bank serves
    embed: bool = False  # answer with the pooled state in place of a prediction
    swap: tuple[tuple[str, str], ...] = ()  # (a parent of the task, the task whose inlay takes its place)


class Answer(NamedTuple):
    """The answer to one ask: a prediction, a vector, or the error of this row alone."""

    ask: Ask
    prediction: Prediction | None = None
    vector: np.ndarray | None = None  # float32 [width]
    error: IntarsiaError | None = None
    version: int | None = None  # the version that answered
    kind: str | None = None  # the task kind
    tokens: int = 0
    truncated: bool = False  # the text was longer than the task's maximum length


@dataclass
class Timing:
    """Where the time of a call went, in seconds."""

    tokenization: float = 0.0  # also resolving names, reading inlays and checking inputs
    queue: float = 0.0  # from admission to the first pass
    inference: float = 0.0  # from the first pass to the end of the last
    total: float = 0.0
