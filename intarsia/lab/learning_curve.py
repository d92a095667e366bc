"""The learning curve of a task: its test score over the number of training rows. How many labels are enough?

from intarsia.lab.learning_curve import learning_curve

curve = learning_curve("reviews.csv", [50, 200, 1000], seeds=3)
curve.points[0].score

The runs of all sizes and seeds form one queue and share passes. A larger sample contains the smaller ones of its seed.
All runs are validated and tested on the same rows. Results are stored, so that a killed curve resumes.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import IntarsiaError, IntarsiaWarning, check_extra
from intarsia.formatting import score as shown
from intarsia.lab.compare import hashed, metric_of, own_folder, provenance_of
from intarsia.lab.report import COLOURS, new_figure, tidy
from intarsia.methods import Bottleneck, Method, to_dict
from intarsia.tasks import TaskData
from intarsia.tasks.intervals import range_of
from intarsia.tasks.metrics import title_of
from intarsia.tasks.named import load_named
from intarsia.tasks.notes import imbalance
from intarsia.tasks.splits import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from intarsia.encoder.encoder import Encoder
    from intarsia.tasks.heads import Pooling
    from intarsia.train.job import Job
    from intarsia.train.runner import RunnerWatch

FILES = ("learning-curve.json", "learning-curve.png")
ALL = "all"  # as a size: every training row


@dataclass(frozen=True)
class CurvePoint:
    """The test score after training on a number of rows."""

    rows: int
    score: float  # the mean over the seeds
    low: float
    high: float  # the mean ± its standard error over seeds and test rows, within what the metric can be; for one seed,
    # the 95 % interval
    error: float  # the standard error; for one seed, half the interval
    scores: tuple[float, ...]  # by seed
    seconds: float  # of a run, in the mean


@dataclass(frozen=True)
class LearningCurve:
    """The points of a task's learning curve, by size."""

    metric: str
    seeds: int
    points: tuple[CurvePoint, ...]
    problems: tuple[str, ...]  # of runs that failed
    provenance: dict[str, Any]

    @property
    def advice(self) -> str:
        """What the last two points say about more rows."""
        if len(self.points) < 2:
            return ""
        before, last = self.points[-2:]
        gain = last.score - before.score
        error = math.hypot(last.error, before.error)
        change = f"From {before.rows:,} to {last.rows:,} rows, {self.metric} changes by {100 * gain:+.1f}"
        if gain > 2 * error:
            return f"{change}: more rows still help."
        if gain > error:
            return f"{change}: more rows probably help a little."
        return f"{change}, within the error of {100 * error:.1f}: this curve does not show that more rows help."

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric, "seeds": self.seeds, "points": [dataclasses.asdict(p) for p in self.points],
            "advice": self.advice, "problems": list(self.problems), "provenance": self.provenance,
        }  # fmt: skip


def learning_curve(
    data: Any,
    sizes: Sequence[int | str] = (),
    method: Method | None = None,
    *,
    seeds: int = 3,
    encoder: str | Path | Encoder | None = None,
    device: str = "cpu",
    folder: str | Path = "learning-curve",
    pooling: Pooling = "mean",
    metric: str | None = None,
    together: int | None = None,
    command: str | None = None,
    watch: RunnerWatch | None = None,
    columns: dict[str, Any] | None = None,
    **settings: Any,
) -> LearningCurve:
    """Train on samples of each size with the seeds 0 … `seeds` - 1, score each run on the test part; return the curve.

    `sizes` are numbers of training rows, or "all"; () doubles from 50 to all rows. `settings` apply to all runs; the
    other settings follow the method's recipe, so small samples get more epochs.
    """
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.sources import EMBEDDED
    from intarsia.lab.comparison_runs import ComparisonResults
    from intarsia.train.job import Job, Settings
    from intarsia.train.runner import Runner

    check_extra("lab", "matplotlib")
    task = hashed(data if isinstance(data, TaskData) else load_named(data, **(columns or {})))
    counts = _checked(sizes, task, seeds)
    given_metric, metric = metric, metric_of(task, metric)
    method = method or Bottleneck()
    jobs: dict[int, list[Job]] = {}
    for rows in counts:
        parts = [(seed, _sampled(task, rows, seed)) for seed in range(seeds)]
        jobs[rows] = [
            Job("curve", part, method, pooling, Settings.for_task(method, part, **settings, metric=metric, seed=seed))
            for seed, part in parts
        ]
    if given_metric is None and settings.get("class_weights") is None and (note := imbalance(task)) is not None:
        warnings.warn(note, IntarsiaWarning, stacklevel=2)
    base = encoder if isinstance(encoder, Encoder) else Encoder.load(encoder or EMBEDDED, device=device)
    with own_folder(Path(folder)) as runs:
        work = Path(folder) / "work"
        files.make_folder(work)
        results = ComparisonResults(base, runs, metric)
        every = [job for of_size in jobs.values() for job in of_size]
        Runner(every, base, work, results, watch=watch).run(together)
        _remove_empty(work)
        keys = {rows: [job.key(base.fingerprint) for job in of_size] for rows, of_size in jobs.items()}
        found = {rows: [results.found[key] for key in of_size] for rows, of_size in keys.items()}
        points = [_point(metric, rows, [r for r in of_size if r.test is not None]) for rows, of_size in found.items()]
        problems = [f"{rows} rows, seed {r.seed}: {r.reason}" for rows, of in found.items() for r in of if r.reason]
        origin = provenance_of(base, task, settings, pooling, seeds, command) | {"method": to_dict(method)}
        curve = LearningCurve(metric, seeds, tuple(p for p in points if p is not None), tuple(problems), origin)
        _write(curve, Path(folder))
    return curve


def _checked(sizes: Sequence[int | str], task: TaskData, seeds: int) -> list[int]:
    """Return the sizes as numbers of rows, ascending."""
    most = len(task.train)
    if seeds < 1:
        raise IntarsiaError(f"Got {seeds} seeds; expected at least 1.")
    if not sizes:
        doubled = [50 * 2**i for i in range(12)]
        sizes = [*(size for size in doubled if len(task.labels) <= size < 0.75 * most), most]
    counts = sorted({most if size == ALL else int(size) for size in sizes})
    least = max(2, len(task.labels))
    if counts[0] < least or counts[-1] > most:
        raise IntarsiaError(
            f"The sizes {', '.join(map(str, counts))} do not fit: the data has {most:,} training rows"
            f"{f' and {len(task.labels)} labels' if task.labels else ''}. Expected sizes from {least} to {most:,}, or "
            f"{ALL!r}."
        )
    return counts


def _sampled(task: TaskData, rows: int, seed: int) -> TaskData:
    """Return the task with a stratified sample of its training rows; larger samples contain smaller ones."""
    train = sample(task.train, rows, seed=seed, kind=task.kind)
    return hashed(dataclasses.replace(task, train=train, source={"of": task.source["sha256"]}))


def _point(metric: str, rows: int, results: Sequence[Any]) -> CurvePoint | None:
    if not results:
        return None
    scores = tuple(result.test["value"] for result in results)
    mean = sum(scores) / len(scores)
    if len(scores) == 1:
        low, high = results[0].test["low"], results[0].test["high"]
        error = (high - low) / 2
    else:
        by_seed = sum((s - mean) ** 2 for s in scores) / (len(scores) - 1) / len(scores)
        by_rows = sum(((r.test["high"] - r.test["low"]) / (2 * 1.96)) ** 2 for r in results) / len(results)
        error = math.sqrt(by_seed + by_rows)
        least, most = range_of(metric)
        low, high = max(least, mean - error), min(most, mean + error)
    return CurvePoint(rows, mean, low, high, error, scores, sum(r.seconds for r in results) / len(results))


def figure_of(curve: LearningCurve) -> Figure:
    """Return the figure: test score over training rows, on a logarithmic scale."""
    figure = new_figure(6.4, 3.8)
    axes = figure.add_subplot()
    rows = [p.rows for p in curve.points]
    axes.fill_between(
        rows, [100 * p.low for p in curve.points], [100 * p.high for p in curve.points], color=COLOURS[0], alpha=0.15,
        linewidth=0,
    )  # fmt: skip
    for p in curve.points:
        if len(p.scores) > 1:
            axes.plot([p.rows] * len(p.scores), [100 * s for s in p.scores], "o", color=COLOURS[0], alpha=0.35, ms=4)
    axes.plot(rows, [100 * p.score for p in curve.points], "o-", color=COLOURS[0], linewidth=1.6, ms=6)
    for p in curve.points:
        axes.annotate(
            shown(p.score), (p.rows, 100 * p.score), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_xscale("log")
    axes.set_xticks(rows, [f"{n:,}" for n in rows])
    axes.minorticks_off()
    axes.set_xlabel("training rows")
    axes.set_ylabel(f"test {title_of(curve.metric).lower()}")
    about = "mean ± standard error over seeds and test rows" if curve.seeds > 1 else "95 % interval over the test rows"
    axes.set_title(f"{curve.seeds} seed{'s' * (curve.seeds > 1)}; {about}", fontsize=9, color="#555555", loc="right")
    axes.margins(y=0.18)
    tidy(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    return figure


def _write(curve: LearningCurve, folder: Path) -> None:
    stored = json.dumps(curve.to_dict(), indent=1, ensure_ascii=False).encode()
    files.replace(folder / FILES[0], [stored])
    if curve.points:
        image = io.BytesIO()
        figure_of(curve).savefig(image, format="png", dpi=150)
        files.replace(folder / FILES[1], [image.getvalue()])


def _remove_empty(work: Path) -> None:
    """Remove the working folder unless checkpoints of runs that can resume are in it."""

    if not list(work.glob("*/state.safetensors")):
        files.remove_folder(work)
