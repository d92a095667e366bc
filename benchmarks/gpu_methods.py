"""The time of a recorded training step of each method on a GPU, for a single job, and the kernels that take it.

    python benchmarks/gpu_methods.py --model all-mpnet-base-v2 --output results/steps-h200.json

Each phase of a method is measured separately: milliseconds per step by the host's clock, milliseconds on the device,
and the slowest kernels, summed by name. A step has 32 examples, or the batch size of the method's recipe.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gpu import IdTokenizer, plain_model, texts

from intarsia import provenance
from intarsia.encoder.encoder import Encoder
from intarsia.methods import Method, parse
from intarsia.tasks.examples import Example, TaskData
from intarsia.train.cuda_graph import GraphStepper, can_record
from intarsia.train.job import Job, Settings
from intarsia.train.order import epoch_batches
from intarsia.train.run import Run

METHODS = "full,top-1,lt-sft-0.5%,diff-pruning-0.5%,houlsby-64,pal,lora-8,bitfit,prefix"
WARM, PROFILED, SHOWN = 30, 20, 12  # steps, steps, kernels


def phases(method: Method, encoder: Encoder, mean: int, steps: int) -> dict[str, Any]:
    """Return the timings of each training phase; empty if the method's steps cannot be recorded."""
    rows = [Example(" ".join(map(str, t)), None, "ab"[i % 2]) for i, t in enumerate(texts(mean, 1024))]
    data = TaskData("label", ("a", "b"), rows, rows[:32], rows[:32], {})
    job = Job("one", data, method, settings=Settings.for_method(method, epochs=1000))
    if not can_record(job, encoder):
        return {}
    recorded = GraphStepper(job, encoder, 1)
    run = Run(job, encoder, slots_for=recorded.slots_for)
    batches = epoch_batches(run.tokens["train"].lengths, job.settings.batch_size, 0, 0)
    found = {}
    while True:
        found[run.phase.name] = _timed(recorded, run, batches, steps)
        if run.last_phase:
            return found
        run.next_phase()


def _timed(recorded: GraphStepper, run: Run, batches: list[list[int]], steps: int) -> dict[str, Any]:
    def take(count: int) -> None:
        for i in range(count):
            recorded.step([(run, batches[i % len(batches)])])
            list(recorded.losses())
        _wait()

    take(WARM)
    began = time.perf_counter()
    take(steps)
    milliseconds = 1000 * (time.perf_counter() - began) / steps
    if not torch.cuda.is_available():
        return {"ms_a_step": milliseconds}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        take(PROFILED)
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name[:80]] += event.time_range.elapsed_us() / 1000 / PROFILED
            calls[event.name[:80]] += 1
    return {
        "ms_a_step": milliseconds,
        "ms_on_device": sum(spent.values()),
        "kernels_a_step": sum(calls.values()) / PROFILED,
        "most": {name: [ms, calls[name] / PROFILED] for name, ms in spent.most_common(SHOWN)},
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="bert-base", help="bert-base (random weights), or a folder")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--mean", type=int, default=14, help="mean number of tokens per text")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    dtype = torch.bfloat16 if given.device.startswith("cuda") else torch.float32
    encoder = Encoder(plain_model(given.model, dtype, given.device), IdTokenizer(), name=given.model)
    found: dict[str, Any] = {}
    for name in given.methods.split(","):
        found[name] = _rounded(phases(parse(name), encoder, given.mean, given.steps))
        for phase, timing in found[name].items():
            line = ", ".join(f"{key} {value}" for key, value in timing.items() if key != "most")
            print(f"{name} {phase}: {line}", flush=True)
            for kernel, (ms, calls) in timing.get("most", {}).items():
                print(f"    {ms:7.3f} ms {calls:6.1f} × {kernel}", flush=True)
    written = {
        "what": "one job alone, recorded passes",
        "mean_tokens": given.mean,
        "steps": found,
        "model": Path(given.model).name,
        "machine": provenance.machine(given.device),
        "torch": torch.__version__,
    }
    given.output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
