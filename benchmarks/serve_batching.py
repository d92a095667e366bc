"""Batches for the peers' services: whatever waits when the model is free, oldest first, without an added delay."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

Row = tuple[str, str]  # task, text
MOST = 128  # rows of a batch


class Batcher:
    """One thread owns the model; requests of the event loop wait for their rows."""

    def __init__(self, answer: Callable[[Sequence[Row]], Sequence[Any]]) -> None:
        self._answer = answer
        self._waiting: queue.SimpleQueue[tuple[Row, asyncio.AbstractEventLoop, asyncio.Future[Any]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, daemon=True).start()

    async def ask(self, task: str, text: str) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.put(((task, text), loop, future))
        return await future

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < MOST and not self._waiting.empty():
                batch.append(self._waiting.get())
            try:
                found: Sequence[Any] = self._answer([row for row, _, _ in batch])
            except Exception as error:  # the benchmark counts these requests as failed
                found = [error] * len(batch)
            loop = batch[0][1]
            loop.call_soon_threadsafe(_set, [future for _, _, future in batch], found)


def _set(futures: Sequence[asyncio.Future[Any]], values: Sequence[Any]) -> None:
    for future, value in zip(futures, values, strict=True):
        if future.done():
            continue
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
