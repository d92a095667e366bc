"""What a user should know before a task is learned: other labels, a label that dominates, texts that are cut."""

from __future__ import annotations

import warnings
from typing import Any

from intarsia.bank import succession
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaWarning
from intarsia.tasks.examples import TaskData
from intarsia.tasks.lengths import propose, truncation
from intarsia.tasks.notes import imbalance


def advise(
    store: Store,
    encoder: Encoder,
    name: str,
    data: TaskData,
    max_length: int,
    *,
    metric: Any = None,
    class_weights: Any = None,
) -> None:
    """Warn of what the data and the settings mean for the task. None: the caller gave no such setting."""
    succession.warn_of_changes(store, name, data)
    if metric is None and class_weights is None and (note := imbalance(data)) is not None:
        _warn(note)
    found = truncation(data, encoder, max_length)
    if found is not None:
        better = propose(data, encoder, max_length)
        advice = f" --max-length {better.tokens} (or auto): {better}." if better.tokens > found.max_length else ""
        _warn(f"{found}.{advice}")


def _warn(text: str) -> None:
    warnings.warn(text, IntarsiaWarning, stacklevel=4)
