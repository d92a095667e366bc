"""A service over a tiny bank: in a thread of the test, on a real socket; or in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from tests.support.families import opinions, tiny_with_words

QUICK = Settings(learning_rate=3e-3, epochs=2, batch_size=16)
TEXTS = ["good film", "an awful day", "the sun is so hot", "great big apple and a poor small plum"]
ROOT = Path(__file__).parents[2]


def small_bank(folder: Path, encoder: Encoder | str | None = None) -> Bank:
    """A bank with the tasks `opinion` (two versions), `pairs`, `rating` and `tags`."""
    bank = intarsia.open(folder, encoder or tiny_with_words())
    rows = opinions()
    bank.learn("opinion", rows, method=Bottleneck(8), settings=QUICK)
    bank.learn("opinion", opinions(seed=3), method=Bottleneck(8), settings=QUICK)
    pairs = [{"text_a": row["text"], "text_b": "it was so", "label": row["label"]} for row in rows]
    bank.learn("pairs", pairs, method=Bottleneck(4), settings=QUICK)
    rating = [{"text": row["text"], "label": 0.5 + i % 3} for i, row in enumerate(rows)]
    bank.learn("rating", rating, kind="score", method=Bottleneck(8), settings=QUICK)
    words = [row["text"].split() for row in rows]
    tagged = [{"tokens": w, "tags": ["A" if x in ("good", "great", "fine") else "O" for x in w]} for w in words]
    bank.learn("tags", tagged, method=Bottleneck(4), settings=QUICK)
    return bank


@dataclass
class Reply:
    """An answer, read whole."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Running:
    """A service that listens."""

    port: int
    service: Any = None
    seen: set[tuple[str, str, int]] = field(default_factory=set)  # method, route, status

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 30
    ) -> Reply:
        """One request on a connection of its own. Values become JSON; bytes are sent as they are."""
        given = dict(headers or {})
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if content is not None and "Content-Type" not in given:
            given["Content-Type"] = "application/json"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            connection.request(method, path, content, given)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.ask("POST", path, {} if body is None else body, headers)

    def raw(self, timeout: float = 30) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)


@contextlib.contextmanager
def running(
    bank: Bank, *, key: str | None = None, admin: str | None = None, jobs: bool = False, encoder: str | None = None,
    precision: str | None = None, **options: Any,
) -> Iterator[Running]:  # fmt: skip
    """A service in a thread of this process. Options are those of `intarsia serve`; `encoder` and `precision` are for
    the processes of jobs."""
    from intarsia.local_socket import Listener
    from intarsia.service.job_process import Worker
    from intarsia.service.jobs import JobBoard
    from intarsia.service.options import Keys, Options
    from intarsia.service.server import Server, _config, bind
    from intarsia.service.state import Service

    chosen = Options(**{"port": 0, "log": "none", "socket": False, "drain_seconds": 5.0, **options})
    worker = Worker(str(bank.store.folder), encoder, "cpu", precision)
    board = JobBoard(bank.store.folder, worker, chosen) if jobs else None
    service = Service(bank, chosen, Keys(key, admin), board)
    server = Server(_config(service, chosen), service)
    listening = bind(chosen)
    local = Listener(bank.store.folder) if chosen.socket else None
    sockets = [listening] + ([local.socket] if local is not None else [])
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets}, daemon=True)
    thread.start()
    made = Running(port, service)
    try:
        wait_until(lambda: service.engine is not None or service.failed is not None)
        assert service.failed is None, service.failed
        yield made
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        if local is not None:
            local.close()


def wait_until(true: Any, seconds: float = 60.0) -> None:
    """Wait for a condition; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        threading.Event().wait(0.01)


@dataclass
class Process:
    """`intarsia serve` in a process of its own."""

    popen: subprocess.Popen[str]
    running: Running

    def end(self, number: int) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(60)


@contextlib.contextmanager
def served(bank: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """`intarsia serve` over a bank whose encoder is a folder; ready when the block begins."""
    command = [sys.executable, "-m", "intarsia.cli", "serve", "--bank", str(bank), "--port", "0", "--log", "none"]
    popen = subprocess.Popen(
        [*command, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert popen.stderr is not None
    drain = threading.Thread(target=popen.stderr.read, daemon=True)
    try:
        first = popen.stderr.readline()
        assert " at http://127.0.0.1:" in first, first + popen.stderr.read()
        made = Running(int(first.split("127.0.0.1:")[1].split()[0]))
        drain.start()  # a full pipe would stop the service
        wait_until(lambda: made.get("/readyz").status == 200)
        yield Process(popen, made)
    finally:
        popen.kill()
        popen.wait(30)
        if drain.ident is not None:
            drain.join(30)
        popen.stderr.close()
