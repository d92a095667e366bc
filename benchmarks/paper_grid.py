"""The paper's grid for GLUE tasks, all jobs in one queue, beside full fine-tuning of the same base.

    python benchmarks/paper_grid.py --data $INTARSIA_DATA/glue --model all-mpnet-base-v2 --device cuda \\
        --output results/paper-grid-h200.json

90 jobs a task: adapters of 8, 64 and 256, learning rates 3e-5, 3e-4 and 3e-3, 3 and 20 epochs, five seeds. The official
dev set is the test; a tenth of the training set, held out, chooses. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

METRICS = {"cola": "matthews", "mrpc": "f1:equivalent", "rte": "accuracy", "stsb": "spearman"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--tasks", nargs="+", default=list(METRICS))
    options.add_argument("--what", choices=["adapters", "full"], default="adapters")
    options.add_argument("--bank", type=Path, default=Path("bank-paper-grid"))
    options.add_argument("--together", type=int)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()

    import torch

    import intarsia
    from intarsia import provenance
    from intarsia.tasks import load_data
    from intarsia.train.grid import PAPER, Grid

    torch.backends.cuda.matmul.allow_tf32 = True
    full = given.what == "full"
    grid = Grid(("full",), learning_rate=(3e-5,), epochs=(3,), seeds=5) if full else PAPER
    bank = intarsia.open(given.bank, given.model, device=given.device, precision="float32" if full else None)
    out: dict[str, Any] = {"seconds": 0.0, "tasks": {}}
    if given.output.is_file():
        out = json.loads(given.output.read_text())
    data = {name: load_data(given.data / name) for name in given.tasks}
    done, began, told = [0], time.monotonic(), [0.0]

    def watch(moment: Any) -> None:
        done[0] += moment.point is not None
        now = time.monotonic() - began
        if now - told[0] > 10:
            told[0] = now
            print(f"{now:6.0f} s: {done[0]} jobs done", flush=True)
            given.output.write_text(json.dumps({**out, "seconds": out["seconds"] + now}))

    found = bank.sweep(data, grid, score_all=True, watch=watch, together=given.together, metric=METRICS)
    out["seconds"] += time.monotonic() - began
    for name, entry in found.items():
        training = entry.header.training
        out["tasks"][name] = {
            "metric": METRICS[name],
            "rows": entry.header.data["rows"],
            "chosen": {"method": entry.header.method, **{k: training[k] for k in ("learning_rate", "epochs", "seed")}},
            "dev": entry.header.metrics["dev"],
            "test": entry.header.metrics["test"],
            "parameters": entry.header.parameters,
            "grid": [slim(p) for p in training["grid"]],
        }
    out["provenance"] = {
        "machine": provenance.machine(given.device), "versions": provenance.versions(),
        "command": "python benchmarks/paper_grid.py " + " ".join(Path(part).name for part in sys.argv[1:]),
        "seeds": [0, 1, 2, 3, 4],
    }  # fmt: skip
    given.output.write_text(json.dumps(out) + "\n")
    show(out)


def slim(point: dict[str, Any]) -> dict[str, Any]:
    method = point["method"]
    kept: dict[str, Any] = {k: point[k] for k in ("learning_rate", "epochs", "seed", "dev") if k in point}
    return {"size": method.get("size"), **kept, "test": point.get("test"), "diverged": point["reason"] is not None}


def show(out: dict[str, Any]) -> None:
    for name, task in out["tasks"].items():
        settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for point in task["grid"]:
            settings.setdefault((point["size"], point["learning_rate"], point["epochs"]), []).append(point)
        chosen = max(settings, key=lambda s: np.mean([p["dev"] if p["dev"] is not None else -1 for p in settings[s]]))
        tests = 100 * np.array([p["test"] for p in settings[chosen] if p["test"] is not None])
        sem = tests.std(ddof=1) / len(tests) ** 0.5 if len(tests) > 1 else 0.0
        print(
            f"{name:5} {task['metric']}: the best job's test score {100 * task['test']['value']:.1f}; best setting by "
            f"mean dev {chosen}: test {tests.mean():.1f} ± {sem:.1f} (s.e.m. of {len(tests)} seeds)"
        )
    print(f"{out['seconds']:.0f} s")


if __name__ == "__main__":
    main()
