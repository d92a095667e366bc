"""A submitted request: its state between the threads of its caller and the engine's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from intarsia.errors import DeadlineExceeded, IntarsiaError
from intarsia.serve.answering import answers
from intarsia.serve.ask import Answer, Ask, Timing
from intarsia.serve.preparing import Prepared


class Call:
    """The answers to come. The engine fills the outputs in; `result` decodes them in the caller's thread."""

    def __init__(self, asks: Sequence[Ask], began: float, deadline: float | None) -> None:
        """`began`, `deadline`: in the seconds of `time.monotonic`."""
        self.asks, self.began, self.deadline = asks, began, deadline
        self.timing = Timing()
        self.cancelled = False
        self._prepared: Prepared | None = None
        self._error: IntarsiaError | None = None  # of the whole call
        self._left = 0  # rows without outputs
        self._admitted = self._first_pass = began
        self._finished = threading.Event()
        self._callbacks: list[Callable[[Call], None]] = []
        self._lock = threading.Lock()
        self._answers: list[Answer] | None = None

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    @property
    def open(self) -> bool:
        """Whether rows of this call should still run."""
        return not self.cancelled and not self.done

    def result(self, timeout: float | None = None) -> list[Answer]:
        """Wait, and return the answers in the order of the asks. Raises `DeadlineExceeded` if the call's deadline
        passed, and `TimeoutError` after `timeout` seconds."""
        if not self._finished.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        if self._answers is None:
            assert self._prepared is not None
            self._answers = answers(self.asks, self._prepared)
        return self._answers

    def cancel(self) -> None:
        """Drop the rows that are in no pass yet; `result` then raises."""
        self.cancelled = True
        self.fail(IntarsiaError("the call was cancelled."))

    def add_done_callback(self, function: Callable[[Call], None]) -> None:
        """Call `function` once the call is done: in the engine's thread, or now if it is done."""
        with self._lock:
            if not self.done:
                self._callbacks.append(function)
                return
        function(self)

    # The engine's side.

    def admit(self, prepared: Prepared, now: float) -> None:
        self._prepared, self._admitted = prepared, now
        self._left = sum(len(group.inputs.segments) for group in prepared.groups)
        self.timing.tokenization = now - self.began
        if self._left == 0:
            self.finish()

    def start_pass(self, now: float) -> None:
        if self._first_pass == self.began:
            self._first_pass = now
            self.timing.queue = now - self._admitted

    def take(self, rows: int) -> None:
        """Count rows whose outputs are there."""
        self._left -= rows
        if self._left == 0:
            self.finish()

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now > self.deadline

    @property
    def late(self) -> bool:
        """Whether the call ended because its deadline passed."""
        return isinstance(self._error, DeadlineExceeded)

    def expire(self) -> None:
        """Drop the rows that are in no pass yet, because the deadline passed; `result` then raises."""
        self.fail(DeadlineExceeded("the deadline of the call passed before all of its rows were answered."))

    def fail(self, error: IntarsiaError) -> None:
        """End the whole call with an error, unless it has ended."""
        self.finish(error)

    def finish(self, error: IntarsiaError | None = None) -> None:
        with self._lock:
            if self.done:
                return
            now = time.monotonic()
            self._error = error
            self.timing.inference = now - self._first_pass if self._first_pass != self.began else 0.0
            self.timing.total = now - self.began
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            function(self)
