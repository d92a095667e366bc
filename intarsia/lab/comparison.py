"""What a comparison of methods found: runs, the rows of its table, and both as plain JSON values."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from intarsia import files
from intarsia.formatting import score

FORMAT = 1  # of comparison.json


@dataclass(frozen=True)
class Result:
    """How one run ended: with a score on test, or (`reason`) without one."""

    key: str
    seed: int
    method: dict[str, Any]
    metric: str
    seconds: float
    settings: dict[str, Any]
    dev: float | None = None
    best_epoch: int | None = None
    test: dict[str, Any] | None = None  # value, low and high of its 95 % bootstrap interval, examples
    steps: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None

    def write(self, folder: Path) -> None:
        files.replace(folder / f"{self.key}.json", [json.dumps(asdict(self), indent=1).encode()])

    @classmethod
    def read(cls, folder: Path, key: str) -> Result | None:
        """The stored result, or None where there is none that can be read."""
        try:
            stored = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
            found = cls(**{f.name: stored[f.name] for f in fields(cls) if f.name in stored})
            return found if found.key == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Score(NamedTuple):
    """A test score with bounds, and what these are."""

    value: float
    low: float
    high: float
    bounds: str  # "95 % bootstrap" of one run, or "standard error" over the runs

    def __str__(self) -> str:
        """Times 100, as the papers give them."""
        shown = [score(x, self.value) for x in (self.value, self.low, self.high, self.high - self.value)]
        return f"{shown[0]} ± {shown[3]}" if self.bounds == "standard error" else f"{shown[0]} ({shown[1]}–{shown[2]})"


@dataclass(frozen=True)
class Row:
    """One method, over its seeds. Without `parameters` it cannot work on this base; `reason` says why."""

    name: str
    method: dict[str, Any]
    parameters: dict[str, int] | None  # method (without the head), head, base
    results: tuple[Result, ...] = ()
    reason: str | None = None
    given: Score | None = None  # a score that is not of these results alone

    @property
    def score(self) -> Score | None:
        return self.given or score_of([result.test for result in self.results if result.test is not None])

    @property
    def seconds(self) -> float | None:
        """The mean of a run that came to its end."""
        took = [result.seconds for result in self.results if result.test is not None]
        return statistics.fmean(took) if took else None

    @property
    def share(self) -> float | None:
        return None if self.parameters is None else self.parameters["method"] / self.parameters["base"]

    @property
    def problems(self) -> list[str]:
        """Why it has no score, or a score of fewer runs than were asked for."""
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
    def from_dict(cls, stored: dict[str, Any]) -> Row:
        """The reverse of `to_dict`."""
        reason = stored["problems"][0] if stored["parameters"] is None else None
        results = tuple(Result(**run) for run in stored["runs"])
        return cls(stored["name"], stored["method"], stored["parameters"], results, reason)


def score_of(tests: Sequence[dict[str, Any]]) -> Score | None:
    """Of one run its bootstrap interval over test rows, of several their mean and its standard error."""
    if not tests:
        return None
    if len(tests) == 1:
        return Score(tests[0]["value"], tests[0]["low"], tests[0]["high"], "95 % bootstrap")
    values = [float(test["value"]) for test in tests]
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return Score(mean, mean - error, mean + error, "standard error")


@dataclass(frozen=True)
class Comparison:
    metric: str
    kind: str
    seeds: int
    rows: tuple[Row, ...]  # by parameters; those that cannot work at the end
    baseline: dict[str, Any] | None  # the best model without a pretrained transformer, where one was asked for
    provenance: dict[str, Any]

    def row(self, name: str) -> Row:
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
        """The reverse of `to_dict`: what comparison.json holds, to be drawn again or read by a program."""
        rows = tuple(Row.from_dict(row) for row in stored["rows"])
        seeds, baseline = len(stored["seeds"]), stored["no_bert"]
        return cls(stored["metric"], stored["kind"], seeds, rows, baseline, stored["provenance"])


def in_order(rows: Sequence[Row]) -> tuple[Row, ...]:
    """By trained parameters, of equal ones as given; rows without any figure at the end."""
    return tuple(sorted(rows, key=lambda row: math.inf if row.parameters is None else row.parameters["method"]))
