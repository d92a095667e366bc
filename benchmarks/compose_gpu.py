"""Training steps of compositions on a GPU: recorded passes against eager ones, a stack and a fusion against an adapter.

    python benchmarks/compose_gpu.py --model all-mpnet-base-v2 --output results/compose-h200.json

Each step takes 32 texts of about 24 tokens for each job. `--model` is a folder; without weights in it, the model gets
random ones, which take the same time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from gpu import plain_model  # noqa: E402
from serve_gpu import sentences  # noqa: E402

from intarsia.encoder.encoder import Encoder  # noqa: E402
from intarsia.encoder.slots import start  # noqa: E402
from intarsia.methods import Fuse, Method, Parent, Pfeiffer, Stack  # noqa: E402
from intarsia.provenance import machine, versions  # noqa: E402
from intarsia.tasks import load_data  # noqa: E402
from intarsia.tasks.examples import TaskData  # noqa: E402
from intarsia.tasks.heads import Head  # noqa: E402
from intarsia.tasks.learned import HEAD, METHOD, Learned  # noqa: E402
from intarsia.tasks.task_kind import TaskKind  # noqa: E402
from intarsia.train.cuda_graph import GraphStepper  # noqa: E402
from intarsia.train.job import Job, Settings  # noqa: E402
from intarsia.train.run import Run  # noqa: E402
from intarsia.train.step import step_together  # noqa: E402

PARTS, ROWS, BATCH = 8, 600, 32
WARM_UP = {True: 18, False: 3}  # steps, by whether they are recorded
STEPS = {True: 60, False: 8}


def frozen(encoder: Encoder, method: Method) -> dict[str, Learned]:
    """Return inlays with random tensors, by digest."""
    head, kind, found = Head(2, "mean"), TaskKind("label", ("a", "b")), {}
    for number in range(PARTS):
        torch.manual_seed(number)
        tensors = {
            f"{METHOD}{k}": v.cpu() + 0.02 * torch.randn(v.shape)
            for k, v in start(method.tensors(encoder.shape), encoder, number).items()
        }
        tensors |= {f"{HEAD}{k}": v.cpu() for k, v in start(head.tensors(encoder.shape), encoder, number).items()}
        found[hashlib.sha256(str(number).encode()).hexdigest()] = Learned(method, head, kind, tensors)
    return found


def seconds_a_step(
    encoder: Encoder, data: TaskData, method: Method, parents: dict[str, Learned], jobs: int, *, recorded: bool
) -> float:
    settings = [Settings(batch_size=BATCH, seed=i, max_length=64) for i in range(jobs)]
    made = [Job(f"job{i}", data, method, "mean", settings[i], parents=parents) for i in range(jobs)]
    stepper = GraphStepper(made[0], encoder, jobs) if recorded else None
    runs = [Run(job, encoder, slots_for=stepper.slots_for if stepper else None) for job in made]
    usable = len(data.train) // BATCH * BATCH

    def step(number: int) -> None:
        rows = range(number * BATCH % usable, number * BATCH % usable + BATCH)
        if stepper is None:
            step_together([(run, list(rows)) for run in runs])
        else:
            stepper.step([(run, list(rows)) for run in runs])

    for number in range(WARM_UP[recorded]):
        step(number)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(STEPS[recorded]):
        step(number)
    if stepper is not None:
        list(stepper.losses(wait=True))
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS[recorded]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-mpnet-base-v2")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    encoder = Encoder(plain_model(options.model, torch.float32, "cpu"), tokenizer, name=options.model)
    encoder.to("cuda", torch.bfloat16)
    rows = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(sentences(tokenizer, ROWS))]
    data = load_data(rows, seed=0)
    adapter = Pfeiffer(reduction=16).sized(encoder.shape)
    inlays = frozen(encoder, adapter)
    parts = [Parent(digest, f"task{i}", 1, adapter) for i, digest in enumerate(inlays)]
    methods = {"an adapter": adapter, "a stack of two": Stack(parts[0], adapter), "a fusion of eight": Fuse(*parts)}
    found: dict[str, Any] = {}
    for jobs in options.jobs:
        for name, method in methods.items():
            for recorded in (True, False):
                seconds = seconds_a_step(encoder, data, method, inlays, jobs, recorded=recorded)
                key = f"{name}, {jobs} jobs, {'recorded' if recorded else 'eager'}"
                found[key] = {"ms": round(1000 * seconds, 2), "examples_per_second": round(jobs * BATCH / seconds)}
                print(f"{key}: {found[key]}", flush=True)
                torch.cuda.empty_cache()
    about = {"machine": machine("cuda"), "versions": versions(), "command": " ".join(["python", *sys.argv])}
    if options.output:
        options.output.write_text(json.dumps(about | {"adapter": str(adapter), "steps": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
