"""Trains, scores and stores the runs of a comparison, estimates their cost, and builds the rows of its table."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.encoder.shape import Shape
from intarsia.errors import BankError, EncoderError, IntarsiaError
from intarsia.lab import cost
from intarsia.lab.comparison import ComparisonRow, Result
from intarsia.methods import Method, to_dict
from intarsia.serve.scoring import score
from intarsia.tasks.kind_registry import kind_for
from intarsia.train.run import Diverged
from intarsia.train.runner import Runner, RunnerWatch

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.lab.no_bert import SearchWatch
    from intarsia.tasks import TaskData
    from intarsia.train.job import Job
    from intarsia.train.run import Trained


def train_rows(
    jobs: Mapping[str, Sequence[Job]],
    encoder: Encoder,
    folder: Path,
    metric: str,
    *,
    together: int | None = None,
    watch: RunnerWatch | None = None,
) -> list[ComparisonRow]:
    """Train the runs that have no result in `folder`, all in one queue; return one row per method."""
    reasons = {name: _reason(method_jobs[0].method, encoder.shape) for name, method_jobs in jobs.items()}
    possible = [job for name, method_jobs in jobs.items() if reasons[name] is None for job in method_jobs]
    work = folder.parent / "work"
    files.make_folder(work)
    results = ComparisonResults(encoder, folder, metric)
    runner = Runner(
        possible, encoder, work, results,
        cost=lambda job: epochs_of_full(job, encoder.shape),
        state_file=lambda key: work / f"{key}.safetensors",
        watch=watch,
    )  # fmt: skip
    try:
        runner.run(together)
        for path in work.glob("states-*"):  # the base's states for feature-based runs
            path.unlink(missing_ok=True)
    finally:
        with suppress(OSError):
            work.rmdir()  # fails, as it should, if the folder holds checkpoints of runs that can resume
    return [_row(name, method_jobs, reasons[name], results, encoder) for name, method_jobs in jobs.items()]


class ComparisonResults:
    """Stores one JSON file per run, with its test score and interval."""

    def __init__(self, encoder: Encoder, folder: Path, metric: str) -> None:
        self.encoder, self.folder, self.metric = encoder, folder, metric
        self.found: dict[str, Result] = {}

    def find(self, job: Job, key: str) -> Result | None:
        if key not in self.found and (result := Result.read(self.folder, key)) is not None:
            self.found[key] = result
        return self.found.get(key)

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> Result:
        known: dict[str, Any] = {
            "key": key, "seed": job.settings.seed, "method": to_dict(job.method), "metric": self.metric,
            "settings": {k: v for k, v in job.describe().items() if k != "method"},
        }  # fmt: skip
        try:
            result = Result(**known, **self._measured(job, outcome))
        except (BankError, EncoderError):
            raise  # a full disk or a changed base is not a result of the method
        except IntarsiaError as error:
            spent = error.seconds if isinstance(error, Diverged) else 0.0
            result = Result(**known, seconds=round(spent, 2), reason=str(error))
        result.write(self.folder)
        self.found[key] = result
        return result

    def _measured(self, job: Job, outcome: Trained | IntarsiaError) -> dict[str, Any]:
        """Score a run on the test part; return the measured fields of its result."""
        if isinstance(outcome, IntarsiaError):
            raise outcome
        began = time.monotonic()
        test = score(
            outcome.learned, job.data.test, self.encoder, metric=outcome.metric, max_length=job.settings.max_length
        )
        state = outcome.state
        return {
            "seconds": round(state.own_seconds + time.monotonic() - began, 2),
            "dev": state.best,
            "best_epoch": state.best_epoch,
            "test": {**test._asdict(), "examples": len(job.data.test)},
            "steps": state.step,
            "history": state.history,
        }


def search_without_transformer(
    task: TaskData, minutes: float, metric: str, folder: Path, watch: SearchWatch | None = None
) -> dict[str, Any]:
    """Return the best model without a transformer. The result is stored; an interrupted search starts again."""
    from intarsia.lab import no_bert

    content = [task.source["sha256"], task.kind, metric, minutes]
    path = folder / f"no-bert-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):
        return _with_count(files.read_checked(path))
    try:
        baseline = no_bert.search(task, minutes, metric=metric, watch=watch).to_dict()
    except IntarsiaError as error:
        baseline = {"metrics": None, "reason": str(error)}
    files.replace_checked(path, baseline)
    return _with_count(baseline)


def epochs_of_full(job: Job, shape: Shape) -> float:
    """Return the estimated time of a run, in epochs of full fine-tuning."""
    train, dev, test = (len(part) for part in (job.data.train, job.data.dev, job.data.test))
    epochs = job.settings.epochs
    if job.method.cached:
        return (train + dev + test) / 3 / train + 0.01 * epochs
    steps = epochs * cost.steps(job.method, shape) * cost.estimate(job.method, shape)
    return steps + (epochs * dev + test) / 3 / train


def _row(
    name: str, jobs: Sequence[Job], reason: str | None, results: ComparisonResults, encoder: Encoder
) -> ComparisonRow:
    """Return the row of one method; `reason`: why the method does not fit the base."""
    method, shape = jobs[0].method, encoder.shape
    if reason is not None:
        return ComparisonRow(name, to_dict(method), None, (), reason)
    head = kind_for(jobs[0].data).head(jobs[0].pooling).count(shape, method.row_width(shape))
    counts = {"method": method.count(shape), "head": head, "base": shape.parameters}
    own_results = tuple(results.found[job.key(encoder.fingerprint)] for job in jobs)
    return ComparisonRow(name, to_dict(method), counts, own_results)


def _with_count(baseline: dict[str, Any]) -> dict[str, Any]:
    """Replace the list of tried candidates, which may have thousands of entries, by their number."""
    return {**baseline, "tried": len(baseline.get("tried", ()))}


def _reason(method: Method, shape: Shape) -> str | None:
    """Return why a method does not fit the base, or None."""
    try:
        method.check(shape)
    except IntarsiaError as error:
        return str(error)
    return None
