"""Ctrl-C during training."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """Delays Ctrl-C until the step is complete and saved, because a checkpoint must not contain half a step."""

    def __init__(self) -> None:
        self.requested = False
        self.previous: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _note(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt  # a second Ctrl-C interrupts immediately
        self.requested = True

    def obey(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.requested:
            raise KeyboardInterrupt
