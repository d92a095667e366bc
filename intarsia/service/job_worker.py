"""The process of a job: learns one task and reports in JSON lines on standard output.

The first line of standard input says what to do. The line `cancel` cancels; the end of the input means that the service
has ended, and ends this process at once: the checkpoint of the run is on disk.
"""

from __future__ import annotations

import os
import shutil
import threading
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from intarsia.errors import IntarsiaError, UnknownTask
from intarsia.files import DISK_FULL
from intarsia.service.errors import without_paths
from intarsia.service.schemas import JobInfo

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.bank.entry import Entry
    from intarsia.methods import Method
    from intarsia.tasks.examples import TaskData
    from intarsia.train.job import Job
    from intarsia.train.progress import Progress

DATA = ("text", "pair", "label", "kind", "limit", "seed", "drop_missing")
SETTINGS = ("learning_rate", "epochs", "batch_size", "max_length", "metric", "seed")


class Cancelled(Exception):
    """The client does not want the task any more."""


class Reporter:
    """Standard output, for the service alone: what libraries print goes to the error stream."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self.cancelled = threading.Event()

    def say(self, event: str, **values: Any) -> None:
        self._out.write(msgspec.json.encode({"event": event, **values}) + b"\n")

    def watch(self, progress: Progress) -> None:
        if self.cancelled.is_set():
            raise Cancelled
        names = ("step", "steps", "epoch", "epochs", "loss", "metric", "validation", "seconds_left", "reading")
        self.say("progress", **{name: getattr(progress, name) for name in names})


def main() -> None:
    reporter = Reporter()
    orders = open(0, "rb", buffering=0)  # noqa: SIM115
    given = msgspec.json.decode(orders.readline())
    threading.Thread(target=_obey, args=(orders, reporter), daemon=True).start()
    os.nice(given["nice"])
    folder = Path(given["folder"])
    stored = msgspec.json.decode((folder / "job.json").read_bytes())
    attempts = stored.pop("attempts")
    info = msgspec.convert(stored, JobInfo)
    try:
        entry = _learn(given, info, next(folder.glob("data.*")), attempts, reporter)
    except Cancelled:
        reporter.say("cancelled")
    except (IntarsiaError, OSError, MemoryError) as error:
        reporter.say("failed", message=_reason(error, Path(given["bank"])))
    else:
        reporter.say("done", version=entry.version, served=not entry.held)


def _obey(orders: RawIOBase, reporter: Reporter) -> None:
    for line in orders:
        if line.strip() == b"cancel":
            reporter.cancelled.set()
    os._exit(1)  # the service has ended


def _reason(error: Exception, bank: Path) -> str:
    if isinstance(error, OSError):
        if error.errno in DISK_FULL:
            return "The disk is full. The bank is unchanged; free some space and start the job again."
        reason = without_paths(error.strerror or str(error), bank).rstrip(".")
        return f"A file cannot be written or read: {reason}. The bank is unchanged."
    if isinstance(error, MemoryError):
        return "The memory is full. The bank is unchanged."
    return without_paths(str(error), bank)


def _learn(given: dict[str, Any], info: JobInfo, data: Path, attempts: int, reporter: Reporter) -> Entry:
    import torch

    from intarsia.bank.bank import Bank
    from intarsia.bank.family import resolved
    from intarsia.methods import Bottleneck, parse
    from intarsia.tasks import load_data
    from intarsia.train.job import Job, Settings

    torch.set_num_threads(given["threads"])
    options = info.options
    task = load_data(data, **data_options(options))
    if reporter.cancelled.is_set():
        raise Cancelled
    precision = None if given["precision"] == "int8" else given["precision"]  # an int8 base serves only
    bank = Bank(given["bank"], given["encoder"], device=given["device"], precision=precision)
    if attempts > 1 and (added := _added(bank, info, task)) is not None:
        return added
    method: Method = Bottleneck()
    if options.get("method"):
        method = resolved(bank.store, parse(options["method"], ()))
    settings = Settings.for_task(method, task, **{name: options.get(name) for name in SETTINGS})
    pooling = options.get("pooling", "mean")
    try:
        return bank.learn(
            info.task, task, method, pooling=pooling, settings=settings, watch=reporter.watch,
            serve_anyway=options.get("serve_anyway", False),
        )  # fmt: skip
    except Cancelled:
        _forget(bank, Job(info.task, task, method, pooling, settings))
        raise


def data_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a job that say how its data is read."""
    return {name: options[name] for name in DATA if options.get(name) is not None}


def _added(bank: Bank, info: JobInfo, task: TaskData) -> Entry | None:
    """The version that this job has added before the service was killed, if it had come so far."""
    try:
        entries = bank.versions(info.task)
    except UnknownTask:
        return None
    for entry in reversed([entry for entry in entries if entry.state == "ok"]):
        header = entry.header
        if header.created >= info.created and header.data.get("sha256") == task.source["sha256"]:
            return entry
    return None


def _forget(bank: Bank, job: Job) -> None:
    """Remove the checkpoint of a cancelled run."""
    folder = bank.store.folder / "work" / f"{job.name}-{job.key(bank.encoder.fingerprint)}"
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
