"""The results of a comparison: its runs, the rows of its table, and their conversion to JSON values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from intarsia import files
from intarsia.formatting import score

FORMAT = 1  # the version of the format of comparison.json


@dataclass(frozen=True)
class Result:
    """The result of one run: a test score, or the `reason` why there is none."""

    key: str
    seed: int
    method: dict[str, Any]
    metric: str
    seconds: float
    settings: dict[str, Any]
    dev: float | None = None
    best_epoch: int | None = None
    test: dict[str, Any] | None = None  # value, low and high (the 95 % interval), examples
    steps: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None

    def write(self, folder: Path) -> None:
        files.replace_checked(folder / f"{self.key}.json", asdict(self))

    @classmethod
    def read(cls, folder: Path, key: str) -> Result | None:
        """Return the stored result, or None if there is no readable result."""
        try:
            stored = files.read_checked(folder / f"{key}.json")
            result = cls(**{f.name: stored[f.name] for f in fields(cls) if f.name in stored})
            return result if result.key == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Score(NamedTuple):
    """A test score with its bounds, and the meaning of the bounds."""

    value: float
    low: float
    high: float
    bounds: str  # "95 % interval" for one run, "standard error" for several

    def __str__(self) -> str:
        """Return the score and its bounds times 100, as in the papers."""
        shown = [score(x, self.value) for x in (self.value, self.low, self.high, self.high - self.value)]
        return f"{shown[0]} ± {shown[3]}" if self.bounds == "standard error" else f"{shown[0]} ({shown[1]}–{shown[2]})"


@dataclass(frozen=True)
class ComparisonRow:
    """One method with the runs of all its seeds. If the method does not fit this base, `parameters` is None and
    `reason` says why."""

    name: str
    method: dict[str, Any]
    parameters: dict[str, int] | None  # method (without the head), head, base
    results: tuple[Result, ...] = ()
    reason: str | None = None
    given: Score | None = None  # a score from elsewhere, used instead of the mean of `results`

    @property
    def score(self) -> Score | None:
        """The test score over all scored runs."""
        return self.given or score_of([result.test for result in self.results if result.test is not None])

    @property
    def seconds(self) -> float | None:
        """The mean time of the scored runs."""
        times = [result.seconds for result in self.results if result.test is not None]
        return statistics.fmean(times) if times else None

    @property
    def share(self) -> float | None:
        """The number of trained parameters, relative to the base."""
        return None if self.parameters is None else self.parameters["method"] / self.parameters["base"]

    @property
    def problems(self) -> list[str]:
        """The reasons why the row has no score, or has fewer scored runs than seeds."""
        if self.reason is not None:
            return [self.reason]
        return [f"seed {result.seed}: {result.reason}" for result in self.results if result.reason is not None]

    def to_dict(self) -> dict[str, Any]:
        score = self.score
        return {
            "name": self.name,
            "method": self.method,
            "parameters": self.parameters,
            "share": self.share,
            "score": None if score is None else score._asdict(),
            "seconds": self.seconds,
            "problems": self.problems,
            "runs": [asdict(result) for result in self.results],
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> ComparisonRow:
        """Return the row that `to_dict` wrote."""
        reason = stored["problems"][0] if stored["parameters"] is None else None
        results = tuple(Result(**run) for run in stored["runs"])
        return cls(stored["name"], stored["method"], stored["parameters"], results, reason)


def score_of(tests: Sequence[dict[str, Any]]) -> Score | None:
    """Return the score of one run with its bootstrap interval, or the mean of several runs with its standard error."""
    if not tests:
        return None
    if len(tests) == 1:
        return Score(tests[0]["value"], tests[0]["low"], tests[0]["high"], "95 % interval")
    values = [float(test["value"]) for test in tests]
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return Score(mean, mean - error, mean + error, "standard error")


@dataclass(frozen=True)
class Comparison:
    """A finished comparison."""

    metric: str
    kind: str
    seeds: int
    rows: tuple[ComparisonRow, ...]  # sorted by trained parameters; methods that do not fit the base come last
    baseline: dict[str, Any] | None  # the best model without a transformer, if it was searched for
    provenance: dict[str, Any]

    def row(self, name: str) -> ComparisonRow:
        """Return the row of a method."""
        return next(row for row in self.rows if row.name == name)

    @property
    def baseline_score(self) -> Score | None:
        if self.baseline is None or self.baseline.get("metrics") is None:
            return None
        return score_of([self.baseline["metrics"]["test"]])

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "metric": self.metric,
            "kind": self.kind,
            "seeds": list(range(self.seeds)),
            "rows": [row.to_dict() for row in self.rows],
            "no_bert": self.baseline,
            "provenance": self.provenance,
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Comparison:
        """Return the comparison that `to_dict` wrote, which is the content of comparison.json."""
        rows = tuple(ComparisonRow.from_dict(row) for row in stored["rows"])
        seeds, baseline = len(stored["seeds"]), stored["no_bert"]
        return cls(stored["metric"], stored["kind"], seeds, rows, baseline, stored["provenance"])


def in_order(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Return the rows sorted by trained parameters; equal rows keep their order, rows without a count come last."""
    return tuple(sorted(rows, key=lambda row: math.inf if row.parameters is None else row.parameters["method"]))
