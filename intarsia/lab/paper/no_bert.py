"""The paper's no-BERT column: for each task the best model of a search without a transformer, on the CPU.

The search is its own group (`--only no_bert`). Its results are stored as JSON lines in `no_bert/`, next to `runs/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from intarsia import formatting, provenance
from intarsia.lab.no_bert import search
from intarsia.lab.paper import names
from intarsia.lab.paper.plan import ExperimentConfig
from intarsia.lab.paper.runs import SOURCE_FIELDS, RunStore
from intarsia.lab.paper.selection import Mean, Results
from intarsia.tasks.examples import TaskData

GROUP = "no_bert"
Log = Callable[[str], None]
SEED = 0  # for the random candidates; the default candidates do not depend on the seed


@dataclass(frozen=True)
class BaselineResult:
    """The result of a search: the best candidate on validation, and its test score."""

    task: str
    candidates: int
    seed: int
    metric: str
    winner: dict[str, Any]  # the best candidate
    parameters: int  # fitted numbers
    dev: float
    test: float
    seconds: float
    data: dict[str, Any]  # the same fields as in a run's record
    machine: dict[str, Any]
    created: str

    @property
    def score(self) -> Mean:
        return Mean(self.test)

    @property
    def winner_summary(self) -> str:
        """Return the winner's model and features."""
        model = self.winner["model"]
        return f"{model}, {self.winner['name'].partition(f', {model}')[0]}"


def search_missing(
    config: ExperimentConfig, data: Mapping[str, TaskData], store: RunStore, *, log: Log | None = None
) -> None:
    """Search for each task that has no stored result on the same rows. `log` receives progress lines."""
    log = log or (lambda _: None)
    for task, task_data in data.items():
        stored = _stored(store, config, task)
        if stored is not None and stored.data["sha256"] == task_data.source["sha256"]:
            continue
        log(f"{task}: searching without BERT, {config.task_grid(task).candidates} candidates")
        found = search(task_data, seed=SEED, metric=names.metric(task), candidates=config.task_grid(task).candidates)
        result = BaselineResult(
            task, config.task_grid(task).candidates, SEED, found.metric, found.winner.candidate.to_dict(),
            found.parameters["total"], found.winner.dev or 0.0, found.test.value, round(found.seconds, 1),
            {k: task_data.source.get(k) for k in SOURCE_FIELDS}, provenance.machine("cpu"),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        store.append(_file(store, task), asdict(result))
        log(
            f"{task}: {100 * result.dev:.1f} on validation after {formatting.seconds(result.seconds)}; "
            f"{result.winner_summary}"
        )


def stored_baseline(results: Results, task: str) -> BaselineResult | None:
    """Return the stored result of the configured search, or None."""
    stored = _stored(results.store, results.config, task)
    return None if stored is None or (stored.data["partial"] and not results.config.samples) else stored


def _stored(store: RunStore, config: ExperimentConfig, task: str) -> BaselineResult | None:
    """Return the last stored result of a search with the configured number of candidates."""
    known = {field.name for field in fields(BaselineResult)}
    lines = [line for line in store.lines(_file(store, task)) if known <= line.keys()]
    found = [BaselineResult(**{name: line[name] for name in known}) for line in lines]
    wanted = (config.task_grid(task).candidates, SEED)
    return next((result for result in reversed(found) if (result.candidates, result.seed) == wanted), None)


def _file(store: RunStore, task: str) -> Path:
    return store.folder / "no_bert" / f"{task.replace('/', '-')}.jsonl"
