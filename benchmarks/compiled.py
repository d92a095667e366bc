"""Passes on a CPU by the instructions they use: the compiled function in three forms, and PyTorch.

python benchmarks/compiled.py --output results/compiled-cpu.json

Each variant runs in a process of its own. The processes measure in short turns, one after another, because other
programs may slow down a part of the run. Figures are the shortest of all passes, in wall time and in the process's own
CPU time. The CPU time is the one to compare on a machine that other programs use, with one thread. A pass has rows of
18 to 30 tokens, of the plain base or of one Houlsby adapter (size 64) for each row up to 32 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import torch

from intarsia import provenance
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Batch, Segment, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots, start
from intarsia.errors import PrecisionError
from intarsia.methods import Bottleneck

ONLY_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
VNNI = {**ONLY_AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}
VARIANTS: dict[str, dict[str, str]] = {  # the environment of each
    "compiled, this processor": {},
    "compiled, AVX2": {"INTARSIA_COMPILE": "avx2", **ONLY_AVX2},
    "compiled, AVX-VNNI": {"INTARSIA_COMPILE": "avx-vnni", **VNNI},
    "PyTorch, this processor": {"INTARSIA_COMPILE": "0"},
    "PyTorch, AVX2": {"INTARSIA_COMPILE": "0", **ONLY_AVX2},
    "PyTorch, AVX-VNNI": {"INTARSIA_COMPILE": "0", **VNNI},
}
ADAPTER = Bottleneck(64)


@torch.no_grad()
def work(threads: int) -> None:
    """Measure the passes that the standard input asks for, a line each: precision, rows, method, seconds. Print the
    milliseconds of each pass, in wall and in CPU time; nothing if this variant does not have the precision."""
    torch.set_num_threads(threads)
    encoder, precision = Encoder.load("minilm"), "float32"
    passes: dict[tuple[int, str], tuple[Batch, list[Group]]] = {}
    for line in sys.stdin:
        wanted, rows, method, seconds = json.loads(line)
        times: list[tuple[float, float]] = []
        try:
            if wanted != precision:
                encoder.use_int8(wanted == "int8")
                precision = wanted
            compiled = os.environ.get("INTARSIA_COMPILE") != "0"
            if not compiled or encoder.compiled is not None:  # there is no int8 without VNNI
                if (rows, method) not in passes:
                    passes[rows, method] = _batch(rows), [_tasks(encoder, rows)] if method != "base" else []
                    encoder.forward(*passes[rows, method], compiled=compiled)
                batch, groups = passes[rows, method]
                end = time.perf_counter() + seconds
                while not times or time.perf_counter() < end:
                    wall, cpu = time.perf_counter(), time.process_time()
                    encoder.forward(batch, groups, compiled=compiled)
                    times.append((1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)))
        except PrecisionError:
            pass
        print(json.dumps(times), flush=True)


def _batch(rows: int) -> Batch:
    draw = torch.Generator().manual_seed(rows)
    lengths = torch.randint(18, 31, (rows,), generator=draw).tolist() if rows > 1 else [24]
    return pack([Segment(torch.randint(1000, 20000, (n,), generator=draw).tolist()) for n in lengths])


def _tasks(encoder: Encoder, rows: int) -> Group:
    """Return a task for each row, but at most 32, with random tensors."""
    specs, tasks = ADAPTER.tensors(encoder.shape), min(rows, 32)
    slots = Slots(specs, tasks + 1)
    for slot in range(1, tasks + 1):
        slots.put(slot, start(specs, encoder, slot))
    shares = tuple(rows // tasks for _ in range(tasks))
    return Group(ADAPTER, ADAPTER.places(encoder.shape), slots.tensors, 0, tuple(range(1, tasks + 1)), shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each figure in each turn")
    parser.add_argument("--output", type=Path, default=Path("results/compiled-cpu.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.threads)
        return
    torch.set_num_threads(given.threads)
    command = [sys.executable, __file__, "--worker", "--threads", str(given.threads)]
    workers = {
        name: Popen(command, stdin=PIPE, stdout=PIPE, text=True, env={**os.environ, **environment})
        for name, environment in VARIANTS.items()
    }
    runs = []
    for precision in ("float32", "int8"):
        for rows in given.rows:
            for method in ("base", "houlsby-64"):
                times: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
                for _ in range(given.turns):
                    for name, worker in workers.items():
                        assert worker.stdin and worker.stdout
                        worker.stdin.write(json.dumps([precision, rows, method, given.seconds]) + "\n")
                        worker.stdin.flush()
                        times[name] += json.loads(worker.stdout.readline())
                for name, found in times.items():
                    if found:
                        run = {"precision": precision, "rows": rows, "method": method, "variant": name}
                        wall, cpu = zip(*found, strict=True)
                        runs.append({**run, "passes": len(found), "wall_ms": min(wall), "cpu_ms": min(cpu)})
                        print(*run.values(), f"{min(wall):.2f} ms, CPU time {min(cpu):.2f} ms", flush=True)
    for worker in workers.values():
        worker.communicate()
    content: dict[str, Any] = {
        "command": " ".join(["python benchmarks/compiled.py", *sys.argv[1:]]),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "environments": VARIANTS,
        "runs": runs,
    }
    given.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
