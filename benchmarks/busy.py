"""A busy machine: how fast training and serving are while other processes use the cores.

    python benchmarks/busy.py --output results/busy.json

Ways of waiting (a thread that waits for the others after each operation):
    before     it spins for 300,000 rounds, which is the default of the OpenMP library
    sleep      it sleeps at once
    now        it spins for 1,000 rounds, then sleeps: what `import intarsia` sets
    one        one thread, which waits for nobody

Loads: nothing; other processes that compute without end, on one core and on all; and a service beside a learning job
(two processes of Intarsia at once, each with all threads). A round measures all ways under one load, one after another,
so that all see the same machine. The number is training steps a second (a batch of 32 short questions, Houlsby 64) and
single answers a second. `share` is the speed in relation to `now` on the quiet machine. The file is written after each
load.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WAYS: dict[str, dict[str, str]] = {
    "before": {"GOMP_SPINCOUNT": "300000"},
    "sleep": {"OMP_WAIT_POLICY": "PASSIVE"},
    "now": {},
    "one": {"OMP_NUM_THREADS": "1"},
}
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
HOG = "x = 0\nwhile True:\n    x += 1\n"
QUESTIONS = (
    "who wrote {}",
    "where is {} from",
    "how many people live in {}",
    "when did {} begin",
    "what is {} made of",
)
NAMES = ("the river", "this old city", "the long war", "a small boat", "the first computer", "that famous song")


def work(kind: str, seconds: float) -> None:
    """Train (or answer) for some seconds in this process; print how many steps (answers) there were in a second."""
    sys.path.insert(0, str(HERE.parent))
    import time

    from intarsia import Bottleneck, Settings
    from intarsia.encoder.encoder import Encoder
    from intarsia.tasks import Example, TaskData
    from intarsia.train.job import Job
    from intarsia.train.run import Run
    from intarsia.train.step import step_together

    encoder = Encoder.load("minilm")
    texts = [question.format(name) for question in QUESTIONS for name in NAMES] * 8
    examples = [Example(text, None, "ab"[i % 2]) for i, text in enumerate(texts)]
    data = TaskData("label", ("a", "b"), examples, examples[:32], [], {})
    run = Run(Job("busy", data, Bottleneck(64), settings=Settings(epochs=1000)), encoder)
    segments = encoder.tokenize(texts)

    def train(number: int) -> None:
        step_together([(run, [(32 * number + i) % len(texts) for i in range(32)])])

    def answer(number: int) -> None:
        import torch

        from intarsia.encoder.packed import pack

        with torch.no_grad():
            encoder.forward(pack([segments[number % len(segments)]]))

    once = train if kind == "train" else answer
    once(0)
    print("ready", flush=True)
    sys.stdin.readline()
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds:
        once(count)
        count += 1
    print(json.dumps(count / (now - began)), flush=True)


def start(kind: str, way: str, seconds: float) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES} | WAYS[way]
    command = [sys.executable, str(HERE / "busy.py"), "--work", kind, "--seconds", str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def measure(kinds: tuple[str, ...], way: str, seconds: float) -> list[float]:
    """Run the kinds of work at once, each in its process, and return their speeds."""
    running = [start(kind, way, seconds) for kind in kinds]
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"a worker did not start ({' and '.join(kinds)}, {way})")
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [float(process.communicate()[0]) for process in running]


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Let processes compute without end meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--output", type=Path, help="loads that this file has are not measured again")
    options.add_argument("--note", help="what else ran on the machine")
    options.add_argument("--work", choices=("train", "answer"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.work:
        work(given.work, given.seconds)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
    if given.output is None:
        options.error("--output is required")
    sys.path.insert(0, str(HERE.parent))

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loads: dict[str, tuple[tuple[str, ...], int]] = {
        "quiet, training": (("train",), 0),
        "quiet, answers": (("answer",), 0),
        "one core taken, training": (("train",), 1),
        "one core taken, answers": (("answer",), 1),
        "all cores taken, training": (("train",), cores),
        "a service beside a learning job": (("train", "answer"), 0),
    }
    found: dict[str, dict[str, list[list[float]]]] = {}
    if given.output.exists():
        found = json.loads(given.output.read_text(encoding="utf-8"))["a_second"]
    for load, (kinds, taken) in loads.items():
        if load in found:
            continue
        ways: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for _ in range(given.rounds):
            with hogs(taken):
                for way in WAYS:
                    speeds = measure(kinds, way, given.seconds)
                    ways[way].append(speeds)
                    print(f"{load}, {way}: {', '.join(f'{speed:.2f}' for speed in speeds)} a second", flush=True)
        found[load] = ways
        store(given, {name: loads[name][0] for name in found}, found, cores)


def store(
    given: argparse.Namespace,
    kinds: dict[str, tuple[str, ...]],
    found: dict[str, dict[str, list[list[float]]]],
    cores: int,
) -> None:
    """Write what has been measured so far."""
    from intarsia import provenance

    middle = {
        load: {way: [statistics.median(column) for column in zip(*rounds, strict=True)] for way, rounds in ways.items()}
        for load, ways in found.items()
    }
    quiet = {"train": middle["quiet, training"]["now"][0]}
    if "quiet, answers" in middle:
        quiet["answer"] = middle["quiet, answers"]["now"][0]
    shares = {
        load: {
            way: {kind: speed / quiet[kind] for kind, speed in zip(kinds[load], speeds, strict=True)}
            for way, speeds in ways.items()
        }
        for load, ways in middle.items()
        if set(kinds[load]) <= quiet.keys()
    }
    out: dict[str, Any] = {
        "a_second": found,
        "median": middle,
        "share": shares,
        "ways": WAYS,
        "settings": {"seconds": given.seconds, "rounds": given.rounds, "cores": cores, "batch": 32},
        "provenance": {
            "machine": provenance.machine(),
            "versions": provenance.versions(),
            "command": f"python benchmarks/busy.py --seconds {given.seconds:g} --rounds {given.rounds}",
            "seeds": [0],
        },
    }
    if given.note:
        out["note"] = given.note
    given.output.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
