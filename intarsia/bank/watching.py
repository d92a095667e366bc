"""Who watches a call of `learn` or `sweep`: a bar or table, the caller's functions, and the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from intarsia.display.log import log_watch
from intarsia.display.show import learning_progress
from intarsia.errors import IntarsiaError
from intarsia.train.progress import Watch
from intarsia.train.runner import RunnerWatch, join_watchers


@contextmanager
def watching(
    name: str,
    progress: bool | None,
    watch: Watch | None,
    events: RunnerWatch | None,
    *,
    explain_grid: str | None = None,
) -> Iterator[RunnerWatch | None]:
    """Yield a watcher that calls all who watch; None if nobody does."""
    for option, function in (("watch", watch), ("events", events)):
        if function is not None and not callable(function):
            raise IntarsiaError(f"{option}: expected a function, found a {type(function).__name__}.")
    if progress is None and (watch is not None or events is not None):
        progress = False  # the caller shows it
    with learning_progress(name, progress, explain_grid=explain_grid) as shown:
        yield join_watchers(watch, events, shown, log_watch())
