"""The part that all trackers share: which values are logged, when, and what happens if a tracker fails."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from intarsia.display.board import described
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.methods import full_name, to_dict
from intarsia.train.job import Job
from intarsia.train.progress import Progress
from intarsia.train.runner import RunnerEvent

Values = Mapping[str, float]


class TrackedRun(Protocol):
    """One run in a tracker: the training of one job."""

    def config(self, values: Mapping[str, Any]) -> None:
        """Log facts about the run: numbers, texts, booleans and None."""

    def log(self, values: Values, step: int) -> None: ...

    def result(self, values: Values) -> None:
        """Log the scores on the test part."""

    def end(self, done: bool) -> None:
        """`done`: the job has ended; otherwise it was interrupted or has failed."""


class Tracker(ABC):
    """A callback that logs each job as a run. Texts of the data are not logged."""

    name: str

    def __init__(self) -> None:
        self.runs: dict[str, TrackedRun] = {}  # by the job's key
        self.epochs: dict[str, int] = {}  # the epochs that are logged
        self.done: set[str] = set()  # jobs that have ended and did not fail
        self.several = False  # whether a task has several jobs
        self.stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
        self.started = self.failed = False

    @abstractmethod
    def start(self, task: str, job: str) -> TrackedRun:
        """Start a run. `job` describes the job if the task has several, else it is empty."""

    def __call__(self, event: RunnerEvent) -> None:
        if event.planned is not None:
            self.several = any(count > 1 for count in event.counts.values())
        if self.failed or event.job is None or event.stored:
            return
        if event.progress is not None and event.progress.reading is not None:
            return
        try:
            run = self._run(event)
            if (p := event.progress) is not None:
                self._log(run, event.key, p)
            if event.result is not None and event.result.dev is not None:
                self.done.add(event.key)
                run.result({"validation/best": event.result.dev, "seconds": event.result.seconds})
            if event.learned is not None:
                run.config(_flat(learned_facts(event.learned)))
                run.result(test_scores(event.learned))
        except IntarsiaError:
            raise
        except Exception as error:
            self.failed = True
            warnings.warn(
                f"{self.name} logs no more: {_one_line(error)} Training goes on.", IntarsiaWarning, stacklevel=2
            )

    def close(self) -> None:
        """End all runs. The call that trains does this at its end, also if it fails."""
        for key, run in self.runs.items():
            try:
                run.end(key in self.done)
            except Exception as error:
                warnings.warn(f"{self.name} could not end a run: {_one_line(error)}", IntarsiaWarning, stacklevel=2)
        self.runs.clear()

    def _run(self, event: RunnerEvent) -> TrackedRun:
        assert event.job is not None
        run = self.runs.get(event.key)
        if run is None:
            try:
                run = self.start(event.job.name, described(event.job) if self.several else "")
            except Exception as error:
                if self.started:
                    raise
                raise IntarsiaError(
                    f"{self.name} cannot start a run: {_one_line(error)} Correct this, or leave the tracker out."
                ) from error
            self.started, self.runs[event.key] = True, run
            run.config(_flat(job_facts(event.job)))
        return run

    def _log(self, run: TrackedRun, key: str, p: Progress) -> None:
        for entry in p.history[self.epochs.get(key, 0) :]:
            scores = {k: v for k, v in entry.items() if k not in ("epoch", "step", "loss") and _is_number(v)}
            values = {f"validation/{name}": float(value) for name, value in scores.items()}
            if entry.get("loss") is not None:
                values["train/epoch_loss"] = float(entry["loss"])
            run.log({**values, "epoch": float(entry["epoch"])}, int(entry["step"]))
        self.epochs[key] = len(p.history)
        if not p.history or p.step != p.history[-1]["step"]:
            run.log({"train/loss": p.loss, "train/tokens_per_second": p.tokens_per_second}, p.step)


def job_facts(job: Job) -> dict[str, Any]:
    """Return the facts that are known before a job trains."""
    settings, source, data = job.describe(), job.data.source, job.data
    return {
        "task": job.name, "kind": data.kind, "labels": len(data.labels), **settings, "method": to_dict(job.method),
        "method_name": full_name(to_dict(job.method)),
        "data": {k: source[k] for k in ("from", "sha256", "rows", "split", "limit") if source.get(k) is not None},
    }  # fmt: skip


def learned_facts(learned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a stored version."""
    return {
        "version": learned["version"], "served": not learned["held"], "digest": learned["digest"],
        "file": learned["file"], "trained_parameters": learned["parameters"]["total"],
        "base": {k: learned["encoder"].get(k) for k in ("name", "fingerprint")}, "libraries": learned["versions"],
    }  # fmt: skip


def test_scores(learned: Mapping[str, Any]) -> Values:
    """Return the score on the test part with its interval; empty if there was no test part."""
    metrics = learned["metrics"]
    test = metrics.get("test") or {}
    known: dict[str, Any] = {f"test/{metrics.get('metric')}": test.get("value")}
    known |= {f"test/{end}": test.get(end) for end in ("low", "high", "examples")}
    return {name: float(value) for name, value in known.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested values under names with points, such as `adam.weight_decay`; lists become text."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[before + name] = value if value is None or isinstance(value, int | float | str) else str(value)
    return flat


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else text + "."
