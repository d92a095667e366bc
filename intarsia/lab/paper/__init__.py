"""The tables and figures of Houlsby et al. 2019, trained through one queue, kept in `results`, drawn from there.

An experiment is a plan (which runs), a choice by validation, and what is drawn of it; a new one is a file and an entry
in EXPERIMENTS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import IntarsiaError
from intarsia.lab.paper.ablation import ABLATION
from intarsia.lab.paper.alternatives import ALTERNATIVES
from intarsia.lab.paper.drawn import Drawn
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.further import FURTHER
from intarsia.lab.paper.glue import GLUE
from intarsia.lab.paper.init import INIT
from intarsia.lab.paper.methods import METHODS_COMPARED
from intarsia.lab.paper.page import page
from intarsia.lab.paper.plan import Asked
from intarsia.lab.paper.runs import Store
from intarsia.lab.paper.selection import Results
from intarsia.lab.paper.tradeoff import TRADEOFF
from intarsia.tasks.suites.registry import find

if TYPE_CHECKING:
    from intarsia.encoder.load import Encoder

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one for one in (GLUE, FURTHER, TRADEOFF, ABLATION, INIT, ALTERNATIVES, METHODS_COMPARED)
}


def task_names(experiment: Experiment, given: Sequence[str]) -> tuple[str, ...]:
    """Full names of the tasks that were named (`cola`, `glue/cola`, `glue`), else the experiment's own."""
    if not given:
        return experiment.tasks
    suites = dict.fromkeys(task.partition("/")[0] for task in experiment.tasks)
    found = []
    whole = {"glue": GLUE.tasks, "extra": FURTHER.tasks}
    for name in (task for text in given for task in whole.get(text, (text,))):
        own = [f"{suite}/{name}" for suite in suites if f"{suite}/{name}" in experiment.tasks]
        task = find(own[0] if own else name if "/" in name else f"{next(iter(suites))}/{name}")
        if task.kind not in ("label", "score") or task.suite not in ("glue", "extra") or set(task.rows) == {"test"}:
            raise IntarsiaError(
                f"{task.full_name} cannot be used here: a task of glue or extra that has a train part was expected."
            )
        found.append(task.full_name)
    return tuple(dict.fromkeys(found))


def run(
    name: str,
    asked: Asked,
    encoder: Encoder,
    store: Store,
    *,
    data: str | Path | None = None,
    together: int | None = None,
    command: str | None = None,
    quiet: bool = False,
) -> Drawn:
    """Train what is missing of an experiment, note what was asked for, and draw it."""
    from intarsia.lab.paper.running import Running, load_tasks

    experiment = EXPERIMENTS[name]
    planned = experiment.plan(asked, encoder.shape.layers)
    loaded, notes = load_tasks([one.task for one in planned], asked, data)
    if not loaded:
        raise IntarsiaError(f"nothing to learn from: {' '.join(notes)} The data folder is that of --data.")
    store.of(encoder)
    Running(name, planned, asked, encoder, store, loaded).run(together, quiet=quiet)
    noted: dict[str, Any] = {
        "asked": dataclasses.asdict(asked), "left_out": notes, "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    store.write_asked(name, noted)
    return draw(name, asked, store, notes)


def draw(name: str, asked: Asked, store: Store, notes: Sequence[str] = ()) -> Drawn:
    """From what is stored alone."""
    made = EXPERIMENTS[name].draw(Results(store, asked))
    made.notes += notes
    made.save(store.figures)
    return made


def draw_last(name: str, store: Store) -> Drawn | None:
    """What was asked for last; None where that was nothing."""
    noted = store.read_asked(name)
    if noted is None:
        return None
    asked = Asked(**{**noted["asked"], "tasks": tuple(noted["asked"]["tasks"])})
    return draw(name, asked, store, noted["left_out"])


def report(store: Store) -> Path:
    """All experiments that were run, on one page."""
    encoder = store.encoder
    drawn = [made for name in EXPERIMENTS if (made := draw_last(name, store)) is not None]
    if not drawn:
        raise IntarsiaError(f"no experiment was run in {store.folder}: `intarsia paper glue` is one.")
    path = store.folder / "report.html"
    files.replace(path, [page(drawn, encoder["name"]).encode()])
    return path
