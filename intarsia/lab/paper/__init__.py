"""The tables and figures of Houlsby et al. 2019.

All runs of an experiment are trained through one queue and stored under `results`; tables and figures are drawn from
the stored runs. An experiment is a plan of runs, a selection on validation, and a report. To add an experiment, write a
file and add it to EXPERIMENTS.
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
from intarsia.lab.paper.experiment import Experiment
from intarsia.lab.paper.experiment_report import ExperimentReport
from intarsia.lab.paper.further import FURTHER
from intarsia.lab.paper.glue import GLUE
from intarsia.lab.paper.init import INIT
from intarsia.lab.paper.methods import METHODS_COMPARED
from intarsia.lab.paper.page import page
from intarsia.lab.paper.plan import SUITES, ExperimentConfig
from intarsia.lab.paper.runs import RunStore
from intarsia.lab.paper.selection import Results
from intarsia.lab.paper.squad import SQUAD
from intarsia.lab.paper.tradeoff import TRADEOFF
from intarsia.tasks.suites.registry import chosen, find

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.train.runner import RunnerWatch

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (GLUE, FURTHER, SQUAD, TRADEOFF, ABLATION, INIT, ALTERNATIVES, METHODS_COMPARED)
}


def task_names(experiment: Experiment, given: Sequence[str]) -> tuple[str, ...]:
    """Return the full names of the given tasks (`cola`, `glue/cola` or `glue`), or the experiment's own tasks."""
    if not given:
        return experiment.tasks
    suites = dict.fromkeys(task.partition("/")[0] for task in experiment.tasks)
    found = []
    of_suite = {"glue": GLUE.tasks, "extra": FURTHER.tasks, "squad": SQUAD.tasks}
    usable = [suite for suite in SUITES if any(task.kind in experiment.kinds for task in chosen(suite))]
    for name in (task for text in given for task in of_suite.get(text, (text,))):
        own = [f"{suite}/{name}" for suite in suites if f"{suite}/{name}" in experiment.tasks]
        task = find(own[0] if own else _full_name(name if "/" in name else f"{next(iter(suites))}/{name}"))
        if task.kind not in experiment.kinds or task.suite not in usable or set(task.rows) == {"test"}:
            raise IntarsiaError(
                f"{task.full_name} cannot be used in `intarsia paper {experiment.name}`. Expected a task of "
                f"{' or '.join(usable)} that has a train part."
            )
        found.append(task.full_name)
    return tuple(dict.fromkeys(found))


def _full_name(name: str) -> str:
    """Complete a name without its last version number: `squad/v2` → `squad/v2.0`."""
    matching = [task.full_name for task in chosen(None) if task.full_name.startswith(f"{name}.")]
    return matching[0] if len(matching) == 1 else name


def group_names(experiment: Experiment, config: ExperimentConfig, given: Sequence[str]) -> tuple[str, ...]:
    """Return the given groups of runs, or all groups of the experiment."""
    planned = dict.fromkeys(run.group for run in experiment.plan(config, 1))  # the groups do not depend on the depth
    known = (*planned, *((no_bert.GROUP,) if experiment.no_bert else ()))
    for group in given:
        if group not in known:
            raise IntarsiaError(
                f"`intarsia paper {experiment.name}` has no group {group!r}. Groups for --only: {', '.join(known)}."
            )
    return tuple(dict.fromkeys(given)) or known


def run(
    name: str,
    config: ExperimentConfig,
    encoder: Encoder,
    store: RunStore,
    *,
    only: Sequence[str] = (),
    data: str | Path | None = None,
    together: int | None = None,
    command: str | None = None,
    watch: RunnerWatch | None = None,
    log: no_bert.Log | None = None,
) -> ExperimentReport:
    """Train the missing runs of an experiment, or of its `only` groups, and draw the report of all stored runs."""
    from intarsia.lab.paper.running import load_tasks, train_missing

    experiment = EXPERIMENTS[name]
    groups = group_names(experiment, config, only)
    check_extra("lab", "matplotlib", *(("sklearn",) if no_bert.GROUP in groups else ()))
    planned = [run for run in experiment.plan(config, encoder.shape.layers) if run.group in groups]
    loaded, skipped = load_tasks(config.tasks, config, data)
    if not loaded:
        raise IntarsiaError(f"no task to train on: {' '.join(skipped.values())} Check the data folder (--data).")
    if config.max_length is not None and config.max_length > encoder.max_length:
        raise IntarsiaError(
            f"--max-length {config.max_length} is more than {encoder.name} can read. Expected at most "
            f"{encoder.max_length} tokens."
        )
    store.check_encoder(encoder)
    with store.work_folders(name, groups) as work:
        before = store.read_config(name)
        extends = before is None or config.extends(before.config)
        if extends:
            store.store_config(name, config, skipped, command)
        if planned:
            train_missing(planned, config, encoder, store, loaded, work, together, watch=watch)
        if no_bert.GROUP in groups:
            no_bert.search_missing(config, {name: task.data for name, task in loaded.items()}, store, log=log)
        if not extends:  # another grid replaces the stored configuration only now, when it has runs to draw
            store.store_config(name, config, skipped, command)
    return draw(name, config, store, list(skipped.values()))


def draw(name: str, config: ExperimentConfig, store: RunStore, notes: Sequence[str] = ()) -> ExperimentReport:
    """Draw an experiment from the stored runs. Needs neither data nor encoder."""
    drawn = EXPERIMENTS[name].draw(Results(store, config))
    drawn.notes += [*notes, *store.damaged]
    return drawn


def draw_last(name: str, store: RunStore) -> ExperimentReport | None:
    """Draw an experiment with its stored configuration; return None if it never ran."""
    stored = store.read_config(name)
    return None if stored is None else draw(name, stored.config, store, list(stored.skipped.values()))


def report(store: RunStore) -> Path:
    """Write one HTML page with all experiments that ran; return its path."""
    encoder = store.encoder
    reports = [drawn for name in EXPERIMENTS if (drawn := draw_last(name, store)) is not None]
    if not reports:
        raise IntarsiaError(f"no experiment has run in {store.folder}. Run one first, such as `intarsia paper glue`.")
    for drawn in reports:
        drawn.save(store.figures)
    path = store.folder / "report.html"
    files.replace(path, [page(reports, encoder["name"]).encode()])
    return path
