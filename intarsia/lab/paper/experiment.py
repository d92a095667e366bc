"""What an experiment is: the runs that it needs, and what it shows of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intarsia.lab.paper.drawn import Drawn
from intarsia.lab.paper.plan import Asked, Planned
from intarsia.lab.paper.selection import Results


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    tasks: tuple[str, ...]  # unless others are named
    plan: Callable[[Asked, int], list[Planned]]  # for an encoder of so many layers
    draw: Callable[[Results], Drawn]
    kinds: tuple[str, ...] = ("label", "score")  # of tasks that it is for
    no_bert: bool = False  # whether a search without a transformer stands beside the runs
