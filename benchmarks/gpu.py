"""Training on a GPU: many jobs in one pass, compared with peft's LoRA and a Houlsby model built with forward hooks.

    python benchmarks/gpu.py --output results/speed-h200.json                   # BERT-base shapes, random weights
    python benchmarks/gpu.py --model all-mpnet-base-v2 --output results/speed-mpnet-h200.json

Each step takes 32 examples per job. The peers train one job at a time: eager in float32, eager in bf16, and compiled in
bf16 with CUDA graphs and padding to a few lengths. Compiled peers run in separate processes, which compile in parallel.
Measuring starts when all of them are ready, and only one process measures at a time. All batches contain texts of
similar length, as Intarsia's loader builds them. Each real token counts as 4 × (parameters outside the embeddings)
floating-point operations.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

BATCH = 32
VOCABULARY = 30000
WARM_UP = 4.0  # maximum seconds for each setting, for Intarsia and the peers; the peers also compile
Answer = dict[str, Any]


class IdTokenizer:
    """A tokenizer for texts that already consist of token ids."""

    model_max_length = 512
    backend_tokenizer = None

    def get_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, texts: Sequence[str], pairs: Any = None, **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(t) for t in text.split()] for text in texts]}


def texts(mean: int, count: int, seed: int = 0) -> list[list[int]]:
    """Return random token ids. Lengths follow a gamma distribution, as in real text, from 4 to 64 (mean 14) or 128."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.gamma(3.0, mean / 3.0, count).round().astype(int), 4, 64 if mean < 20 else 128)
    return [random.integers(5, VOCABULARY, n).tolist() for n in lengths]


def plain_model(source: str, dtype: torch.dtype, device: str = "cuda") -> Any:
    from transformers import AutoConfig, AutoModel, BertConfig, BertModel

    torch.manual_seed(0)
    if source == "bert-base":
        return BertModel(BertConfig(), add_pooling_layer=False).to(device, dtype)
    config = AutoConfig.from_pretrained(source)
    if not (Path(source) / "model.safetensors").is_file():  # random weights give the same speed
        return AutoModel.from_config(config).to(device, dtype)
    return AutoModel.from_pretrained(source, config=config).to(device, dtype)


def outside_embeddings(source: str) -> int:
    named = plain_model(source, torch.float32, "cpu").named_parameters()
    return sum(p.numel() for name, p in named if "embeddings" not in name and "pooler" not in name)


def measured(step: Callable[[int], None], seconds: float, tokens: Sequence[int]) -> Answer:
    """Run steps for some seconds and return their speed. The host's clock is read after the device has synchronised."""
    for i in range(12):
        step(i)
    torch.cuda.synchronize()
    began, steps, done = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds or steps < 8:
        done += tokens[(12 + steps) % len(tokens)]
        step(12 + steps)
        steps += 1
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    return {"ms_a_step": 1000 * took / steps, "tokens_a_second": done / took, "steps": steps}


def ours(encoder: Any, mean: int, jobs: int, seconds: float) -> Answer:
    from intarsia.methods import Bottleneck
    from intarsia.tasks.examples import Example, TaskData
    from intarsia.train.cuda_graph import GraphStepper
    from intarsia.train.job import Job, Settings
    from intarsia.train.order import epoch_batches
    from intarsia.train.run import Run
    from intarsia.train.tokens import Tokenizer

    rows = [Example(" ".join(map(str, t)), None, "ab"[i % 2]) for i, t in enumerate(texts(mean, 2048))]
    data = TaskData("label", ("a", "b"), rows, rows[:32], rows[:32], {})
    settings = [Settings(learning_rate=3e-4, epochs=1000, seed=s) for s in range(jobs)]
    all_jobs = [Job(f"job{s}", data, Bottleneck(64), settings=setting) for s, setting in enumerate(settings)]
    recorded, tokenizer = GraphStepper(all_jobs[0], encoder, jobs), Tokenizer(encoder)
    runs = [Run(job, encoder, tokenizer=tokenizer, slots_for=recorded.slots_for) for job in all_jobs]
    lengths = runs[0].tokens["train"].lengths
    orders = [[b for e in range(2) for b in epoch_batches(lengths, BATCH, s, e)] for s in range(jobs)]
    count = len(orders[0])
    tokens = [int(sum(lengths[order[i]].sum() for order in orders)) for i in range(count)]

    def step(i: int) -> None:
        recorded.step([(run, order[i % count]) for run, order in zip(runs, orders, strict=True)])
        list(recorded.losses())

    began = time.perf_counter()
    for i in range(count):  # record passes of all sizes now, as a long run would do
        for known in recorded.passes.known.values():
            known.cost = 0.0
        step(i)
        if i == 0:
            began = time.perf_counter()  # the first step compiles the kernels
        if i >= 12 and time.perf_counter() - began > WARM_UP:
            break
    torch.cuda.synchronize()
    warm = time.perf_counter() - began
    torch.cuda.reset_peak_memory_stats()
    found = measured(step, seconds, tokens)
    losses = [loss for _, loss in recorded.losses(wait=True)]
    assert losses and all(np.isfinite(losses))
    found["examples_a_second"] = jobs * BATCH / found["ms_a_step"] * 1000
    found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return {**found, "passes_recorded": len(recorded.passes.known), "warm_up_seconds": warm}


def ceiling() -> float:
    """Return the TFLOP/s of a large bf16 matrix product in PyTorch."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(30):
        a @ b
    torch.cuda.synchronize()
    return 30 * 2 * 8192**3 / (time.perf_counter() - began) / 1e12


def measure_ours(out: Answer, given: argparse.Namespace) -> None:
    from intarsia.encoder.encoder import Encoder

    model = plain_model(given.model, torch.float32, "cpu")
    encoder = Encoder(model, IdTokenizer(), name=given.model).to("cuda", torch.bfloat16)
    for mean in given.means:
        for jobs in given.jobs:
            torch.cuda.empty_cache()
            r = out["ours"][f"{jobs} jobs, mean {mean}"] = ours(encoder, mean, jobs, given.seconds)
            r["share_of_ceiling"] = 4 * out["parameters"] * r["tokens_a_second"] / (out["ceiling_tflops"] * 1e12)
            print(
                f"intarsia {jobs:3} jobs, mean {mean}: {r['examples_a_second']:9.0f} examples/s, "
                f"{r['ms_a_step']:7.2f} ms per step, {100 * r['share_of_ceiling']:.0f} % of the ceiling, "
                f"{r['memory_gb']:.1f} GB, {r['passes_recorded']} passes recorded in {r['warm_up_seconds']:.0f} s",
                flush=True,
            )
            save(out, given)


def measure_peers(out: Answer, given: argparse.Namespace, compiled: Sequence[CompiledPeer]) -> None:
    from gpu_peers import Peer

    for kind in given.peers:
        for dtype in (torch.float32, torch.bfloat16):
            torch.cuda.empty_cache()
            found = Peer(kind, given.model, given.means, dtype=dtype, compiled=False).measure(given.seconds)
            add_peer(out, f"{kind}, eager {str(dtype).removeprefix('torch.')}", found)
            save(out, given)
    for peer in compiled:
        add_peer(out, f"{peer.kind}, compiled bfloat16", peer.measure())
        save(out, given)


def add_peer(out: Answer, name: str, found: Mapping[str, Answer]) -> None:
    for mean, r in found.items():
        out["peers"][f"{name}, mean {mean}"] = r
        print(
            f"{name}, mean {mean}: {r['examples_a_second']:7.0f} examples/s, {r['ms_a_step']:6.2f} ms per step "
            f"(warm-up {r['warm_up_seconds']:.0f} s)",
            flush=True,
        )


class CompiledPeer:
    """A compiled peer in a separate process. It reports when it is ready, and measures on request."""

    def __init__(self, kind: str, given: argparse.Namespace) -> None:
        self.kind = kind
        line = [sys.executable, "-W", "ignore", str(HERE / "gpu_peers.py"), kind, given.model, str(given.seconds)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*line, *map(str, given.means)], stdin=pipe, stdout=pipe, text=True)

    def ready(self) -> None:
        self._line("ready")

    def measure(self) -> dict[str, Answer]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return dict(json.loads(self._line("{")))

    def _line(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        raise RuntimeError(f"the process of the compiled peer {self.kind} ended with exit status {self.process.wait()}")


def ratios(out: Answer, means: Sequence[int]) -> Answer:
    """Return the examples per second of co-trained jobs, divided by those of the best eager and compiled peers."""
    found: Answer = {}
    for mean in means:
        rates = {n: r["examples_a_second"] for n, r in out["peers"].items() if n.endswith(f"mean {mean}")}
        for mode in ("eager", "compiled"):
            best = max((rate for name, rate in rates.items() if mode in name), default=None)
            for name, r in out["ours"].items():
                if best and name.endswith(f"mean {mean}"):
                    found[f"{name} against the best {mode} peer"] = round(r["examples_a_second"] / best, 2)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="bert-base", help="bert-base (random weights) or a transformers folder")
    options.add_argument("--jobs", type=int, nargs="*", default=[1, 8, 32, 64])
    options.add_argument("--means", type=int, nargs="+", default=[14, 40])
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--peers", nargs="*", default=["houlsby", "lora"])
    options.add_argument("--no-compiled", action="store_true")
    options.add_argument("--lock", type=Path, help="a lock file to hold while measuring, for several parallel runs")
    options.add_argument("--output", type=Path)
    given = options.parse_args()
    from intarsia import provenance

    torch.backends.cuda.matmul.allow_tf32 = True
    compiled = [] if given.no_compiled else [CompiledPeer(kind, given) for kind in given.peers]
    for peer in compiled:
        peer.ready()
        print(f"{peer.kind} is compiled", flush=True)
    if given.lock:
        fcntl.flock(os.open(given.lock, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)  # held until the process ends
    out: Answer = {
        "model": Path(given.model).name,
        "parameters": outside_embeddings(given.model),  # outside the embeddings
        "ceiling_tflops": ceiling(),
        "ours": {},
        "peers": {},
        "provenance": {
            "machine": provenance.machine("cuda"),
            "versions": provenance.versions(),
            "command": "python benchmarks/gpu.py " + " ".join(Path(part).name for part in sys.argv[1:]),
            "seeds": [0],
        },
    }
    print(f"{out['model']}: {out['parameters'] / 1e6:.1f}M parameters outside the embeddings; "
          f"matrix products at {out['ceiling_tflops']:.0f} TFLOP/s")  # fmt: skip
    measure_ours(out, given)
    measure_peers(out, given, compiled)
    out["ratios"] = ratios(out, given.means)
    for name, ratio in out["ratios"].items():
        print(f"{ratio:6.2f}× {name}")
    save(out, given)


def save(out: Answer, given: argparse.Namespace) -> None:
    if given.output:
        given.output.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
