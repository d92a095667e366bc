"""Signals that end a process, during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C, `kill`, a closed terminal; Windows has no SIGHUP


class Interrupted(KeyboardInterrupt):
    """Training was interrupted by a signal, and its state is stored; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Interrupts:
    """Delays Ctrl-C, SIGTERM and SIGHUP until the step is complete and saved: a checkpoint must not hold half a step.

    The second signal interrupts at once. A signal that the process ignores (`nohup`) stays ignored, and SIGTERM and
    SIGHUP keep a handler that the program has set.
    """

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        """`stop`: whether other code asks for the same; it counts as Ctrl-C."""
        self.stop = stop
        self.number: int | None = None  # of the signal that came first
        self.previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        if self.number is None and self.stop():
            self.number = int(signal.SIGINT)
        return self.number is not None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
                handler = signal.getsignal(number)
                own = handler is not None and handler is not signal.SIG_IGN
                if own and (number == signal.SIGINT or handler is signal.SIG_DFL):
                    self.previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if self.number is not None:
            raise Interrupted(number)
        self.number = number

    def obey(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.requested:
            assert self.number is not None
            raise Interrupted(self.number)
