"""Passes through a plain base in float32 and in int8, alternating in one process.

python benchmarks/int8.py minilm path/to/all-mpnet-base-v2 --threads 1 2 --output results/int8.json

Each figure is the shortest of several passes, in wall time and in the process's own CPU time. The CPU time is the one
to compare on a machine that other programs use, with one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from intarsia import provenance
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack


def best(encoder: Encoder, rows: int, tokens: int, seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows * tokens)
    ids = torch.randint(1000, 20000, (rows, tokens), generator=generator).tolist()
    batch = pack([Segment(row, [0] * tokens) for row in ids])
    found: dict[str, list[float]] = {"float32": [1e9, 1e9], "int8": [1e9, 1e9]}
    states = {}
    for _ in range(3):  # alternating, because another program may slow down one part of the run
        for precision, times in found.items():
            encoder.use_int8(precision == "int8")
            states[precision] = encoder.forward(batch)
            end = time.perf_counter() + seconds
            while True:
                wall, cpu = time.perf_counter(), time.process_time()
                encoder.forward(batch)
                now = time.perf_counter()
                times[:] = min(times[0], now - wall), min(times[1], time.process_time() - cpu)
                if now > end:
                    break
    change = (states["int8"] - states["float32"]).norm() / states["float32"].norm()
    return {
        "rows": rows,
        "tokens": tokens,
        "wall_ms": {p: 1000 * times[0] for p, times in found.items()},
        "cpu_ms": {p: 1000 * times[1] for p, times in found.items()},
        "tokens_per_second": {p: rows * tokens / times[0] for p, times in found.items()},
        "faster_wall": found["float32"][0] / found["int8"][0],
        "faster_cpu": found["float32"][1] / found["int8"][1],
        "relative_change_of_states": float(change),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bases", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--tokens", type=int, nargs="+", default=[14, 40])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each of the three turns of a precision")
    parser.add_argument("--output", type=Path, default=Path("results/int8.json"))
    given = parser.parse_args()
    runs = []
    for base in given.bases:
        encoder = Encoder.load(base)
        for threads in given.threads:
            torch.set_num_threads(threads)
            for tokens in given.tokens:
                for rows in given.rows:
                    run = {"base": Path(base).name, "threads": threads, **best(encoder, rows, tokens, given.seconds)}
                    print(
                        f"{run['base']}, {threads} threads, {rows} × {tokens} tokens: int8 {run['faster_wall']:.2f} "
                        f"times as fast (CPU time {run['faster_cpu']:.2f})",
                        flush=True,
                    )
                    runs.append(run)
    arguments = [Path(a).name if Path(a).is_dir() else a for a in sys.argv[1:]]  # no paths of this machine
    content = {
        "command": " ".join(["python benchmarks/int8.py", *arguments]),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "runs": runs,
    }
    given.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
