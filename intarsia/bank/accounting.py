"""The parameter count of a bank, as in "Parameter-Efficient Transfer Learning for NLP" (Houlsby et al., 2019).

The paper's "total number of parameters" is the base, counted once, plus the parameters trained for each task. The paper
gives it as a multiple of the base: 1.3× for nine tasks with adapters, 9× for nine fine-tuned copies. Every method needs
an output layer for each task, so this module gives both counts: without and with heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from intarsia.bank.entry import Entry
from intarsia.errors import BankError


@dataclass(frozen=True)
class TaskCost:
    """The parameters and bytes that one task adds to the bank."""

    name: str
    version: int
    base: int  # parameters of the frozen base
    method: int  # trained parameters, without the head
    head: int
    bytes: int  # size of the file

    @property
    def trained(self) -> int:
        return self.method + self.head

    @property
    def share(self) -> float:
        """The trained parameters, without the head, as a fraction of the base."""
        return self.method / self.base


@dataclass(frozen=True)
class BankCost:
    """The parameters and bytes of all tasks together."""

    base: int
    tasks: tuple[TaskCost, ...]
    damaged: tuple[str, ...]  # tasks whose file cannot be read; the sums leave them out
    parents: tuple[TaskCost, ...] = ()  # inlays that are not served, on which served ones are built; without heads

    @property
    def method(self) -> int:
        return sum(task.method for task in (*self.tasks, *self.parents))

    @property
    def head(self) -> int:
        return sum(task.head for task in self.tasks)

    @property
    def bytes(self) -> int:
        return sum(task.bytes for task in (*self.tasks, *self.parents))

    @property
    def total(self) -> float:
        """The base plus all trained parameters, without heads, as a multiple of the base."""
        return (self.base + self.method) / self.base

    @property
    def total_with_heads(self) -> float:
        return (self.base + self.method + self.head) / self.base

    @property
    def fine_tuning(self) -> int:
        """The cost of full fine-tuning, one copy of the base for each task, as a multiple of the base."""
        return len(self.tasks)


def account(entries: Iterable[Entry], base_parameters: int, parents: Iterable[Entry] = ()) -> BankCost:
    """Return the cost of `entries` (one for each task) over a base with `base_parameters` parameters. `parents` are
    other inlays on which these are built: each counts once, however many are built on it, and without its head."""
    if base_parameters <= 0:
        raise BankError(
            f"Cannot compute the cost of a bank over a base of {base_parameters} parameters; expected the base's own "
            "count, as stored in bank.json."
        )
    tasks: list[TaskCost] = []
    damaged: list[str] = []
    for entry in entries:
        if entry.state != "ok":
            damaged.append(entry.name)
            continue
        counts = entry.header.parameters
        tasks.append(
            TaskCost(entry.name, entry.version, base_parameters, counts["method"], counts["head"], entry.bytes)
        )
    needed = tuple(
        TaskCost(parent.name, parent.version, base_parameters, parent.header.parameters["method"], 0, parent.bytes)
        for parent in parents
    )
    return BankCost(base_parameters, tuple(tasks), tuple(damaged), needed)
