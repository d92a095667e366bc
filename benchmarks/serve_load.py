"""HTTP clients for the benchmark of services: closed loops, or arrivals at a fixed rate, over kept connections."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import uvloop  # the clients share the machine with the services: they must cost little

TIMEOUT = 60.0


@dataclass
class Load:
    """What the clients saw."""

    seconds: float = 0.0
    answered: list[float] = field(default_factory=list)  # latency of each 200
    refused: list[float] = field(default_factory=list)  # latency of each 429
    statuses: Counter[int] = field(default_factory=Counter)  # 0: no answer
    wrong_ids: int = 0  # answers with the id of another request
    skipped: int = 0  # arrivals for which no connection was free

    def summary(self) -> dict[str, Any]:
        return {
            "rows_per_second": round(len(self.answered) / self.seconds, 1),
            "p50_ms": _ms(quantile(self.answered, 0.5)),
            "p95_ms": _ms(quantile(self.answered, 0.95)),
            "p99_ms": _ms(quantile(self.answered, 0.99)),
            "statuses": {str(k): v for k, v in sorted(self.statuses.items())},
            "seconds": round(self.seconds, 1),
        }


def quantile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)


class Connection:
    """One connection that is kept."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, body: bytes, number: int) -> tuple[int, str]:
        """Send one request; return the status and the request id of the answer."""
        fresh = self.writer is None
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {number}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        try:
            answer = await self.reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self.close()
            if fresh or (isinstance(error, asyncio.IncompleteReadError) and error.partial):
                raise
            return await self.ask(body, number)  # the service had closed the idle connection: clients ask again
        lines = answer.lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        await self.reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            self.close()
        return int(lines[0].split()[1]), fields.get(b"x-request-id", b"").decode()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def _one(connection: Connection, body: bytes, number: int, load: Load) -> None:
    began = time.perf_counter()
    try:
        status, id = await asyncio.wait_for(connection.ask(body, number), TIMEOUT)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        connection.close()
        load.statuses[0] += 1
        return
    latency = time.perf_counter() - began
    load.statuses[status] += 1
    load.wrong_ids += id not in ("", str(number))  # only services that echo the id
    if status == 200:
        load.answered.append(latency)
    elif status == 429:
        load.refused.append(latency)


async def _closed(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    load, numbers = Load(), itertools.count()
    end = time.perf_counter() + seconds

    async def client() -> None:
        connection = Connection(port, path)
        while time.perf_counter() < end:
            number = next(numbers)
            await _one(connection, bodies[number % len(bodies)], number, load)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


async def _open(port: int, path: str, bodies: Sequence[bytes], rate: float, seconds: float, most: int) -> Load:
    """Arrivals at `rate` a second, over at most `most` connections."""
    load, free = Load(), [Connection(port, path) for _ in range(most)]
    running: set[asyncio.Task[None]] = set()

    async def arrive(connection: Connection, number: int) -> None:
        await _one(connection, bodies[number % len(bodies)], number, load)
        free.append(connection)

    began = time.perf_counter()
    for number in itertools.count():
        due = began + number / rate
        if due - began > seconds:
            break
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        if not free:
            load.skipped += 1
            await asyncio.sleep(0)
            continue
        task = asyncio.create_task(arrive(free.pop(), number))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running)
    load.seconds = time.perf_counter() - began  # with the answers to what waited at the end
    for connection in free:
        connection.close()
    return load


def closed_loop(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Clients that each ask again as soon as they have their answer."""
    return uvloop.run(_closed(port, path, bodies, clients, seconds))


def arrivals(port: int, path: str, bodies: Sequence[bytes], rate: float, seconds: float, most: int = 1024) -> Load:
    """Requests that arrive at a fixed rate, whether or not the service keeps up."""
    return uvloop.run(_open(port, path, bodies, rate, seconds, most))


def zipf(tasks: int, seed: int) -> Iterator[int]:
    """Numbers of tasks; task k is asked for in proportion to 1 / (k + 1)."""
    draw = random.Random(seed)
    weights = list(itertools.accumulate(1 / (k + 1) for k in range(tasks)))
    while True:
        yield from draw.choices(range(tasks), cum_weights=weights, k=1024)


def typical(values: Sequence[float]) -> float:
    return round(median(values), 3)
