"""Data by name: a public task that `intarsia data list` prints, or any other source of `load_data`; and once more the
data that a task was learned from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.errors import DataError, IntarsiaWarning, did_you_mean
from intarsia.tasks.data import load_data, load_examples
from intarsia.tasks.examples import Example, Kind, TaskData


def load_named(source: Any, *, seed: int = 0, limit: int | None = None, **options: Any) -> TaskData:
    """Load a public task such as `glue/cola` from the data folder (INTARSIA_DATA, else `data`), or any other source.

    An existing file or folder wins over a task's name. A sample of a public task is loaded with a warning.
    """
    if not _is_public(source):
        _check_near_names(source)
        return load_data(source, seed=seed, limit=limit, **options)
    return _load_public(source, options, seed=seed, limit=limit)


def load_named_examples(
    source: Any,
    *,
    kind: Kind,
    labels: tuple[str, ...],
    learned_from: Mapping[str, str | None] | None = None,
    **options: Any,
) -> list[Example]:
    """Load labelled examples to evaluate on: the test part of a public task, or any other source of `load_examples`."""
    if not _is_public(source):
        _check_near_names(source)
        return load_examples(source, kind=kind, labels=labels, learned_from=learned_from, **options)
    task = _load_public(source, options)
    if task.kind != kind:
        raise DataError(f"{source} is of the kind {task.kind}; expected data of the kind {kind}, as the task's.")
    return load_examples({"test": list(task.test)}, kind=kind, labels=labels)


def load_again(kind: Kind, source: Mapping[str, Any]) -> TaskData:
    """Load the data that a task was learned from once more; `source` is what its inlay says about it.

    It may have changed: `source["sha256"]` tells.
    """
    seed, limit = source.get("seed") or 0, source.get("limit")
    if source.get("suite"):
        return _load_public(source["suite"], {}, seed=seed, limit=limit)
    path = source.get("path")
    place = source.get("files") if source.get("from") == "files" else Path(path) if path else source.get("hub")
    if not place:
        raise DataError("The task was learned from data in memory: give the data to score it again.")
    if source.get("config"):
        place = f"{place}:{source['config']}"
    columns = {role: name for role, name in (source.get("columns") or {}).items() if name}
    form = {name: source[name] for name in ("sep", "encoding") if source.get(name)}
    return load_data(
        place, kind=kind, seed=seed, limit=limit, drop_missing="dropped" in source, **columns, **form,
    )  # fmt: skip


def _load_public(source: str, options: Mapping[str, Any], *, seed: int = 0, limit: int | None = None) -> TaskData:
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
    return _is_name(source) and source in _public_names()


def _is_name(source: Any) -> bool:
    return isinstance(source, str) and "/" in source and not Path(source).expanduser().exists()


def _public_names() -> list[str]:
    from intarsia.tasks.suites.registry import SUITES

    return [task.full_name for suite in SUITES.values() for task in suite.tasks]


def _check_near_names(source: Any) -> None:
    """Raise if a name is almost that of a public task, before a hub is asked."""
    if (
        not _is_name(source)
        or ":" in source
        or source.partition("/")[0] not in {n.partition("/")[0] for n in _public_names()}
    ):
        return
    if meant := did_you_mean(source, _public_names()):
        raise DataError(
            f"there is no file or public task {source!r}.{meant} `intarsia data list` has all. For a data set of the "
            f"hub, write hub:{source}."
        )
