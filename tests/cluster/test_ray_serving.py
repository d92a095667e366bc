"""The service on a cluster: replicas that are killed lose no admitted request, and give no wrong answer."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from intarsia import Bottleneck
from intarsia.bank.bank import Bank
from intarsia.service.options import Options
from tests.cluster.conftest import STORE
from tests.support.families import opinions, save_tiny
from tests.support.service import QUICK, TEXTS

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray and its libraries warn
TASKS = [f"task{number}" for number in range(6)]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    content: Any


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def ask(port: int, method: str, path: str, body: Any = None, timeout: float = 60) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(text) if text else None)
    finally:
        connection.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bank with six tasks, and its base."""
    base = save_tiny(tmp_path_factory.mktemp("base"))
    folder = tmp_path_factory.mktemp("bank") / "bank"
    bank = Bank(folder, base)
    for number, task in enumerate(TASKS):
        bank.learn(task, opinions(seed=number), method=Bottleneck(4), settings=QUICK)
    return folder, Path(base)


def rows_of(rng: random.Random) -> list[dict[str, str]]:
    return [{"task": rng.choice(TASKS), "input": rng.choice(TEXTS)} for _ in range(rng.randrange(1, 5))]


@pytest.fixture
def service(cluster: Any, folders: tuple[Path, Path]) -> Iterator[Any]:
    """Start the service with given options; return its port."""
    from ray import serve

    from intarsia.cluster.replica import ServedBank
    from intarsia.cluster.serving import Scale, start

    def begin(scale: Scale, limits: dict[str, int] | None = None, **options: Any) -> int:
        cluster.add_node(num_cpus=scale.most, object_store_memory=STORE)
        port = free_port()
        served = ServedBank(
            str(folders[0]), str(folders[1]), options=Options(port=port, **options), limits=limits or {}
        )
        start(served, scale)
        return port

    try:
        yield begin
    finally:
        serve.shutdown()


def pids() -> list[int]:
    """The processes of the replicas that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::ServeReplica:intarsia:Replica"):
                found.append(int(path.parent.name))
    return found


def test_replicas_that_are_killed_lose_no_request(service: Any, folders: tuple[Path, Path]) -> None:
    from intarsia.cluster.serving import Scale

    bank = Bank(folders[0], str(folders[1]))
    expected = {(task, text): bank.predict(task, [text])[0].to_dict() for task in TASKS for text in TEXTS}
    port = service(Scale(3, 3, cores=1), timeout_ms=60_000)
    over, problems, seen, count = threading.Event(), list[str](), Counter[str](), [0]

    def load(number: int) -> None:
        rng = random.Random(number)
        while not over.is_set():
            rows = rows_of(rng)
            try:
                answer = ask(port, "POST", "/v1/predict", {"requests": rows})
            except OSError as error:
                problems.append(f"connection: {error!r}")
                continue
            if answer.status != 200:
                problems.append(f"{answer.status} {answer.content}")
                continue
            count[0] += 1
            seen[answer.headers["x-replica"]] += 1
            for row, result in zip(rows, answer.content["results"], strict=True):
                for name, value in expected[row["task"], row["input"]].items():
                    if result.get(name) != value and json.loads(json.dumps(value)) != result.get(name):
                        problems.append(f"wrong: {row} {name} {value} {result}")

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    rng, killed, deadline = random.Random(1), set[int](), time.monotonic() + 120
    try:
        while len(killed) < 3 and time.monotonic() < deadline:
            before, alive = count[0], sorted(set(pids()) - killed)
            if len(alive) >= 2:
                killed.add(victim := rng.choice(alive))
                os.kill(victim, signal.SIGKILL)
            while count[0] < before + 30 and time.monotonic() < deadline and not problems:
                over.wait(0.05)
        while len(seen) < 4 and time.monotonic() < deadline and not problems:  # until a new replica has answered
            over.wait(0.05)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not problems, problems[:5]
    assert len(killed) == 3 and len(seen) >= 4 and count[0] >= 90


def test_requests_of_a_task_go_to_one_replica_and_new_versions_are_seen_at_once(
    service: Any, folders: tuple[Path, Path]
) -> None:
    from intarsia.cluster.serving import Scale

    port = service(Scale(3, 3, cores=1))
    replicas = {
        task: {
            ask(port, "POST", f"/v1/tasks/{task}/predict", {"inputs": TEXTS[:1]}).headers["x-replica"] for _ in range(5)
        }
        for task in TASKS
    }
    assert all(len(names) == 1 for names in replicas.values())  # one at a time: the owner is never full
    assert len(set.union(*replicas.values())) >= 2
    bank = Bank(folders[0], str(folders[1]))
    entry = bank.learn(TASKS[0], opinions(seed=77), method=Bottleneck(4), settings=QUICK, serve_anyway=True)
    stored, versions = time.monotonic(), dict[str, set[int]]()

    def send() -> None:
        answer = ask(port, "POST", f"/v1/tasks/{TASKS[0]}/predict", {"inputs": TEXTS * 20})
        versions.setdefault(answer.headers["x-replica"], set()).add(answer.content["results"][0]["version"])

    while len(versions) < 3 and time.monotonic() < stored + 60:  # many at once: they spill over to all replicas
        burst = [threading.Thread(target=send) for _ in range(40)]
        for thread in burst:
            thread.start()
        for thread in burst:
            thread.join()
    assert len(versions) == 3 and all(found == {entry.version} for found in versions.values())


def test_overload_is_answered_with_429(service: Any) -> None:
    from intarsia.cluster.serving import Scale

    port = service(Scale(2, 2, cores=1), limits={"queue_tokens": 64, "pass_tokens": 64})
    found, together = Counter[int](), threading.Barrier(24)
    retry: list[str] = []

    def send() -> None:
        together.wait()
        for _ in range(3):
            answer = ask(port, "POST", "/v1/predict", {"tasks": TASKS[:1], "inputs": ["good film " * 4] * 4})
            found[answer.status] += 1
            if answer.status == 429:
                retry.append(answer.headers["retry-after"])
                assert answer.content["error"]["type"] == "overloaded_error"

    threads = [threading.Thread(target=send) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {200, 429} and len(retry) == found[429]


def test_replicas_come_and_go_without_an_error(service: Any) -> None:
    from intarsia.cluster.serving import Scale

    port = service(Scale(1, 3, cores=1, target=1, upscale_seconds=1, downscale_seconds=3))
    over, problems, seen = threading.Event(), list[str](), Counter[str]()

    def load(number: int) -> None:
        rng = random.Random(number)
        while not over.is_set():
            answer = ask(port, "POST", "/v1/predict", {"requests": rows_of(rng)})
            if answer.status != 200:
                problems.append(f"{answer.status} {answer.content}")
            else:
                seen[answer.headers["x-replica"]] += 1

    def wait_for(replicas: int, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while len(pids()) != replicas and time.monotonic() < deadline and not problems:
            over.wait(0.5)
        return len(pids())

    threads = [threading.Thread(target=load, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    grown = wait_for(3, 90)
    deadline = time.monotonic() + 60
    while len(seen) < 2 and time.monotonic() < deadline and not problems:  # a new replica answers
        over.wait(0.1)
    over.set()
    for thread in threads:
        thread.join()
    over.clear()
    lonely = threading.Thread(target=load, args=(99,))
    lonely.start()
    shrunk = wait_for(1, 90)
    over.set()
    lonely.join()
    assert not problems, problems[:5]
    assert grown == 3 and shrunk < 3 and len(seen) >= 2
