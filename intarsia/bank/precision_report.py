"""The loss of int8 over all tasks of a bank: scores, answers and speed, beside float32.

A task is scored on data that the caller names, else on the test part of the data that it learned from. The recorded
seed and columns give the same test part again; the recorded hash tells whether the data is still the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from intarsia.bank import family
from intarsia.bank.entry import Entry
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import DataError, IntarsiaError
from intarsia.serve.scoring import predictions
from intarsia.tasks.data import load_sentences, load_texts
from intarsia.tasks.examples import Example, Kind
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.learned import Learned
from intarsia.tasks.metrics import default_metric
from intarsia.tasks.named import load_again, load_named_examples
from intarsia.tasks.reading import stem

UNBOUNDED = ("perplexity", "mse", "mae")  # metrics that are not shares: their differences are not points


@dataclass(frozen=True)
class Measured:
    """One task in one precision."""

    score: float | None  # None without labels
    seconds: float


@dataclass(frozen=True)
class TaskReport:
    """One task. `problem` says why nothing was measured."""

    task: str
    version: int
    kind: str
    problem: str | None = None
    data: str | None = None
    metric: str | None = None
    rows: int = 0
    tokens: int = 0
    precisions: dict[str, Measured] = field(default_factory=dict)
    changed: float | None = None  # share of answers (tags: of words) that differ; None for numbers

    @property
    def points(self) -> float | None:
        """The score in int8 minus the score in float32, in hundredths."""
        first, last = self.precisions.get("float32"), self.precisions.get("int8")
        if first is None or last is None or first.score is None or last.score is None or self.metric in UNBOUNDED:
            return None
        return 100 * (last.score - first.score)


@dataclass(frozen=True)
class PrecisionReport:
    """All tasks of a bank."""

    base: str
    tasks: tuple[TaskReport, ...]

    @property
    def points(self) -> float | None:
        """The mean change of the scores, in hundredths, over the tasks with labels."""
        return _mean([task.points for task in self.tasks])

    @property
    def changed(self) -> float | None:
        """The mean share of changed answers."""
        return _mean([task.changed for task in self.tasks])

    def speed(self, precision: str) -> float | None:
        """Tokens each second over all tasks, without tokenizing."""
        measured = [task for task in self.tasks if precision in task.precisions]
        seconds = sum(task.precisions[precision].seconds for task in measured)
        return sum(task.tokens for task in measured) / seconds if seconds else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "points": self.points,
            "changed": self.changed,
            "tokens_per_second": {p: speed for p in ("float32", "bf16", "int8") if (speed := self.speed(p))},
            "tasks": [{**asdict(task), "points": task.points} for task in self.tasks],
        }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def compare(
    store: Store,
    encoder: Encoder,
    data: Mapping[str, Any] | str | Path | None = None,
    *,
    texts: str | Path | None = None,
    limit: int | None = None,
    watch: Callable[[str], None] | None = None,
    **columns: Any,
) -> PrecisionReport:
    """Measure every task. An int8 base is measured in float32, too, and is an int8 base again afterwards.

    `data` maps tasks to labelled data, or is a folder with files or folders named after tasks. `texts` is a file with
    texts: tasks without labelled data are compared by their answers. `limit` is the largest number of rows for each
    task. `watch` is called with the name of each task.
    """
    if limit is not None and limit < 1:
        raise IntarsiaError(f"limit={limit} leaves no rows. Expected at least 1.")
    entries = [entry for entry in store.entries() if _kind(entry) != "none"]  # without a head there is no answer
    given = _given(data, [entry.name for entry in entries])
    reports = []
    for entry in entries:
        if watch is not None:
            watch(entry.name)
        try:
            reports.append(_task(store, entry, encoder, given.get(entry.name), texts, limit, columns))
        except IntarsiaError as error:  # the other tasks are still measured
            reports.append(TaskReport(entry.name, entry.version, _kind(entry), problem=str(error)))
    return PrecisionReport(encoder.name, tuple(reports))


def _kind(entry: Entry) -> str:
    return entry.header.kind if entry.state == "ok" else "damaged"


def _given(data: Mapping[str, Any] | str | Path | None, names: Sequence[str]) -> dict[str, Any]:
    """Return the data that the caller gave, by task."""
    if isinstance(data, Mapping):
        unknown = sorted(data.keys() - set(names))
        if unknown:
            raise IntarsiaError(f"data was given for {unknown[0]!r}, but the bank has no such task.")
        return dict(data)
    if data is None:
        return {}
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Expected a folder with files or folders named after tasks.")
    found = {stem(path) if path.is_file() else path.name: path for path in sorted(folder.iterdir())}
    chosen = {name: found[name] for name in names if name in found}
    if not chosen:
        raise DataError(f"{folder} holds no file or folder named after a task of the bank, such as {names[:3]}.")
    return chosen


def _task(
    store: Store,
    entry: Entry,
    encoder: Encoder,
    given: Any,
    texts: str | Path | None,
    limit: int | None,
    columns: Mapping[str, Any],
) -> TaskReport:
    inlay = store.load(entry.name, entry.version)
    interface, kind = inlay.interface, cast(Kind, inlay.kind)
    metric: str | None = inlay.metrics.get("metric") or default_metric(kind, inlay.labels)
    if given is not None:
        examples = load_named_examples(given, kind=kind, labels=tuple(inlay.labels), **columns)
        source = str(given) if isinstance(given, str | Path) else "given"
    else:
        try:
            examples, source = _test_part(inlay.data, kind)
        except IntarsiaError as error:
            if texts is None:
                raise DataError(
                    f"{error} Give its data with --data {entry.name}=FILE, or texts with --texts."
                ) from error
            examples, source, metric = _unlabelled(texts, entry.name, kind, interface), str(texts), None
    examples = examples[:limit]
    inputs = interface.inputs(examples, encoder)
    learned = family.learned_on(store, inlay, encoder)
    measured, outputs = {}, []
    for precision in ("float32", "int8") if encoder.precision == "int8" else (encoder.precision,):
        found, seconds = _run(learned, inputs, encoder, precision)
        score = metric and learned.task_kind.measure(metric, examples, inputs, found, 0).value
        measured[precision] = Measured(None if metric is None else float(cast(float, score)), seconds)
        outputs.append(_decisions(kind, learned.task_kind.describe_all(examples, inputs, found)))
    changed = None
    if len(outputs) == 2 and kind != "score":
        changed = float(np.mean([a != b for a, b in zip(*outputs, strict=True)]))
    tokens = sum(len(segment.ids) for segment in inputs.segments)
    return TaskReport(entry.name, entry.version, kind, None, source, metric, len(examples), tokens, measured, changed)


def _run(learned: Learned, inputs: Inputs, encoder: Encoder, precision: str) -> tuple[list[np.ndarray], float]:
    """Return the outputs of one task in one precision, and the time of the passes."""
    in_int8 = encoder.precision == "int8"
    try:
        if in_int8 and precision != "int8":
            encoder.use_int8(False)
        predictions(learned, Inputs(inputs.segments[:1]), encoder)  # lays out weights and fills caches
        began = time.perf_counter()
        found = predictions(learned, inputs, encoder)
        return found, time.perf_counter() - began
    finally:
        if in_int8:
            encoder.use_int8()


def _test_part(recorded: Mapping[str, Any], kind: Kind) -> tuple[list[Example], str]:
    """Return the test part (dev, if there is none) of the data that a task learned from, and what it is."""
    origin, path = recorded.get("from"), recorded.get("path")
    source: Any = recorded.get("files") if origin == "files" else path
    if origin not in ("file", "folder", "files") or not source:
        raise DataError(f"the data that it learned from is not a file (it is from {origin or 'an unknown source'}).")
    for one in source.values() if isinstance(source, Mapping) else [source]:
        if not recorded.get("suite") and not Path(one).expanduser().exists():
            raise DataError(f"the data that it learned from is no longer at {one}.")
    found = load_again(kind, recorded)
    part = "test" if found.test else "dev"
    same = found.source["sha256"] == recorded.get("sha256")
    return (found.test or found.dev), f"{part} part of {path or 'its files'}" + ("" if same else " (changed since)")


def _unlabelled(texts: str | Path, name: str, kind: Kind, interface: Any) -> list[Example]:
    if kind == "span":
        raise DataError("it answers questions about a context, which a file of texts does not hold.")
    requests = load_sentences(texts) if kind == "tags" else load_texts(texts)
    return [interface.task_kind.parse_request(text, name, interface.pairs) for text in requests]


def _decisions(kind: Kind, answers: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what a user acts on in each answer: labels, tags by word, or the text of an answer."""
    if kind == "tags":
        return [word["tag"] for answer in answers for word in answer["tags"]]
    if kind == "words":
        return [mask["words"][0]["word"] for answer in answers for mask in answer["masks"]]
    return [answer.get({"labels": "labels", "span": "answer"}.get(kind, "label")) for answer in answers]
