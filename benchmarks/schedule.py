"""How well the queue of a cluster is divided: 10,000 jobs on 8, 64 and 512 devices, simulated with measured step times.

    python benchmarks/schedule.py --output results/schedule.json

First it measures training steps here: passes of 1 to 9 jobs, on MiniLM and one thread. A line through the times gives
the seconds of a step from its tokens. Then it simulates the code that directs a cluster (`make_batches`, `Dispatcher`)
with these times, on devices of different speed. The figure is the makespan, the time from the first step to the last,
in multiples of the lower bound: all work divided by the speed of all devices, or the longest batch on the fastest one.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from intarsia.encoder.shape import Shape  # noqa: E402
from intarsia.methods import Bottleneck, Full, LoRA  # noqa: E402
from intarsia.tasks.examples import Example, TaskData  # noqa: E402
from intarsia.train.batches import Batch, PlannedJob, make_batches, sort_key  # noqa: E402
from intarsia.train.dispatch import Dispatcher  # noqa: E402
from intarsia.train.job import Job, Settings  # noqa: E402

JOBS, DEVICES, POLL, REPORT = 10_000, (8, 64, 512), 10.0, 60.0
WAYS = ("longest first, stragglers copied", "longest first", "in the order given")


def measure(rounds: int) -> tuple[list[dict[str, float]], float, float]:
    """Return the measured passes, and the line through them: seconds of a pass, and seconds of a token."""
    import torch

    from intarsia.encoder.encoder import Encoder
    from intarsia.train.run import Run
    from intarsia.train.step import step_together

    torch.set_num_threads(1)
    encoder, rng = Encoder.load("minilm"), np.random.default_rng(0)
    words = [word for word in encoder.tokenizer.get_vocab() if word.isalpha()]
    passes = []
    for together, length in ((1, 10), (1, 40), (3, 10), (3, 40), (9, 10)):
        texts = [" ".join(rng.choice(words, length)) for _ in range(96)]
        rows = [Example(text, None, "ab"[i % 2]) for i, text in enumerate(texts)]
        data = TaskData("label", ("a", "b"), rows, rows[:8], rows[:8], {"sha256": str(length)})
        runs = [Run(Job("task", data, Bottleneck(64), settings=Settings(seed=n)), encoder) for n in range(together)]
        pairs = [(run, range(32)) for run in runs]
        step_together(pairs)
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            step_together(pairs)
            times.append(time.perf_counter() - began)
        tokens = float(sum(run.tokens["train"].lengths[:32].sum() for run in runs))
        passes.append({"jobs": together, "tokens": tokens, "seconds": statistics.median(times)})
        print(f"{together} jobs, {tokens:5.0f} tokens: {passes[-1]['seconds']:.3f} s a pass", flush=True)
    slope, fixed = np.polyfit([p["tokens"] for p in passes], [p["seconds"] for p in passes], 1)
    return passes, max(0.0, float(fixed)), float(slope)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a job computes: steps of so many tokens."""

    steps: int
    tokens: float


def make_jobs(rng: np.random.Generator) -> tuple[list[Job], dict[str, Work]]:
    """Return 10,000 jobs: 100 tasks of 200 to 20,000 rows with grids of methods, rates, epochs and seeds."""
    jobs, work = [], {}
    one = Example("text", None, "a")
    for task in range(100):
        rows, length = int(np.exp(rng.uniform(np.log(200), np.log(20_000)))), float(rng.uniform(10, 60))
        data = TaskData("label", ("a", "b"), [one], [one], [one], {"sha256": str(task)})
        for number in range(JOBS // 100):
            method = Full() if number % 50 == 49 else (Bottleneck(8), Bottleneck(64), LoRA(8))[number % 3]
            epochs = (3, 10)[number % 2]
            settings = Settings(learning_rate=1e-4 * (1 + number % 5), epochs=epochs, seed=number // 30)
            jobs.append(Job(f"{task}/{number}", data, method, settings=settings))
            work[jobs[-1].name] = Work(epochs * -(-rows // 32), 32 * length)
    return jobs, work


def seconds_of(batch: Batch, work: dict[str, Work], fixed: float, slope: float) -> float:
    """Return the time of a batch on a device of speed 1: jobs with fewer steps leave the passes earlier."""
    total, done = 0.0, 0
    left = sorted((work[planned.job.name] for planned in batch.jobs), key=lambda one: one.steps)
    while left:
        total += (left[0].steps - done) * (fixed + slope * sum(one.tokens for one in left))
        done = left[0].steps
        left = left[1:]
    return total


def simulate(
    batches: list[Batch], times: dict[str, float], speeds: list[float], way: str, deaths: list[tuple[float, int]]
) -> float:
    """Return the makespan. `deaths`: (time, device); a dead device comes back after a minute, without its work since
    the last checkpoint (every 60 s)."""
    if way == WAYS[2]:
        batches = [Batch((dataclasses.replace(batch.jobs[0], cost=1.0), *batch.jobs[1:])) for batch in batches]
        batches = [Batch(tuple(dataclasses.replace(one, cost=1.0 / len(b.jobs)) for one in b.jobs)) for b in batches]
    queue = Dispatcher(batches, steals=way == WAYS[0])
    running: dict[int, tuple[str, float, float, int]] = {}  # device: batch, start, share at the start, token
    events: list[tuple[float, int, str, int]] = [(at, device, "death", 0) for at, device in deaths]
    events += [(0.0, device, "idle", 0) for device in range(len(speeds))]
    heapq.heapify(events)
    away, idle, token, last, polling = set[int](), set[int](), 0, 0.0, False

    def share(device: int, now: float) -> float:
        name, began, before, _ = running[device]
        return min(1.0, before + (now - began) * speeds[device] / times[name])

    while not queue.over:
        now, device, kind, number = heapq.heappop(events)
        if kind == "death" and device not in away:
            if device in running:
                began, before = running[device][1:3]
                if now - began > REPORT:  # what the last checkpoint holds
                    queue.progress(str(device), share(device, began + (now - began) // REPORT * REPORT), now)
                    queue.checkpoint(str(device))
                del running[device]
            queue.lost(str(device))
            idle.discard(device)
            away.add(device)
            heapq.heappush(events, (now + 60.0, device, "back", 0))
        elif kind == "end" and device in running and running[device][3] == number:
            last = now
            del running[device]
            for other in queue.complete(str(device), now):
                queue.give_up(other)
                running.pop(int(other), None)
                idle.add(int(other))
            idle.add(device)
        elif kind in ("idle", "back"):
            away.discard(device)
            idle.add(device)
        elif kind == "poll":
            polling = False
        if not queue.waiting and queue.steals and idle:
            for busy in running:
                queue.progress(str(busy), share(busy, now), now)
                if now - running[busy][1] > REPORT:
                    queue.checkpoint(str(busy))
        for free in sorted(idle):
            batch = queue.take(str(free), now)
            if batch is None:
                break
            idle.discard(free)
            token += 1
            before = queue.attempts[str(free)].done_before
            running[free] = (batch.name, now, before, token)
            heapq.heappush(events, (now + times[batch.name] * (1 - before) / speeds[free], free, "end", token))
        if idle and not queue.waiting and queue.steals and not polling:
            polling = True
            heapq.heappush(events, (now + POLL, -1, "poll", 0))
    return last


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    from transformers import BertConfig

    from intarsia import provenance

    passes, fixed, slope = measure(given.rounds)
    rng = np.random.default_rng(0)
    jobs, work = make_jobs(rng)
    shape = Shape.of(BertConfig())
    rows: list[dict[str, Any]] = []
    for together in (None, 1):
        costs = [work[job.name].steps * work[job.name].tokens for job in jobs]
        planned = [PlannedJob(job.name, job, cost) for job, cost in zip(jobs, costs, strict=True)]
        began = time.perf_counter()
        batches = make_batches(sorted(planned, key=sort_key), shape, lambda job: work[job.name].tokens, together)
        planning = time.perf_counter() - began
        times = {batch.name: seconds_of(batch, work, fixed, slope) for batch in batches}
        print(f"{len(batches)} batches, planned in {planning:.1f} s", flush=True)
        for devices in DEVICES:
            alike, mixed = [1.0] * devices, np.exp(rng.normal(0, 0.2, devices)).tolist()
            mixed[: devices // 8] = [speed / 4 for speed in mixed[: devices // 8]]  # every eighth is a slow machine
            for machines, speeds in (("alike", alike), ("an eighth four times slower", mixed)):
                bound = max(sum(times.values()) / sum(speeds), max(times.values()) / max(speeds))
                dead = [(float(at), int(rng.integers(devices))) for at in rng.uniform(0, bound, devices // 2)]
                for deaths in ((), dead):
                    for way in WAYS:
                        began = time.perf_counter()
                        makespan = simulate(batches, times, speeds, way, list(deaths))
                        rows.append({
                            "devices": devices, "machines": machines, "deaths": len(deaths), "together": together,
                            "way": way, "bound_seconds": bound, "makespan_seconds": makespan,
                            "times_the_bound": makespan / bound, "simulated_in": time.perf_counter() - began,
                        })  # fmt: skip
                        print(f"{devices:4} devices, {machines}, {len(deaths)} deaths, together {together}: "
                              f"{makespan / bound:.3f} × the bound of {bound:,.0f} s, {way}", flush=True)  # fmt: skip
    out = {
        "passes": passes, "line": {"seconds_a_pass": fixed, "seconds_a_token": slope}, "jobs": JOBS, "rows": rows,
        "provenance": {
            "machine": provenance.machine(), "versions": provenance.versions(), "seeds": [0],
            "command": f"python benchmarks/schedule.py --rounds {given.rounds}",
        },
    }  # fmt: skip
    given.output.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
