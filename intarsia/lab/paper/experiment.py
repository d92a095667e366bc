"""An experiment: the runs that it needs, and the report that it draws from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.lab.paper.experiment_report import ExperimentReport
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun
from intarsia.lab.paper.selection import Results


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    tasks: tuple[str, ...]  # the default of --tasks
    plan: Callable[[ExperimentConfig, int], list[PlannedRun]]  # from the configuration and the number of layers
    draw: Callable[[Results], ExperimentReport]
    kinds: tuple[str, ...] = ("label", "score")  # task kinds that it accepts
    no_bert: bool = False  # whether it also runs the search without a transformer
