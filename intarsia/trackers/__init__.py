"""Trackers: callbacks that log training runs to TensorBoard, MLflow or Weights & Biases.

bank.learn("topic", "topics.csv", callbacks=["tensorboard:runs/"])

A tracker is one file here and one line in `TRACKERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError, check_extra, did_you_mean

if TYPE_CHECKING:
    from intarsia.train.runner import RunnerEvent, RunnerWatch

Callbacks = Sequence["str | Callable[[RunnerEvent], Any]"]

TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}  # module of the library → our class


def check_name(text: str) -> None:
    """Raise unless `text` names a tracker whose library is installed. This imports neither the library nor PyTorch."""
    name = text.partition(":")[0]
    if name not in TRACKERS:
        raise IntarsiaError(
            f"the tracker {text!r} is not known.{did_you_mean(name, TRACKERS)} "
            "Expected tensorboard:FOLDER, mlflow:FILE.db or its server's address, or wandb:PROJECT."
        )
    check_extra(name, name)


def open_tracker(text: str) -> RunnerWatch:
    """Return the tracker for a text such as `tensorboard:runs/`; without a place, each has a default."""
    from importlib import import_module

    check_name(text)
    name, _, place = text.partition(":")
    made: RunnerWatch = getattr(import_module(f"intarsia.trackers.{name}"), TRACKERS[name])(place or None)
    return made


def callbacks_of(callbacks: Callbacks | None) -> list[RunnerWatch]:
    """Return callbacks as functions: names of trackers become trackers."""
    if callbacks is not None and (isinstance(callbacks, str) or not isinstance(callbacks, Sequence)):
        raise IntarsiaError(
            f"callbacks: expected a list of functions and names of trackers, found a {type(callbacks).__name__}."
        )
    wrong = [type(each).__name__ for each in callbacks or () if not isinstance(each, str) and not callable(each)]
    if wrong:
        raise IntarsiaError(
            f"callbacks: expected functions and names of trackers such as 'tensorboard:runs/', found a {wrong[0]}."
        )
    return [open_tracker(each) if isinstance(each, str) else each for each in callbacks or ()]
