"""The paper's no-BERT column: for each task the best of a search without a transformer, on the CPU.

It is a group of its own (`--only no_bert`), whose results lie beside the runs, one JSON object a line.
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
from intarsia.lab.paper.plan import Asked
from intarsia.lab.paper.runs import KEPT, RunStore
from intarsia.lab.paper.selection import Mean, Results
from intarsia.tasks.examples import TaskData

GROUP = "no_bert"
Tell = Callable[[str], None]
SEED = 0  # of what is drawn at random; the first candidates are the same for all seeds


@dataclass(frozen=True)
class Found:
    """What a search gave: the best of so many candidates on validation, and its score on test."""

    task: str
    candidates: int
    seed: int
    metric: str
    winner: dict[str, Any]  # the candidate
    parameters: int  # fitted numbers
    dev: float
    test: float
    seconds: float
    data: dict[str, Any]  # as a run has it
    machine: dict[str, Any]
    created: str

    @property
    def score(self) -> Mean:
        return Mean(self.test)

    @property
    def won(self) -> str:
        """The winner's model, and what it reads."""
        model = self.winner["model"]
        return f"{model}, {self.winner['name'].partition(f', {model}')[0]}"


def search_missing(asked: Asked, data: Mapping[str, TaskData], store: RunStore, *, tell: Tell | None = None) -> None:
    """Search for each task that has no stored search of the same rows. `tell` receives a line for each task."""
    tell = tell or (lambda _: None)
    for task, own in data.items():
        held = _stored(store, asked, task)
        if held is not None and held.data["sha256"] == own.source["sha256"]:
            continue
        tell(f"{task}: searching without BERT, {asked.values(task).candidates} candidates")
        found = search(own, seed=SEED, metric=names.metric(task), candidates=asked.values(task).candidates)
        made = Found(
            task, asked.values(task).candidates, SEED, found.metric, found.winner.candidate.to_dict(),
            found.parameters["total"], found.winner.dev or 0.0, found.test.value, round(found.seconds, 1),
            {k: own.source.get(k) for k in KEPT}, provenance.machine("cpu"),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        store.append(_file(store, task), asdict(made))
        tell(f"{task}: {100 * made.dev:.1f} on validation after {formatting.seconds(made.seconds)}; {made.won}")


def found_of(results: Results, task: str) -> Found | None:
    """The stored search of what was asked for."""
    held = _stored(results.store, results.asked, task)
    return None if held is None or (held.data["partial"] and not results.asked.samples) else held


def _stored(store: RunStore, asked: Asked, task: str) -> Found | None:
    """Of equal ones the last."""
    known = {field.name for field in fields(Found)}
    lines = [line for line in store.lines(_file(store, task)) if known <= line.keys()]
    found = [Found(**{name: line[name] for name in known}) for line in lines]
    wanted = (asked.values(task).candidates, SEED)
    return next((one for one in reversed(found) if (one.candidates, one.seed) == wanted), None)


def _file(store: RunStore, task: str) -> Path:
    return store.folder / "no_bert" / f"{task.replace('/', '-')}.jsonl"
