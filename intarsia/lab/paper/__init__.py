"""The tables and figures of Houlsby et al. 2019, trained through one queue, kept in `results`, drawn from there.

An experiment is a plan (which runs), a choice by validation, and what is drawn of it; a new one is a file and an entry
in EXPERIMENTS.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia import files
from intarsia.errors import IntarsiaError, check_extra
from intarsia.lab.paper import no_bert
from intarsia.lab.paper.ablation import ABLATION
from intarsia.lab.paper.alternatives import ALTERNATIVES
from intarsia.lab.paper.drawn import Drawn
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.further import FURTHER
from intarsia.lab.paper.glue import GLUE
from intarsia.lab.paper.init import INIT
from intarsia.lab.paper.methods import METHODS_COMPARED
from intarsia.lab.paper.page import page
from intarsia.lab.paper.plan import SUITES, Asked
from intarsia.lab.paper.runs import RunStore
from intarsia.lab.paper.selection import Results
from intarsia.lab.paper.squad import SQUAD
from intarsia.lab.paper.tradeoff import TRADEOFF
from intarsia.tasks.suites.registry import chosen, find

if TYPE_CHECKING:
    from intarsia.bank.sweep import Watch
    from intarsia.encoder.encoder import Encoder

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one for one in (GLUE, FURTHER, SQUAD, TRADEOFF, ABLATION, INIT, ALTERNATIVES, METHODS_COMPARED)
}


def task_names(experiment: Experiment, given: Sequence[str]) -> tuple[str, ...]:
    """Full names of the tasks that were named (`cola`, `glue/cola`, `glue`), else the experiment's own."""
    if not given:
        return experiment.tasks
    suites = dict.fromkeys(task.partition("/")[0] for task in experiment.tasks)
    found = []
    whole = {"glue": GLUE.tasks, "extra": FURTHER.tasks, "squad": SQUAD.tasks}
    usable = [suite for suite in SUITES if any(task.kind in experiment.kinds for task in chosen(suite))]
    for name in (task for text in given for task in whole.get(text, (text,))):
        own = [f"{suite}/{name}" for suite in suites if f"{suite}/{name}" in experiment.tasks]
        task = find(own[0] if own else _whole_name(name if "/" in name else f"{next(iter(suites))}/{name}"))
        if task.kind not in experiment.kinds or task.suite not in usable or set(task.rows) == {"test"}:
            raise IntarsiaError(
                f"{task.full_name} cannot be used here: a task of {' or '.join(usable)} that has a train part was "
                "expected."
            )
        found.append(task.full_name)
    return tuple(dict.fromkeys(found))


def _whole_name(name: str) -> str:
    """`squad/v2` stands for `squad/v2.0`."""
    begun = [task.full_name for task in chosen(None) if task.full_name.startswith(f"{name}.")]
    return begun[0] if len(begun) == 1 else name


def group_names(experiment: Experiment, asked: Asked, given: Sequence[str]) -> tuple[str, ...]:
    """The groups of runs that were named, else all that the experiment has."""
    planned = dict.fromkeys(one.group for one in experiment.plan(asked, 1))  # the same at any depth
    known = (*planned, *((no_bert.GROUP,) if experiment.no_bert else ()))
    for group in given:
        if group not in known:
            raise IntarsiaError(
                f"`intarsia paper {experiment.name}` has no group {group!r}. Expected of --only some of: "
                f"{', '.join(known)}."
            )
    return tuple(dict.fromkeys(given)) or known


def run(
    name: str,
    asked: Asked,
    encoder: Encoder,
    store: RunStore,
    *,
    only: Sequence[str] = (),
    data: str | Path | None = None,
    together: int | None = None,
    command: str | None = None,
    watch: Watch | None = None,
    tell: no_bert.Tell | None = None,
) -> Drawn:
    """Train what is missing of an experiment, or of some groups of it, and draw all of it that is stored."""
    from intarsia.lab.paper.running import Running, load_tasks

    experiment = EXPERIMENTS[name]
    groups = group_names(experiment, asked, only)
    check_extra("lab", "matplotlib", *(("sklearn",) if no_bert.GROUP in groups else ()))
    planned = [one for one in experiment.plan(asked, encoder.shape.layers) if one.group in groups]
    loaded, absent = load_tasks(asked.tasks, asked, data)
    if not loaded:
        raise IntarsiaError(f"nothing to learn from: {' '.join(absent.values())} The data folder is that of --data.")
    if asked.max_length is not None and asked.max_length > encoder.max_length:
        raise IntarsiaError(
            f"--max-length {asked.max_length} is more than {encoder.name} reads: {encoder.max_length} tokens at most."
        )
    store.of(encoder)
    with store.working(name, groups) as work:
        before = store.read_asked(name)
        more = before is None or asked.joins(before.asked)
        if more:
            store.note_asked(name, asked, absent, command)
        if planned:
            Running(planned, asked, encoder, store, loaded).run(work, together, watch=watch)
        if no_bert.GROUP in groups:
            no_bert.search_missing(asked, {task: own.data for task, own in loaded.items()}, store, tell=tell)
        if not more:  # another grid, which takes the place of the one before when there is something to draw
            store.note_asked(name, asked, absent, command)
    return draw(name, asked, store, list(absent.values()))


def draw(name: str, asked: Asked, store: RunStore, notes: Sequence[str] = ()) -> Drawn:
    """From what is stored alone."""
    made = EXPERIMENTS[name].draw(Results(store, asked))
    made.notes += [*notes, *store.damaged]
    return made


def draw_last(name: str, store: RunStore) -> Drawn | None:
    """What it was asked for; None where that was nothing."""
    noted = store.read_asked(name)
    return None if noted is None else draw(name, noted.asked, store, list(noted.absent.values()))


def report(store: RunStore) -> Path:
    """All experiments that were run, on one page."""
    encoder = store.encoder
    drawn = [made for name in EXPERIMENTS if (made := draw_last(name, store)) is not None]
    if not drawn:
        raise IntarsiaError(f"no experiment was run in {store.folder}: `intarsia paper glue` is one.")
    for made in drawn:
        made.save(store.figures)
    path = store.folder / "report.html"
    files.replace(path, [page(drawn, encoder["name"]).encode()])
    return path
