"""Select settings on validation, and report them: mean and standard error over seeds, percentiles, totals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun
from intarsia.lab.paper.runs import Record, RunStore
from intarsia.methods import Method


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error, which is None for a single value."""

    value: float
    error: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        if len(values) < 2:
            return cls(values[0])
        return cls(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))

    @property
    def bounds(self) -> tuple[float, float, float]:
        """Return the mean, the mean minus the error, and the mean plus the error, times 100."""
        error = self.error or 0.0
        return 100 * self.value, 100 * (self.value - error), 100 * (self.value + error)

    def __str__(self) -> str:
        """Return mean ± error times 100, as papers print scores."""
        value = round(100 * self.value, 1) + 0.0  # never -0.0
        return f"{value:.1f}" + ("" if self.error is None else f"±{100 * self.error:.1f}")


@dataclass(frozen=True)
class SelectedSetting:
    """The setting of a group with the best validation score, and its runs."""

    method: Method
    records: tuple[Record, ...]  # one per seed

    @property
    def score(self) -> Mean:
        return Mean.of([r.test for r in self.records if r.test is not None])

    def extra(self, name: str) -> Mean | None:
        """Return the mean of a further score, such as SQuAD's exact match."""
        values = [float(r.extras[name]) for r in self.records if name in r.extras]
        return Mean.of(values) if values else None

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
    """The stored runs of one experiment's configuration."""

    def __init__(self, store: RunStore, config: ExperimentConfig) -> None:
        self.store, self.config = store, config

    def record(self, planned: PlannedRun) -> Record | None:
        """Return the stored record, or None. Runs on samples count only if the configuration allows samples."""
        found = self.store.find(planned, self.config.pooling, self.config.max_length)
        is_sample = found is not None and found.data.get("partial")
        return None if is_sample and not self.config.samples else found

    def select(
        self, planned: Iterable[PlannedRun], where: Callable[[PlannedRun], bool] = lambda _: True
    ) -> SelectedSetting | None:
        """Return the setting with the best validation mean over seeds, or None without finished runs.

        Only the settings with the most finished runs compete, so a setting with a failed run can win only if every
        setting has one.
        """
        settings: dict[tuple[Any, ...], list[Record]] = {}
        methods: dict[tuple[Any, ...], Method] = {}
        for run in planned:
            record = self.record(run) if where(run) else None
            if record is not None:
                setting = (run.method, run.learning_rate, run.epochs, run.batch_size)
                settings.setdefault(setting, []).append(record)
                methods[setting] = run.method
        most = max((_finished(records) for records in settings.values()), default=0)
        if not most:
            return None
        complete = {setting: records for setting, records in settings.items() if _finished(records) == most}
        best = max(complete, key=lambda setting: _dev(complete[setting]))  # a tie goes to the first, smallest setting
        finished = tuple(r for r in complete[best] if r.test is not None)
        return SelectedSetting(methods[best], finished)


def _finished(records: Sequence[Record]) -> int:
    return sum(r.dev is not None and r.test is not None for r in records)


def _dev(records: Sequence[Record]) -> float:
    return statistics.fmean(r.dev for r in records if r.dev is not None)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile with linear interpolation, as numpy's default."""
    ordered = sorted(values)
    position = share / 100 * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def total(selected: Sequence[SelectedSetting], *, copies: bool = False) -> float:
    """Return the parameters of all tasks in multiples of the base: the base plus each task's method and head.

    `copies` leaves out the base: as in the paper, fine-tuned copies of the encoder do not need it.
    """
    base = selected[0].parameters["base"]
    trained = sum(s.parameters["method"] + s.parameters["head"] for s in selected)
    return trained / base + (0.0 if copies else 1.0)


def share(selected: Sequence[SelectedSetting]) -> float:
    """Return the mean over tasks of the trained parameters, heads included, as a share of the base."""
    base = selected[0].parameters["base"]
    return statistics.fmean((s.parameters["method"] + s.parameters["head"]) / base for s in selected)
