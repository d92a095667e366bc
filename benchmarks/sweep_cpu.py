"""Nine jobs on CoLA on a CPU: together, one after another, and on cached trunk states; compared with `adapters`.

    python benchmarks/sweep_cpu.py --data $INTARSIA_DATA/glue/cola --output results/sweep-cpu.json

Each round measures every variant once, so that all variants see the same machine load. Times are wall-clock seconds per
job. They include training and validation for Intarsia, and only training for `adapters` (Houlsby 64 in its own worker,
with the same batches of 32).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
EPOCHS = 3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--limit", type=int, default=640, help="training examples (dev: a tenth)")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()

    import torch
    from peers import Worker

    from intarsia import provenance
    from intarsia.encoder.encoder import Encoder
    from intarsia.tasks import load_data
    from intarsia.tasks.examples import TaskData
    from intarsia.train.grid import Grid
    from intarsia.train.order import epoch_batches

    torch.set_num_threads(2)
    whole = load_data(given.data, limit=given.limit)
    data = TaskData(whole.kind, whole.labels, whole.train, whole.dev[: given.limit // 10], whole.test, whole.source)
    encoder = Encoder.load("minilm")
    rates = (1e-4, 3e-4, 1e-3)
    sizes = ("houlsby-8", "houlsby-64", "houlsby-256")
    jobs = Grid(sizes, learning_rate=rates, epochs=(EPOCHS,)).jobs("cola", data)
    upper = tuple(f"{size} layers=3-5" for size in sizes)
    upper_jobs = Grid(upper, learning_rate=rates, epochs=(EPOCHS,)).jobs("cola", data, trunk_dropout=False)
    single = [job for job in jobs if getattr(job.method, "size", 0) == 64][:1]
    single_upper = [job for job in upper_jobs if getattr(job.method, "size", 0) == 64][:1]

    def seconds(queue: list[Any], together: int) -> float:
        """Train the jobs and return the seconds per job."""
        from intarsia.train.loop import train_together

        began = time.perf_counter()
        train_together(queue, encoder, together=together, done=lambda *_: None)
        return (time.perf_counter() - began) / len(queue)

    lengths = [len(e.text) for e in data.train]
    batches = epoch_batches(lengths, 32, 0, 0)
    texts = [[data.train[r].text for r in batch] for batch in batches]
    targets = [[data.labels.index(str(data.train[r].label)) for r in batch] for batch in batches]
    found: dict[str, list[float]] = {}
    script = str(HERE / "worker_adapters.py")
    with Worker(str(HERE.parent / ".venv-adapters/bin/python"), script) as adapters:
        versions = adapters.ask(do="versions")
        adapters.ask(do="setup_train", method="houlsby", size=64, labels=2, texts=texts, targets=targets, threads=2)
        for _ in range(given.rounds):
            steps = adapters.ask(do="train_steps", batches=list(range(len(batches))) * EPOCHS)
            ways = {
                "adapters, Houlsby 64, one job": sum(steps["seconds"]),
                "one job of size 64": seconds(single, 1),
                "nine jobs one after another": seconds(jobs, 1),
                "nine jobs together": seconds(jobs, 9),
                "one job of size 64 in the upper half, states below stored": seconds(single_upper, 1),
                "nine jobs together in the upper half, states below stored": seconds(upper_jobs, 9),
            }
            for way, took in ways.items():
                found.setdefault(way, []).append(took)
                print(f"{took:7.2f} s per job: {way}", flush=True)
    middle = {way: statistics.median(times) for way, times in found.items()}
    peer = middle["adapters, Houlsby 64, one job"]
    out: dict[str, Any] = {
        "seconds_a_job": found,
        "median": middle,
        "times_less_than_adapters": {way: peer / took for way, took in middle.items()},
        "together_against_one_after_another": middle["nine jobs one after another"] / middle["nine jobs together"],
        "settings": {"epochs": EPOCHS, "train": len(data.train), "dev": len(data.dev), "threads": 2, "batch": 32},
        "provenance": {
            "machine": provenance.machine(), "versions": {**provenance.versions(), **versions},
            "command": f"python benchmarks/sweep_cpu.py --data cola --rounds {given.rounds} --limit {given.limit}",
            "seeds": [0],
        },
    }  # fmt: skip
    given.output.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    for way, ratio in out["times_less_than_adapters"].items():
        print(f"{ratio:5.2f}× less time per job than adapters: {way}")
    print(f"{out['together_against_one_after_another']:.2f}× from sharing passes")


if __name__ == "__main__":
    main()
