"""What a bank costs, counted as "Parameter-Efficient Transfer Learning for NLP" (Houlsby et al., 2019) counts.

The paper's "total number of parameters" is the base, once, and what each task trained, as a multiple of the base: 1.3×
for nine tasks with adapters, against 9× for nine fine-tuned copies. A task's output layer is needed whichever method is
used; both counts, without and with it, are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from intarsia.bank.entry import Entry
from intarsia.errors import BankError


@dataclass(frozen=True)
class TaskCost:
    """What one task added to the bank."""

    name: str
    version: int
    base: int  # parameters of the frozen base
    method: int  # trained parameters, without the head
    head: int
    bytes: int  # of the file

    @property
    def trained(self) -> int:
        return self.method + self.head

    @property
    def share(self) -> float:
        """Trained parameters, without the head, as a share of the base."""
        return self.method / self.base


@dataclass(frozen=True)
class BankCost:
    """What all tasks together cost."""

    base: int
    tasks: tuple[TaskCost, ...]
    damaged: tuple[str, ...]  # tasks whose file cannot be read, and which are not in the sums

    @property
    def method(self) -> int:
        return sum(task.method for task in self.tasks)

    @property
    def head(self) -> int:
        return sum(task.head for task in self.tasks)

    @property
    def bytes(self) -> int:
        return sum(task.bytes for task in self.tasks)

    @property
    def total(self) -> float:
        """Base and what every task trained, without heads, in multiples of the base."""
        return (self.base + self.method) / self.base

    @property
    def total_with_heads(self) -> float:
        return (self.base + self.method + self.head) / self.base

    @property
    def fine_tuning(self) -> int:
        """What full fine-tuning would cost, in multiples of the base: a copy of it for each task."""
        return len(self.tasks)


def account(entries: Iterable[Entry], base_parameters: int) -> BankCost:
    """Add up what `entries` (one for each task) cost over a base of `base_parameters`."""
    if base_parameters <= 0:
        raise BankError(
            f"A bank cannot be counted over a base of {base_parameters} parameters; the base's own number was "
            "expected, as bank.json has it."
        )
    tasks: list[TaskCost] = []
    damaged: list[str] = []
    for entry in entries:
        if entry.state != "ok":
            damaged.append(entry.name)
            continue
        counts = entry.header.parameters
        missing = [key for key in ("method", "head") if key not in counts]
        if missing:
            raise BankError(f"{entry.path} does not say how many parameters its {' and '.join(missing)} trained.")
        tasks.append(
            TaskCost(entry.name, entry.version, base_parameters, counts["method"], counts["head"], entry.bytes)
        )
    return BankCost(base_parameters, tuple(tasks), tuple(damaged))
