"""What Ray costs on this machine: a sweep with one actor against none, start-up times, and requests a second.

    python benchmarks/ray_overhead.py train --output results/ray.json
    python benchmarks/ray_overhead.py serve --output results/ray.json

Needs Ray (`make test-ray` makes an environment). `train` runs the same sweep in this process and by one actor of one
core, with equal results, in turns. `serve` asks a bank of eight tasks over MiniLM with 1, 16 and 64 rows a call:
through Ray Serve's proxy, a front and one replica, and through `intarsia serve`. Each part adds to the file.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
ROWS, CLIENTS, TASKS = (1, 16, 64), 8, 8
WORDS = "time year people way day man thing woman life child world school state family student group".split()


def texts(count: int, seed: int) -> list[dict[str, str]]:
    """Return rows of English words, labelled by the last of them."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        chosen = [*(rng.choice(WORDS) for _ in range(12)), ("good", "bad")[number % 2]]
        rows.append({"text": " ".join(chosen), "label": ("yes", "no")[number % 2]})
    return rows


def sweep_once(folder: Path, rows: int, epochs: int, ray: bool) -> tuple[float, float, dict[str, float | None]]:
    """Return the seconds of a sweep of six jobs, those before the first step, and the scores by job."""
    from intarsia.cluster.training import RayWorkers
    from intarsia.encoder.encoder import Encoder
    from intarsia.tasks import load_data
    from intarsia.train.grid import Grid
    from intarsia.train.runner import JobResult, Runner, RunnerEvent, using

    class Results:
        def __init__(self) -> None:
            self.found: dict[str, JobResult] = {}

        def find(self, job: Any, key: str) -> JobResult | None:
            return self.found.get(key)

        def add(self, job: Any, key: str, outcome: Any) -> JobResult:
            self.found[key] = JobResult.of(job, key, outcome)
            return self.found[key]

    encoder = Encoder.load("minilm")
    grid = Grid(("houlsby-8", "houlsby-64"), learning_rate=(3e-4, 1e-3, 3e-3), epochs=(epochs,))
    jobs = grid.jobs("task", load_data(texts(rows, 0)))
    results, first = Results(), [0.0]

    def watch(event: RunnerEvent) -> None:
        if event.progress is not None and not first[0]:
            first[0] = time.perf_counter()

    began = time.perf_counter()
    with using(RayWorkers(most=1) if ray else None):
        Runner(jobs, encoder, folder, results, watch=watch).run(together=3)
    return time.perf_counter() - began, first[0] - began, {key: found.dev for key, found in results.found.items()}


def train(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    from intarsia.cluster.connection import connected

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"none": [], "one actor": [], "until the first step, one actor": []}
    began = time.perf_counter()
    with connected("local"):
        found["start of Ray"] = [time.perf_counter() - began]
        for _ in range(given.rounds):
            scores = []
            for ray in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    seconds, first, score = sweep_once(Path(folder), given.rows, given.epochs, ray)
                scores.append(score)
                found["one actor" if ray else "none"].append(seconds)
                if ray:
                    found["until the first step, one actor"].append(first)
                print(f"{seconds:6.1f} s, first step after {first:4.1f} s, {int(ray)} actors", flush=True)
            assert scores[0] == scores[1], "the results differ"
    none, one = (statistics.median(found[name]) for name in ("none", "one actor"))
    ready = statistics.median(found["until the first step, one actor"])
    return {
        "seconds": found, "overhead": one / none - 1, "overhead_without_the_start": (one - ready) / none - 1,
        "jobs": 6, "rows": given.rows, "epochs": given.epochs, "threads": 1,
    }  # fmt: skip


def load(port: int, rows: int, seconds: float) -> tuple[float, float]:
    """Return requests a second of `CLIENTS` clients, and the median latency in seconds."""
    content = [row["text"] for row in texts(64, 1)]
    over, latencies = threading.Event(), list[float]()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asks = [{"task": f"task{(number + i) % TASKS}", "input": content[i % 64]} for i in range(rows)]
        body = json.dumps({"requests": asks}).encode()
        while not over.is_set():
            began = time.perf_counter()
            connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            latencies.append(time.perf_counter() - began)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(2)  # warm-up
    latencies.clear()
    began = time.perf_counter()
    time.sleep(seconds)
    counted, took = len(latencies), time.perf_counter() - began
    over.set()
    for thread in threads:
        thread.join()
    return counted / took, statistics.median(latencies[:counted])


@contextlib.contextmanager
def own_service(bank: Path) -> Iterator[int]:
    """Run `intarsia serve` on one thread; yield its port."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, "-m", "intarsia.cli", "serve", "--bank", str(bank), "--port", "8171", "--log", "none"]
    process = subprocess.Popen([*command, "--no-jobs"], env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(8171)
        yield 8171
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def ray_service(bank: Path) -> Iterator[int]:
    """Serve with one replica of one core through Ray Serve; yield the port."""
    from ray import serve

    from intarsia.cluster.connection import connected
    from intarsia.cluster.replica import ServedBank
    from intarsia.cluster.serving import Scale, start
    from intarsia.service.options import Options

    with connected("local"):
        start(ServedBank(str(bank), options=Options(port=8172, log="none")), Scale())
        try:
            wait_until_ready(8172)
            yield 8172
        finally:
            serve.shutdown()


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise SystemExit("the service did not start")


def serving(given: argparse.Namespace) -> dict[str, Any]:
    import intarsia
    from intarsia import Bottleneck, Settings

    rows: list[dict[str, Any]] = []
    starts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        bank = Path(folder) / "bank"
        made = intarsia.open(bank)
        for number in range(TASKS):
            made.learn(f"task{number}", texts(60, number), method=Bottleneck(64), settings=Settings(epochs=1))
        del made
        for name, service in (("intarsia serve", own_service), ("Ray Serve", ray_service)):
            began = time.perf_counter()
            with service(bank) as port:
                starts[name] = time.perf_counter() - began
                for count in ROWS:
                    requests, latency = load(port, count, given.seconds)
                    rows.append({
                        "service": name, "rows_a_call": count, "requests_a_second": requests,
                        "rows_a_second": requests * count, "median_latency_ms": 1000 * latency,
                    })  # fmt: skip
                    print(
                        f"{name}: {count:2} rows a call, {requests:7.1f} requests/s, {requests * count:8.1f} rows/s, "
                        f"{1000 * latency:6.1f} ms", flush=True,
                    )  # fmt: skip
    return {"rows": rows, "start_seconds": starts, "clients": CLIENTS, "tasks": TASKS, "replicas": 1, "threads": 1}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=("train", "serve"))
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--rows", type=int, default=800)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    from importlib.metadata import version

    from intarsia import provenance

    figures = train(given) if given.part == "train" else serving(given)
    shown = " ".join(f"--{name} {getattr(given, name)}" for name in ("rounds", "rows", "epochs", "seconds"))
    figures["provenance"] = {
        "machine": provenance.machine(), "versions": {**provenance.versions(), "ray": version("ray")}, "seeds": [0],
        "command": f"python benchmarks/ray_overhead.py {given.part} {shown}",
    }  # fmt: skip
    before = json.loads(given.output.read_text()) if given.output.is_file() else {}
    given.output.write_text(json.dumps({**before, given.part: figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
