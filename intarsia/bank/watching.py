"""Who watches a call of `learn` or `sweep`: a bar or table, the caller's functions, trackers, and the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from intarsia.display.log import log_watch
from intarsia.display.show import learning_progress
from intarsia.errors import IntarsiaError
from intarsia.trackers import Callbacks, callbacks_of
from intarsia.train.progress import Watch
from intarsia.train.runner import RunnerWatch, join_watchers

Shown = AbstractContextManager[RunnerWatch | None]


@contextmanager
def watching(
    name: str,
    progress: bool | None,
    watch: Watch | None,
    callbacks: Callbacks | None,
    *,
    show: Callable[[bool | None], Shown] | None = None,
) -> Iterator[RunnerWatch | None]:
    """Yield a watcher that calls all who watch; None if nobody does. Callbacks with a method `close` are closed at the
    end. `show` yields the display (None: a bar for one run, a table for several)."""
    if watch is not None and not callable(watch):
        raise IntarsiaError(f"watch: expected a function, found a {type(watch).__name__}.")
    called = callbacks_of(callbacks)
    if progress is None and watch is not None:
        progress = False  # the caller shows it
    with ExitStack() as closing:
        for each in called:
            if callable(close := getattr(each, "close", None)):
                closing.callback(close)
        shown = closing.enter_context((show or (lambda where: learning_progress(name, where)))(progress))
        yield join_watchers(watch, *called, shown, log_watch())
