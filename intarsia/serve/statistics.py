"""What an engine counted."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.serve.call import Call
    from intarsia.serve.preparing import Prepared
    from intarsia.serve.resident import Residents
    from intarsia.serve.staged import HostTier

RECENT = 2048  # calls whose times are kept
FIRST_GUESS = 20_000.0  # tokens a second, before any pass ran


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Counters run from the start of the engine."""

    calls: int
    rows: int  # that passes answered
    tokens: int
    passes: int
    tasks_in_passes: int  # the sum over passes of the number of different tasks
    truncated: int  # asks
    errors: int  # asks that got an error
    refused: int  # calls, because too much waited
    expired: int  # calls whose deadline passed
    cancelled: int  # rows that ran in no pass because their call had ended
    busy: float  # seconds in passes
    queue_rows: int
    queue_tokens: int
    oldest_wait: float  # seconds
    last_pass: float | None  # the time (`time.monotonic`) at which a pass last ended
    resident: int  # tasks on the device
    slots: dict[str, tuple[int, int]]  # by method shape: used, all
    slot_bytes: int
    host_bytes: int
    host_tasks: int
    host_hits: int
    file_loads: int
    evictions: int
    recent: list[float] = field(repr=False)  # seconds that recent calls took


class Statistics:
    """Counters of one engine. The engine's thread and its callers write; a lost count would be a lie, so they lock."""

    def __init__(self) -> None:
        self.calls = self.rows = self.tokens = self.passes = self.tasks_in_passes = 0
        self.truncated = self.errors = self.refused = self.expired = self.cancelled = 0
        self.busy = 0.0
        self.last_pass: float | None = None
        self.recent: deque[float] = deque(maxlen=RECENT)
        self._lock = threading.Lock()

    def admitted(self, call: Call, prepared: Prepared) -> None:
        with self._lock:
            self.calls += 1
            self.truncated += prepared.truncated
            self.errors += len(prepared.errors)
        call.add_done_callback(self._ended)

    def _ended(self, call: Call) -> None:
        self.recent.append(call.timing.total)
        if call.late:
            with self._lock:
                self.expired += 1

    def ran(self, *, rows: int, tokens: int, tasks: int, began: float) -> None:
        now = time.monotonic()
        with self._lock:
            self.rows += rows
            self.tokens += tokens
            self.passes += 1
            self.tasks_in_passes += tasks
            self.busy += now - began
            self.last_pass = now

    def seconds_for(self, tokens: int) -> float:
        """Return how long this many tokens take, at the speed so far."""
        return tokens * (self.busy / self.tokens if self.tokens else 1 / FIRST_GUESS)

    def snapshot(
        self, queue: tuple[int, int], oldest: float | None, residents: Residents, host: HostTier
    ) -> EngineStats:
        slots = {
            f"{key[0]}-{number}": (len(shape.residents), shape.capacity)
            for number, (key, shape) in enumerate(list(residents.shapes.items()))
        }
        with self._lock:
            return EngineStats(
                calls=self.calls, rows=self.rows, tokens=self.tokens, passes=self.passes,
                tasks_in_passes=self.tasks_in_passes, truncated=self.truncated, errors=self.errors,
                refused=self.refused, expired=self.expired, cancelled=self.cancelled,
                busy=self.busy, queue_rows=queue[0], queue_tokens=queue[1],
                oldest_wait=0.0 if oldest is None else time.monotonic() - oldest, last_pass=self.last_pass,
                resident=len(residents.keys()), slots=slots,
                slot_bytes=sum(shape.bytes for shape in list(residents.shapes.values())),
                host_bytes=host.bytes, host_tasks=len(host), host_hits=host.hits, file_loads=host.loads,
                evictions=residents.evictions, recent=list(self.recent),
            )  # fmt: skip
