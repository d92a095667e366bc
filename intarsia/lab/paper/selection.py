"""Choosing by validation, and what is reported of the chosen: mean and standard error over seeds, percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.lab.paper.plan import Asked, Planned
from intarsia.lab.paper.runs import Record, RunStore
from intarsia.methods import Method


@dataclass(frozen=True)
class Mean:
    """A mean, and the standard error of it (None: of one value)."""

    value: float
    error: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        if len(values) < 2:
            return cls(values[0])
        return cls(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))

    @property
    def bounds(self) -> tuple[float, float, float]:
        """It, and it less and more the error, times 100."""
        error = self.error or 0.0
        return 100 * self.value, 100 * (self.value - error), 100 * (self.value + error)

    def __str__(self) -> str:
        """Times 100, as the papers give them."""
        value = round(100 * self.value, 1) + 0.0  # never -0.0
        return f"{value:.1f}" + ("" if self.error is None else f"±{100 * self.error:.1f}")


@dataclass(frozen=True)
class Chosen:
    """The setting of a group that was best on validation, with its runs."""

    method: Method
    records: tuple[Record, ...]  # one a seed
    tried: int  # settings

    @property
    def score(self) -> Mean:
        return Mean.of([r.test for r in self.records if r.test is not None])

    def extra(self, name: str) -> Mean | None:
        found = [float(r.extras[name]) for r in self.records if name in r.extras]
        return Mean.of(found) if found else None

    @property
    def dev(self) -> float:
        return statistics.fmean(r.dev for r in self.records if r.dev is not None)

    @property
    def parameters(self) -> dict[str, int]:
        return self.records[0].parameters

    @property
    def data(self) -> dict[str, Any]:
        return self.records[0].data


class Results:
    """The stored runs of what an experiment was asked for."""

    def __init__(self, store: RunStore, asked: Asked) -> None:
        self.store, self.asked = store, asked

    def record(self, planned: Planned) -> Record | None:
        found = self.store.find(planned, self.asked.pooling, self.asked.max_length)
        sample = found is not None and found.data.get("partial")
        return None if sample and not self.asked.samples else found

    def choose(self, planned: Iterable[Planned], which: Callable[[Planned], bool] = lambda _: True) -> Chosen | None:
        """The best setting by the mean over seeds on validation. One with a run that failed only where all have one."""
        settings: dict[tuple[Any, ...], list[Record]] = {}
        methods: dict[tuple[Any, ...], Method] = {}
        for one in planned:
            record = self.record(one) if which(one) else None
            if record is not None:
                setting = (one.method, one.learning_rate, one.epochs, one.batch_size)
                settings.setdefault(setting, []).append(record)
                methods[setting] = one.method
        most = max((_ended(records) for records in settings.values()), default=0)
        if not most:
            return None
        whole = {setting: records for setting, records in settings.items() if _ended(records) == most}
        best = max(whole, key=lambda setting: _dev(whole[setting]))  # of equal ones the first, which is the smallest
        ended = tuple(r for r in whole[best] if r.test is not None)
        return Chosen(methods[best], ended, len(settings))


def _ended(records: Sequence[Record]) -> int:
    return sum(r.dev is not None and r.test is not None for r in records)


def _dev(records: Sequence[Record]) -> float:
    return statistics.fmean(r.dev for r in records if r.dev is not None)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest, as numpy's default."""
    ordered = sorted(values)
    place = share / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def total(chosen: Sequence[Chosen], *, copies: bool = False) -> float:
    """What all tasks together cost, in multiples of the base: the base and what each task trained, heads too.

    `copies`: whole fine-tuned copies need no base beside them, as the paper counts.
    """
    base = chosen[0].parameters["base"]
    trained = sum(c.parameters["method"] + c.parameters["head"] for c in chosen)
    return trained / base + (0.0 if copies else 1.0)


def share(chosen: Sequence[Chosen]) -> float:
    """Trained parameters a task, heads too, as a share of the base: the mean over tasks."""
    base = chosen[0].parameters["base"]
    return statistics.fmean((c.parameters["method"] + c.parameters["head"]) / base for c in chosen)
