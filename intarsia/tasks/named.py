"""Data by name: a public task that `intarsia data list` prints, or any other source of `load_data`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from intarsia.errors import DataError, IntarsiaWarning
from intarsia.tasks.data import load_data
from intarsia.tasks.examples import TaskData


def load_named(source: Any, *, seed: int = 0, limit: int | None = None, **options: Any) -> TaskData:
    """Load a public task such as `glue/cola` from the data folder (INTARSIA_DATA, else `data`), or any other source.

    An existing file or folder wins over a task's name. A sample of a public task is loaded with a warning.
    """
    if not _is_public(source):
        return load_data(source, seed=seed, limit=limit, **options)
    from intarsia.tasks.suites.loading import load

    given = sorted(name for name, value in options.items() if value)
    if given:
        raise DataError(
            f"{source} is a public task, whose columns and kind are known: leave out {', '.join(given)}. "
            f"For a data set of the hub, write hub:{source}."
        )
    task = load(source, partial=True, seed=seed, limit=limit)
    if task.source["partial"]:
        warnings.warn(
            f"{source} is a sample in the data folder: results on it are not results on the public task.",
            IntarsiaWarning,
            stacklevel=2,
        )
    return task


def _is_public(source: Any) -> bool:
    if not isinstance(source, str) or "/" not in source or Path(source).expanduser().exists():
        return False
    from intarsia.tasks.suites.registry import SUITES

    return any(task.full_name == source for suite in SUITES.values() for task in suite.tasks)
