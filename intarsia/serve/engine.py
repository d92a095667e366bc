"""The engine: requests of many threads in shared passes, one thread that owns the device.

Callers resolve, check and tokenize their own asks and have their inlays read into host memory (`preparing.py`,
`staged.py`). The engine's thread packs whatever waits into the next pass, oldest first, without an artificial delay,
copies the tasks of that pass into slots, runs it, and hands the outputs back.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import EngineClosed, IntarsiaError, Overloaded, PassFailed, Replaced, RequestTooLong
from intarsia.serve.ask import Answer, Ask
from intarsia.serve.call import Call
from intarsia.serve.limits import Limits
from intarsia.serve.packing import PlannedPass, Row
from intarsia.serve.predictor import PassRow, Predictor
from intarsia.serve.preparing import Prepared, Resolve, prepare
from intarsia.serve.served import Served
from intarsia.serve.staged import HostTier, Staged, stage
from intarsia.serve.statistics import EngineStats, Statistics

PROBE = "a"  # the text of `Engine.probe`
PART, PARTS_RUNNING = 512, 3  # asks that `answer` submits at a time, and how many parts may run
TRIES = 8  # attempts of a call when other processes replace its tasks meanwhile
LETTERS = 6  # of a token: few texts have more
CUT = 16  # tokens: few tasks cut their texts below that
CLOSED = "the engine is closed; open the bank again."


class Running(NamedTuple):
    """A started pass."""

    rows: list[Row]
    needed: dict[str, Staged | None]
    outputs: Callable[[], list[Any]]  # waits for them
    began: float


class Engine:
    """Answers asks from any number of threads over one encoder."""

    def __init__(self, encoder: Encoder, resolve: Resolve, limits: Limits | None = None) -> None:
        """`resolve` returns the served task of a name and a version (None: the version that is served)."""
        self.encoder, self.resolve = encoder, resolve
        self.predictor = Predictor(encoder, limits)
        self.limits = self.predictor.limits
        self.host = HostTier(self.limits.host_bytes or 1)
        self.statistics = Statistics()
        self._readers = ThreadPoolExecutor(self.limits.readers, thread_name_prefix="intarsia-reader")
        self._waiting: deque[Row] = deque()
        self._waiting_tokens = 0
        self._loading: set[str] = set()  # keys that a reader loads again
        self._tasks: deque[Callable[[], None]] = deque()  # other work for the owner of the device
        lock = threading.RLock()
        self._wake, self._room = threading.Condition(lock), threading.Condition(lock)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="intarsia-engine", daemon=True)
        self._thread.start()

    # The callers' side.

    def submit(self, asks: Sequence[Ask], *, deadline: float | None = None, truncate: bool = True) -> Call:
        """Admit a request, whole or not at all, and return its call. Raises `Overloaded` if too much waits already.

        `deadline` is a time of `time.monotonic`. Without `truncate`, a text that is too long gets an error.
        """
        return self._submit(asks, deadline, truncate, self.resolve, wait=False)

    def _submit(
        self, asks: Sequence[Ask], deadline: float | None, truncate: bool, resolve: Resolve, *, wait: bool
    ) -> Call:
        """`wait`: wait for room in the queue instead of raising `Overloaded`."""
        call = Call(list(asks), time.monotonic(), deadline)
        if not wait:
            self.check_room(asks)
        prepared = self._prepared(call.asks, truncate, resolve)
        tokens = prepared.tokens
        rows = [
            Row(call, group, i, place, segment, len(segment.ids), group.key)
            for group in prepared.groups
            for i, (place, segment) in enumerate(zip(group.row_places(), group.inputs.segments, strict=True))
        ]
        # In the order of the asks, so that the rows of one text are in one pass, in which they share layers.
        rows.sort(key=attrgetter("place"))
        for group in prepared.groups:
            group.outputs = [None] * len(group.inputs.segments)
        with self._wake:
            while wait and self._is_full(tokens) and not self._closed:
                self._room.wait()
            self._refuse_if_full(tokens if not wait else 0)
            call.admit(prepared, time.monotonic())
            self._waiting.extend(rows)
            self._waiting_tokens += tokens
            self._wake.notify()
        self.statistics.admitted(call, prepared)
        return call

    def answer(self, asks: Sequence[Ask], *, deadline: float | None = None, truncate: bool = True) -> list[Answer]:
        """Return the answers of any number of asks, for callers that wait: nothing is refused because too much waits.

        Parts of the asks are tokenized while earlier parts run.
        """
        resolve = cache(self.resolve)  # all parts ask the same versions
        answers: list[Answer] = []
        running: deque[Call] = deque()
        for first in range(0, len(asks), PART):
            part = asks[first : first + PART]
            running.append(self._submit(part, deadline, truncate, resolve, wait=True))
            if len(running) == PARTS_RUNNING:
                answers += self._result(running.popleft(), truncate)
        while running:
            answers += self._result(running.popleft(), truncate)
        return answers

    def _result(self, call: Call, truncate: bool) -> list[Answer]:
        for _ in range(TRIES):
            try:
                return call.result()
            except Replaced:  # a version left memory and its file at once: resolve again
                call = self._submit(call.asks, call.deadline, truncate, self.resolve, wait=True)
        return call.result()

    def probe(self) -> None:
        """Run one real pass of the plain base. Raises what went wrong."""
        (answer,) = self.answer([Ask(None, PROBE, embed=True)])
        if answer.error is not None:
            raise answer.error

    def load(self, name: str) -> None:
        """Bring a task to the device."""
        served = self.resolve(name, None)
        staged = self._staged(served)
        self._on_device(lambda: self.predictor.residents.hold({served.key: lambda: staged}))

    def unload(self, name: str) -> None:
        """Remove a task from the device and from host memory."""
        self.drop(self.resolve(name, None).key)

    def drop(self, key: str) -> None:
        """Remove one version from the device and from host memory. Rows that wait for it have it read again."""
        self.host.drop(key)
        self._on_device(lambda: self.predictor.residents.drop(key))

    def retire(self, key: str) -> None:
        """Let a version be the first that leaves memory: no new request will ask it, but some may wait for it."""
        self.host.retire(key)
        self._on_device(lambda: self.predictor.residents.retire(key), wait=False)

    def resident(self, key: str) -> bool:
        """Whether a version is on the device."""
        return any(key in slots.residents for slots in list(self.predictor.shapes.values())) or (
            key in self.predictor.residents.own_weights
        )

    def at_hand(self, name: str, version: int | None) -> bool:
        """Whether a task is on the device, as far as is known without reading a file."""
        known = getattr(self.resolve, "known", None)
        served = None if known is None else known(name, version)
        return served is not None and self.resident(served.key)

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters."""
        with self._wake:
            oldest = self._waiting[0].call.began if self._waiting else None
            queue = len(self._waiting), self._waiting_tokens
        return self.statistics.snapshot(queue, oldest, self.predictor.residents, self.host)

    def close(self, *, drain: bool = True) -> None:
        """Stop the engine. With `drain`, rows that wait are answered first; else their calls fail."""
        with self._wake:
            self._closed = True
            self._room.notify_all()
            dropped = [] if drain else list(self._waiting)
            if not drain:
                self._waiting.clear()
                self._waiting_tokens = 0
            self._wake.notify()
        for row in dropped:
            row.call.fail(EngineClosed(CLOSED))
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._readers.shutdown(wait=True)

    def check_room(self, asks: Sequence[Ask]) -> None:
        """Raise `Overloaded` if `submit` would do so, as far as that is known before the texts are tokenized."""
        least = _least_tokens(asks)
        self._refuse_if_full(least if least <= (self.limits.queue_tokens or 0) else 0)

    def _is_full(self, tokens: int) -> bool:
        return self._waiting_tokens > 0 and self._waiting_tokens + tokens > (self.limits.queue_tokens or 0)

    def _refuse_if_full(self, tokens: int) -> None:
        limit = self.limits.queue_tokens or 0
        if self._closed:
            raise EngineClosed(CLOSED)
        if tokens > limit:
            raise RequestTooLong(
                f"the request has {tokens} tokens; the queue takes at most {limit}. Send it in several parts."
            )
        if self._is_full(max(tokens, 1)):
            self.statistics.refused += 1
            seconds = self.statistics.seconds_for(self._waiting_tokens)
            raise Overloaded(f"{self._waiting_tokens} tokens wait already; the limit is {limit}. Try again.", seconds)

    def _prepared(self, asks: Sequence[Ask], truncate: bool, resolve: Resolve) -> Prepared:
        """Return the rows of a call, with their inlays in memory."""
        for _ in range(TRIES):
            prepared = prepare(asks, resolve, self.encoder, truncate=truncate)
            self._stage_all(prepared)
            if not any(isinstance(error, Replaced) for error in prepared.errors.values()):
                break
            resolve = self.resolve  # another process has just replaced one of the tasks: resolve them again
        return prepared

    def _stage_all(self, prepared: Prepared) -> None:
        """Read the inlays that are neither on the device nor in host memory; a damaged one fails its own asks."""
        cold = [group for group in prepared.groups if group.served is not None and not self.resident(group.served.key)]
        if len(cold) > 1:
            futures = [self._readers.submit(self._staged, group.served) for group in cold if group.served]
            results: list[Callable[[], Any]] = [future.result for future in futures]
        else:
            results = [lambda group=group: self._staged(group.served) for group in cold]  # type: ignore[misc]
        for group, result in zip(cold, results, strict=True):
            try:
                result()
            except Exception as error:
                prepared.errors.update(dict.fromkeys(group.places, _as_answer(error)))
                prepared.groups.remove(group)

    def _staged(self, served: Served) -> Staged:
        return self.host.get(served.key, lambda: stage(served.load(), self.encoder, self.host.get))

    # The engine's thread.

    def _run(self) -> None:
        running: deque[Running] = deque()
        # A GPU runs one pass while the next one is prepared. On a CPU a started pass is over: its answers go at once.
        most = 1 if self.encoder.device.type == "cpu" else 2
        while True:
            with self._wake:
                while not (running or self._tasks or self._closed or self._waiting):
                    self._wake.wait()
                if self._closed and not (running or self._waiting or self._tasks):
                    return
                tasks, self._tasks = self._tasks, deque()
            for task in tasks:
                task()
            with self._wake:
                rows, needed = self._next_pass()
                if not (rows or running) and self._waiting and not self._tasks:
                    self._wake.wait(0.05)  # all that waits is being read again
            if rows and (started := self._start(rows, needed)) is not None:
                running.append(started)
            if running and (not rows or len(running) == most):
                self._finish(running.popleft())

    def _next_pass(self) -> tuple[list[Row], dict[str, Staged | None]]:
        """Take the rows of the next pass from the queue, oldest first, and the staged tasks to load for it."""
        if not self._waiting:
            return [], {}
        now, budget = time.monotonic(), self.limits.pass_tokens or 1
        planned = PlannedPass(self.predictor, self.host)
        rows: list[Row] = []
        left: list[Row] = []
        runs: dict[Call, bool] = {}  # whether the rows of a call should still run
        waiting, tokens = self._waiting, 0
        while waiting:
            row = waiting.popleft()
            if row.call not in runs:
                runs[row.call] = row.call.open and not row.call.expired(now)
            if not runs[row.call]:
                self._leave(row)
                continue
            if rows and tokens + row.size > budget:
                left.append(row)
                break
            joined = planned.join(row)
            if joined is None:
                self._read_again(row)
            if not joined:
                left.append(row)
                continue
            rows.append(row)
            tokens += row.size
        waiting.extendleft(reversed(left))
        self._waiting_tokens -= tokens
        self._room.notify_all()
        return rows, {key: planned.tasks[key] for key in planned.joined}

    def _leave(self, row: Row) -> None:
        """Count a row that leaves the queue without a pass: its call has ended, or its deadline has passed."""
        self._waiting_tokens -= row.size
        if row.call.open:
            row.call.expire()
        else:
            self.statistics.cancelled += 1

    def _read_again(self, row: Row) -> None:
        """Have a reader load a task that left both tiers while the row waited."""
        served = row.group.served
        assert served is not None
        if served.key in self._loading:
            return
        self._loading.add(served.key)

        def read() -> None:
            error: IntarsiaError | None = None
            try:
                self._staged(served)
            except Exception as raised:
                error = _as_answer(raised)
            with self._wake:
                self._loading.discard(served.key)
                lost = [r for r in self._waiting if error is not None and r.key == served.key]
                for waiting in lost:
                    self._waiting.remove(waiting)
                    self._waiting_tokens -= waiting.size
                self._wake.notify()
            for call in {r.call for r in lost}:
                assert error is not None
                call.fail(error)

        self._readers.submit(read)

    def _start(self, rows: list[Row], needed: dict[str, Staged | None]) -> Running | None:
        began = time.monotonic()
        for call in {row.call for row in rows}:
            call.start_pass(began)
        try:
            return Running(rows, needed, self._outputs(rows, needed), began)
        except Exception as error:
            self._run_apart(rows, needed, error)
            return None

    def _finish(self, running: Running) -> None:
        rows = running.rows
        try:
            outputs = running.outputs()
        except Exception as error:
            self._run_apart(rows, running.needed, error)
            return
        keys = len({row.key for row in rows})
        tokens = sum(row.size for row in rows)
        self.statistics.ran(rows=len(rows), tokens=tokens, tasks=keys, began=running.began)
        self._hand_out(rows, outputs)

    def _outputs(self, rows: list[Row], needed: dict[str, Staged | None]) -> Callable[[], list[Any]]:
        held = self.predictor.residents.hold({key: partial(_present, staged) for key, staged in needed.items()})
        asked = [PassRow(row.key, row.segment, row.group.embed) for row in rows]
        return self.predictor.start(asked, held)

    def _run_apart(self, rows: list[Row], needed: dict[str, Staged | None], error: Exception) -> None:
        """After a failed pass: run each task alone, so that only the faulty one fails."""
        keys = list(dict.fromkeys(row.key for row in rows))
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        for key in keys:
            own = [row for row in rows if row.key == key]
            try:
                outputs = self._outputs(own, {} if key is None else {key: needed[key] or self._again(own[0])})()
            except Exception as again:
                self.statistics.errors += 1
                for call in {row.call for row in own}:
                    call.fail(_as_answer(again))
                continue
            self._hand_out(own, outputs)

    def _again(self, row: Row) -> Staged | None:
        served = row.group.served
        assert served is not None
        return None if self.predictor.residents.find(served.key) else self._staged(served)

    def _hand_out(self, rows: list[Row], outputs: list[Any]) -> None:
        for row, output in zip(rows, outputs, strict=True):
            row.group.outputs[row.index] = output
        for call, count in Counter(row.call for row in rows).items():
            call.take(count)

    def _on_device(self, task: Callable[[], Any], *, wait: bool = True) -> None:
        """Have the engine's thread run a task between two passes."""
        done = threading.Event()
        raised: list[BaseException] = []

        def run() -> None:
            try:
                task()
            except BaseException as error:
                raised.append(error)
            done.set()

        with self._wake:
            if self._closed:
                raise EngineClosed(CLOSED)
            self._tasks.append(run)
            self._wake.notify()
        if wait:
            done.wait()
            if raised:
                raise raised[0]


def _least_tokens(asks: Sequence[Ask]) -> int:
    """Return a number of tokens that few requests stay under; a task may cut its texts."""
    return sum(2 + min(len(ask.text) // LETTERS, CUT) if isinstance(ask.text, str) else 2 for ask in asks)


def _present(staged: Staged | None) -> Staged:
    assert staged is not None, "a task that is not resident was staged when the pass was planned"
    return staged


def _as_answer(error: Exception) -> IntarsiaError:
    """Return the error that a caller gets."""
    if isinstance(error, IntarsiaError):
        return error
    wrapped = PassFailed(f"the pass failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
