"""What the experiments of docs/composition.md share: small parts of suites, one seed a run, results that resume.

Each program keeps its bank, so a call that was stopped goes on where it was. Scores are those of the test part, in
points; a difference below the interval of one score (about ±4 points on 500 rows) says little.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import intarsia
from intarsia import provenance
from intarsia.bank.bank import Bank
from intarsia.bank.family import with_parents
from intarsia.bank.inlay_of import inlay_of
from intarsia.errors import IntarsiaError
from intarsia.methods import Method
from intarsia.tasks.examples import TaskData
from intarsia.tasks.suites import load
from intarsia.tasks.suites.registry import find
from intarsia.train.checkpoints import JobFiles
from intarsia.train.interrupts import Interrupted
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train_together
from intarsia.train.run import Trained

LENGTH = 64  # tokens of a row


class Experiment:
    """A bank, and a JSON file of results that is written after each of them."""

    def __init__(self, what: str) -> None:
        parser = argparse.ArgumentParser(description=what)
        parser.add_argument("--encoder", default="minilm")
        parser.add_argument("--bank", type=Path, required=True, help="a folder; a second call goes on in it")
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--rows", type=int, default=500, help="training rows of each task")
        parser.add_argument("--test-rows", type=int, default=1000)
        parser.add_argument("--dev-rows", type=int, default=200, help="at most; they choose the epoch")
        parser.add_argument("--seeds", type=int, default=1)
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--minutes", type=float, default=8.0, help="stop after; call again to go on")
        parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="options of this experiment")
        self.options = parser.parse_args()
        self.set = dict(pair.split("=", 1) for pair in self.options.set)
        self.until = time.monotonic() + 60 * self.options.minutes
        out = self.options.out
        given = [re.sub(r"(^|=)/[^ ]*/", r"\1", argument) for argument in sys.argv[1:]]  # without folders
        command = f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(given)}"
        self.written: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"scores": {}}
        self.written |= {
            "what": what, "command": command, "encoder": Path(self.options.encoder).name, "rows": self.options.rows,
            "test_rows": self.options.test_rows, "dev_rows": self.options.dev_rows, "seeds": self.options.seeds,
            "max_length": LENGTH,
            "machine": provenance.machine(self.options.device), "versions": provenance.versions(),
        }  # fmt: skip

    def open(self, name: str = "", encoder: Any = None) -> Bank:
        """Return the bank of this experiment, or one of several."""
        self.options.bank.mkdir(parents=True, exist_ok=True)
        folder = self.options.bank / (name or "bank")
        return intarsia.open(folder, encoder or self.options.encoder, device=self.options.device)

    @property
    def scores(self) -> dict[str, Any]:
        found: dict[str, Any] = self.written["scores"]
        return found

    def score(self, key: str, make: Callable[..., float], *given: Any, **named: Any) -> float:
        """Return a score: the stored one, else the result of `make`, in points. Stop if the time is over."""
        if key not in self.scores:
            if time.monotonic() > self.until:
                print("the time is over; call again to go on", file=sys.stderr)
                raise SystemExit(3)
            began = time.monotonic()
            self.scores[key] = round(100 * make(*given, **named), 2)
            print(f"{time.monotonic() - began:5.0f} s  {key}: {self.scores[key]}", file=sys.stderr, flush=True)
            self.write()
        return float(self.scores[key])

    def write(self, **more: Any) -> None:
        self.written |= more
        self.options.out.write_text(json.dumps(self.written, indent=1, ensure_ascii=False) + "\n")

    def data(self, task: str, rows: int | None = None) -> TaskData:
        """Return a task with few training rows, and at most `--test-rows` for testing."""
        found = load(task, limit=rows or self.options.rows, partial=True)
        return dataclasses.replace(
            found, dev=found.dev[: self.options.dev_rows], test=found.test[: self.options.test_rows]
        )

    def learn(self, bank: Bank, name: str, data: Any, method: Any, **settings: Any) -> float:
        """Learn a task, unless the bank has it; return its test score."""
        if not bank.store.has(name):
            bank.learn(name, data, method, progress=False, **_settings(data, settings))
        return test_score(bank, name)

    def learn_all(self, bank: Bank, wanted: Mapping[str, Wanted]) -> None:
        """Learn the tasks whose scores are missing, all in shared passes; `wanted`: the task of each score, by key."""
        missing = {key: task for key, task in wanted.items() if key not in self.scores}
        keys = {task.name: key for key, task in missing.items()}
        jobs = []
        for key, task in missing.items():
            if bank.store.has(task.name):
                self._note(bank, key, task.name)
                continue
            settings = Settings.for_task(task.method, task.data, **_settings(task.data, task.settings))
            jobs.append(
                with_parents(bank.store, Job(task.name, task.data, task.method, "mean", settings), bank.encoder)
            )

        states = self.options.bank / "states"  # of jobs that have not ended
        states.mkdir(parents=True, exist_ok=True)
        files = JobFiles(lambda job: states / f"{job.name}-{job.key(bank.encoder.fingerprint)}.safetensors")

        def done(job: Job, outcome: Trained | IntarsiaError) -> None:
            (files.path_of(job) or states).unlink(missing_ok=True)
            if isinstance(outcome, IntarsiaError):
                raise SystemExit(f"{job.name}: {outcome}")
            bank.store.add(inlay_of(job, outcome, bank.encoder), encoder=bank.encoder)
            self._note(bank, keys[job.name], job.name)

        try:
            train_together(
                jobs, bank.encoder, done=done, checkpoints=files, save_every=60,
                stop=lambda: time.monotonic() > self.until,
            )  # fmt: skip
        except Interrupted:
            print("the time is over; call again to go on", file=sys.stderr)
            raise SystemExit(3) from None

    def _note(self, bank: Bank, key: str, name: str) -> None:
        self.scores[key] = round(100 * test_score(bank, name), 2)
        print(f"{key}: {self.scores[key]}", file=sys.stderr, flush=True)
        self.write()


class Wanted(NamedTuple):
    """A task to be learned."""

    name: str
    data: TaskData
    method: Method
    settings: Mapping[str, Any]


def _settings(data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a task; the metric is that of its suite."""
    metric = {"metric": find(data.source["suite"]).metrics[0]} if "suite" in getattr(data, "source", {}) else {}
    return {"max_length": LENGTH, **metric, **given}


def dev_score(bank: Bank, name: str) -> float:
    """Return the stored validation score of a task."""
    return float(bank.show(name).header.metrics["dev"])


def test_score(bank: Bank, name: str) -> float:
    """Return the stored test score of a task."""
    return float(bank.show(name).header.metrics["test"]["value"])


def evaluate(bank: Bank, name: str, data: TaskData, *, swap: Mapping[str, str] | None = None) -> float:
    """Return a task's accuracy on the test part of other data."""
    return float(bank.evaluate(name, data.test, metric="accuracy", swap=swap).interval.value)
