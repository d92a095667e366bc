"""The state of a running service: its bank, limits, keys, counters and jobs."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from intarsia.errors import IntarsiaError
from intarsia.memory import settle
from intarsia.service.catalog import base_name
from intarsia.service.door import Door
from intarsia.service.errors import Failure, failure_of
from intarsia.service.metrics import Metrics
from intarsia.service.options import Keys, Options
from intarsia.service.tracing import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from intarsia.bank.bank import Bank
    from intarsia.serve.engine import Engine
    from intarsia.service.jobs import JobBoard

Out = TypeVar("Out")
WORKERS = 8  # threads that tokenize, read headers and add files
PROBE_SECONDS = 5.0


class Service:
    """One bank, as it is served. Handlers run in the event loop's thread; slow calls go to `threads`."""

    def __init__(self, bank: Bank, options: Options, keys: Keys, jobs: JobBoard | None = None) -> None:
        self.bank, self.options, self.keys, self.jobs = bank, options, keys, jobs
        self.door = Door(keys)
        self.metrics = Metrics()
        self.tracer = Tracer.of()
        self.threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="intarsia-http")
        self.engine: Engine | None = None
        self.failed: IntarsiaError | None = None  # why the engine could not start
        self.draining = asyncio.Event()
        self.streams = 0
        self._probe: asyncio.Future[Any] | None = None
        self._probed = 0.0
        self.openapi = self.docs = b""
        self.on_failure: Callable[[], None] | None = None  # ends the server
        self.on_ready: Callable[[Engine], None] | None = None  # says so

    def begin(self) -> None:
        """Continue the jobs of an earlier run. Called when the application starts."""
        if self.jobs is not None:
            self.jobs.begin()

    def load(self) -> None:
        """Load the encoder and start the engine, in a thread of its own; may take seconds."""
        engine = self.bank.engine
        engine.probe()
        settle()
        self._probed = time.monotonic()
        self.engine = engine
        if self.on_ready is not None:
            self.on_ready(engine)

    def fail(self, error: IntarsiaError) -> None:
        """The engine cannot start: remember why, and end the server."""
        self.failed = error
        if self.on_failure is not None:
            self.on_failure()

    @property
    def base_name(self) -> str:
        return base_name(self.running().encoder.name)

    @property
    def precision(self) -> str:
        return self.bank.precision or str(self.running().encoder.dtype).removeprefix("torch.")

    def running(self) -> Engine:
        """The engine; raises 503 before it runs and while the service ends."""
        if self.draining.is_set():
            raise Failure(503, "The service is ending.", code="draining", retry_after=2, close=True)
        if self.engine is None:
            raise Failure(503, "The service is loading its encoder.", code="loading", retry_after=2)
        return self.engine

    async def in_thread(self, function: Callable[..., Out], *args: Any, **kwargs: Any) -> Out:
        """The function's result; errors of the library become failures."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.threads, partial(function, *args, **kwargs))
        except IntarsiaError as error:
            raise self.failure(error) from error

    def failure(self, error: IntarsiaError, task: str | None = None) -> Failure:
        return failure_of(error, self.bank.store.folder, task)

    async def check_ready(self) -> None:
        """Raise 503 unless a recent pass has ended and no row waits for too long. Without a recent pass, run one."""
        engine = self.running()
        stats, stale = engine.stats(), self.options.stale_seconds
        if stats.oldest_wait > stale:
            raise Failure(503, f"The oldest row has waited for {stats.oldest_wait:.0f} seconds.", code="stale_queue",
                          retry_after=5)  # fmt: skip
        if time.monotonic() - max(stats.last_pass or 0.0, self._probed) <= stale:
            return
        if self._probe is None or self._probe.done():
            self._probe = asyncio.get_running_loop().run_in_executor(self.threads, engine.probe)
        try:
            await asyncio.wait_for(asyncio.shield(self._probe), PROBE_SECONDS)
        except Exception as error:
            reason = "took too long" if isinstance(error, TimeoutError) else "failed"
            raise Failure(503, f"A pass of the base {reason}.", code="no_pass", retry_after=5) from error
        self._probed = time.monotonic()

    def close(self) -> None:
        """Answer what was admitted, and end."""
        if self.jobs is not None:
            self.jobs.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
        if self.engine is not None:
            self.engine.close(drain=True)
        if self.tracer is not None:
            self.tracer.close()
