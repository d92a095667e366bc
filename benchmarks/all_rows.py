"""Scores as common fine-tuning scripts report them: all training rows, the last epoch, the official dev part.

`intarsia paper` selects epochs on held-out rows and scores on other rows, while most published dev scores are measured
as in this script. Each method uses its own recipe. All jobs of one shape share a pass.

    python benchmarks/all_rows.py --encoder FOLDER --device cuda --out results/all-rows-h200.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from intarsia import provenance
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.lab.paper import names
from intarsia.methods import parse
from intarsia.tasks.examples import TaskData
from intarsia.tasks.suites import load
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train_together
from intarsia.train.run import Trained

TASKS, METHODS = "cola,mrpc,rte,stsb", "full,houlsby-64,parallel-64,lora-8"


def all_rows(task: str, data: str | None) -> TaskData:
    """Return a task with the official dev part and the complete train part."""
    found = load(f"glue/{task}", data)
    if found.source["split"] == "as given":
        return replace(found, test=[])
    return replace(found, train=[*found.train, *found.dev], dev=found.test, test=[])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--data", help="the folder of suites; default: INTARSIA_DATA")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tasks, methods = given.tasks.split(","), given.methods.split(",")
    data = {task: all_rows(task, given.data) for task in tasks}
    encoder = Encoder.load(given.encoder, device=given.device, precision=given.precision)
    found: dict[str, dict[str, list[float | None]]] = {name: defaultdict(list) for name in methods}
    began = time.monotonic()

    def done(job: Job, result: Trained | IntarsiaError) -> None:
        name, task, _ = job.name.split(" ")
        score = None if isinstance(result, IntarsiaError) else round(result.state.history[-1][result.metric], 4)
        found[name][task].append(score)
        print(f"{time.monotonic() - began:5.0f} s  {job.name}: {score}", file=sys.stderr, flush=True)

    jobs = [
        Job(f"{name} {task} {seed}", data[task], method, settings=settings)
        for name in methods
        for task in tasks
        for seed in range(given.seeds)
        if (method := parse(name))
        if (settings := Settings.for_task(method, data[task], seed=seed, metric=names.metric(f"glue/{task}")))
    ]
    train_together(jobs, encoder, done=done)
    written: dict[str, Any] = {
        "what": "last epoch's score on the official dev part, trained on all rows",
        "metrics": {task: names.metric(f"glue/{task}") for task in tasks},
        "rows": {task: {"train": len(task_data.train), "dev": len(task_data.dev)} for task, task_data in data.items()},
        "scores": found,
        "means": {
            name: {task: round(100 * fmean(s or 0.0 for s in scores), 1) for task, scores in by_task.items()}
            for name, by_task in found.items()
        },
        "encoder": {"name": Path(encoder.name).name, "fingerprint": encoder.fingerprint},
        "precision": str(encoder.dtype)[6:],
        "seconds": round(time.monotonic() - began),
        "machine": provenance.machine(str(encoder.device)),
        "command": f"python benchmarks/all_rows.py --encoder {Path(given.encoder).name} --device {given.device} "
        f"--tasks {given.tasks} --methods {given.methods} --seeds {given.seeds}",
    }
    given.out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(written["means"], indent=1))


if __name__ == "__main__":
    main()
