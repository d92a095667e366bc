"""Compares methods on one task: it trains every method with every seed on the same rows.

from intarsia.lab.compare import compare

comparison = compare("reviews.csv", ["houlsby-64", "lora", "full"], seeds=3)
comparison.row("lora").score

All runs form one queue and share passes. The results of ended runs and the checkpoints of active runs are stored, so
that the same call resumes a killed comparison. For a finished comparison, it writes the report again without training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files, provenance
from intarsia.errors import IntarsiaError, check_extra
from intarsia.lab.comparison import Comparison, in_order
from intarsia.methods import Method, parse
from intarsia.tasks import TaskData
from intarsia.tasks.named import load_named

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.encoder.encoder import Encoder
    from intarsia.lab.no_bert import SearchWatch
    from intarsia.tasks.heads import Pooling
    from intarsia.train.job import Job
    from intarsia.train.runner import RunnerWatch

METHODS = ("houlsby-64", "pfeiffer", "lora", "bitfit", "layernorm", "top-2", "features", "full", "lt-sft-0.5%")


def compare(
    data: Any,
    methods: Sequence[str] | Mapping[str, Method] = METHODS,
    *,
    seeds: int = 3,
    encoder: str | Path | Encoder | None = None,
    bank: str | Path | Bank | None = None,
    device: str = "cpu",
    folder: str | Path = "comparison",
    pooling: Pooling = "mean",
    learning_rate: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    metric: str | None = None,
    no_bert: float | None = None,
    together: int | None = None,
    command: str | None = None,
    watch: RunnerWatch | None = None,
    search_watch: SearchWatch | None = None,
    **columns: Any,
) -> Comparison:
    """Train each method with the seeds 0 … `seeds` - 1, score each run on the test part, and return the comparison.

    The dev part selects each run's best epoch. `data` and `columns` are as for `load_data`, which splits with one seed
    for all runs. Settings that are not given follow each method's recipe. `no_bert` is the number of minutes for a
    search for a model without a transformer. Results are stored in `folder`. A method that diverges, or that does not
    fit this encoder, has a row with the reason. `bank` has the tasks that compositions name, and its base is used.

    `together` is the number of runs that share a pass (None: as many as fit). The time of a run is its share of these
    passes by tokens. With `together=1` every run is trained and timed alone. `watch` is called with the events of the
    runs, `search_watch` with the progress of the search.
    """
    from intarsia.bank.bank import Bank
    from intarsia.bank.family import with_parents
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.sources import EMBEDDED
    from intarsia.lab.comparison_files import write
    from intarsia.lab.comparison_runs import search_without_transformer, train_rows
    from intarsia.tasks.heads import Head
    from intarsia.tasks.kind_registry import default_length

    check_extra("lab", "matplotlib", *(() if no_bert is None else ("sklearn",)))
    named = dict(methods) if isinstance(methods, Mapping) else {text: parse(text) for text in methods}
    if not named or seeds < 1:
        raise IntarsiaError(f"Got {len(named)} methods and {seeds} seeds; expected at least 1 method and 1 seed.")
    task = hashed(data if isinstance(data, TaskData) else load_named(data, **columns))
    metric = metric_of(task, metric)
    given = {
        "learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size,
        "max_length": default_length(task.kind) if max_length is None else max_length, "metric": metric,
    }  # fmt: skip
    jobs = _jobs(task, named, seeds, pooling, given)
    if no_bert is not None and not no_bert > 0:
        raise IntarsiaError(f"The search without BERT got {no_bert} minutes; expected more than 0.")
    if bank is None:
        base = encoder if isinstance(encoder, Encoder) else Encoder.load(encoder or EMBEDDED, device=device)
    else:
        opened = bank if isinstance(bank, Bank) else Bank(bank, encoder, device=device)
        base = opened.encoder
        jobs = {n: [with_parents(opened.store, job, base) for job in own] for n, own in jobs.items()}
    Head(1, pooling).tensors(base.shape)  # raises if this base does not support the pooling
    with own_folder(Path(folder)) as runs:
        rows = train_rows(jobs, base, runs, metric, together=together, watch=watch)
        baseline = None
        if no_bert is not None:
            baseline = search_without_transformer(task, no_bert, metric, runs, search_watch)
        origin = provenance_of(base, task, given, pooling, seeds, command)
        comparison = Comparison(metric, task.kind, seeds, in_order(rows), baseline, origin)
        write(comparison, folder)
    return comparison


def provenance_of(
    encoder: Encoder, task: TaskData, given: Mapping[str, Any], pooling: str, seeds: int, command: str | None
) -> dict[str, Any]:
    return {
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": list(range(seeds)),
        "settings": {**{k: v for k, v in given.items() if v is not None}, "pooling": pooling},
        "data": task.source,
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "tokenizer": encoder.tokenizer_fingerprint,
            "parameters": encoder.shape.parameters,
        },
        "versions": provenance.versions(),
        "machine": provenance.machine(str(encoder.device)),
    }


def hashed(task: TaskData) -> TaskData:
    """Return the task with a hash of its content in its source; results are stored by this hash."""
    if task.source.get("sha256"):
        return task
    from intarsia.tasks.data import content_hash

    parts = {"train": task.train, "dev": task.dev, "test": task.test}
    rows = {name: len(part) for name, part in parts.items()}
    return dataclasses.replace(task, source={"rows": rows, **task.source, "sha256": content_hash(parts)})


def _jobs(
    task: TaskData, methods: Mapping[str, Method], seeds: int, pooling: Pooling, given: Mapping[str, Any]
) -> dict[str, list[Job]]:
    """Return the jobs of each method, one per seed."""
    from intarsia.train.job import Job, Settings

    return {
        name: [
            Job("compare", task, method, pooling, Settings.for_task(method, task, **given, seed=seed))
            for seed in range(seeds)
        ]
        for name, method in methods.items()
    }


def metric_of(task: TaskData, metric: str | None) -> str:
    """Return the metric to use, after a check that it can select the best epoch."""
    from intarsia.tasks.metrics import check_choosing, default_metric

    metric = metric or default_metric(task.kind, task.labels)
    check_choosing(metric, task.kind, task.labels)
    return metric


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Lock the comparison's folder against other processes; yield the folder of the runs' results."""
    from filelock import FileLock, Timeout

    runs = folder / "runs"
    files.make_folder(runs)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise IntarsiaError(
            f"Another process is running a comparison in {folder}. Wait for it, or choose another folder."
        ) from None
    try:
        yield runs
    finally:
        lock.release()
