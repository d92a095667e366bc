"""The results on disk, shared by all experiments with one encoder.

results/paper/<encoder>/encoder.json     the encoder of these runs
results/paper/<encoder>/runs/*.jsonl     one file per task, one JSON object per finished run
results/paper/<encoder>/no_bert/*.jsonl  one JSON object per search without a transformer
results/paper/<encoder>/<name>.json      the configuration of an experiment
results/paper/<encoder>/figures          SVG and PNG files
results/paper/<encoder>/work             training states of unfinished runs; temporary
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import IntarsiaError
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun, identity

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


SOURCE_FIELDS = (
    "sha256",
    "rows",
    "split",
    "partial",
    "limit",
    "suite",
    "seed",
)  # fields of a data source that a record keeps


@dataclass(frozen=True)
class Record:
    """One finished run. A failed run has a `reason` instead of scores."""

    task: str
    key: str  # the job's key
    method: dict[str, Any]
    settings: dict[str, Any]  # learning rate, epochs, batch size, seed, metric, text length
    pooling: str
    data: dict[str, Any]  # hash and number of rows, split, whether it is a sample or limited
    parameters: dict[str, int]  # method (without the head), head, base
    dev: float | None = None
    test: float | None = None
    best_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    extras: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    reason: str | None = None

    @cached_property
    def identity(self) -> str:
        return identity(self.task, self.method, self.settings, self.pooling)


@dataclass(frozen=True)
class StoredConfig:
    """The stored configuration of an experiment, with the tasks that were skipped."""

    config: ExperimentConfig
    skipped: Mapping[str, str]  # the reason, by task


class RunStore:
    """The stored runs of one encoder. Several processes may append at the same time."""

    def __init__(self, results: str | Path, encoder: str, *, limit: int | None = None) -> None:
        """Open the folder of an encoder. Limited results have a folder of their own, apart from complete results."""
        slug = re.sub(r"[^\w.-]+", "-", encoder.rstrip("/").rpartition("/")[2]).strip("-.") or "encoder"
        self.folder = Path(results) / "paper" / (slug if limit is None else f"{slug}-limit{limit}")
        self._cached: dict[str, tuple[int, dict[str, Record]]] = {}
        self.damaged: list[str] = []  # messages about unreadable lines
        if file := next((p for p in (self.folder, *self.folder.parents) if p.exists() and not p.is_dir()), None):
            raise IntarsiaError(f"{file} is a file. Expected a folder for results: choose another one with --results.")

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def encoder(self) -> dict[str, Any]:
        """Return the name, fingerprint, parameter count and number of layers of the stored encoder."""
        path = self.folder / "encoder.json"
        if not path.is_file():
            raise IntarsiaError(
                f"no results in {self.folder}. Run an experiment first (without --draw-only), or check --results, "
                "--encoder and --limit."
            )
        return _object(path, "name", "fingerprint", "parameters", "layers")

    def check_encoder(self, encoder: Encoder) -> None:
        """Store the encoder's description; raise an error if the folder holds runs of a different encoder."""
        description = {
            "name": Path(encoder.name).name, "fingerprint": encoder.fingerprint, "parameters": encoder.shape.parameters,
            "layers": encoder.shape.layers, "width": encoder.shape.width, "family": encoder.shape.family,
        }  # fmt: skip
        files.make_folder(self.folder)
        if (self.folder / "encoder.json").is_file():
            stored = self.encoder
            if stored["fingerprint"] != encoder.fingerprint:
                raise IntarsiaError(
                    f"{self.folder} holds runs of another encoder with this name: the stored fingerprint is "
                    f"{stored['fingerprint'][:16]}…, this encoder's is {encoder.fingerprint[:16]}…. Choose another "
                    "folder with --results."
                )
            return
        files.replace(self.folder / "encoder.json", [json.dumps(description, indent=1).encode()])

    def find(self, planned: PlannedRun, pooling: str, max_length: int | None) -> Record | None:
        """Return the stored record of a planned run, or None."""
        wanted = identity(planned.task, planned.method, planned.settings(max_length), pooling)
        return self.records(planned.task).get(wanted)

    def records(self, task: str) -> Mapping[str, Record]:
        """Return all runs of a task by identity. The last of equal runs counts. A file that has grown is read again."""
        path = self._file(task)
        size = path.stat().st_size if path.is_file() else 0
        cached = self._cached.get(task)
        if cached is None or cached[0] != size:
            records = (record for line in self.lines(path) if (record := _record(line)) is not None)
            cached = self._cached[task] = (size, {record.identity: record for record in records})
        return cached[1]

    def add(self, record: Record) -> None:
        self.append(self._file(record.task), asdict(record))

    def lines(self, path: Path) -> list[dict[str, Any]]:
        """Return the JSON objects of a file, one per line. Lines that a killed process cut short are skipped."""
        found = []
        for number, line in enumerate(path.read_bytes().split(b"\n") if path.is_file() else [], 1):
            with suppress(ValueError):
                found.append(_line(line) if line else None)
                continue
            self._note_damage(path, number)
        return [item for item in found if isinstance(item, dict)]

    def _note_damage(self, path: Path, line: int) -> None:
        message = f"{path}, line {line} cannot be read and is skipped. The next training command repeats its run."
        if message not in self.damaged:
            self.damaged.append(message)

    def append(self, path: Path, values: Mapping[str, Any]) -> None:
        """Append a line. A line that a killed process cut short stays in the file and is skipped when read."""
        line = json.dumps({**values, "checksum": _checksum(values)}, ensure_ascii=False).encode() + b"\n"
        files.make_folder(path.parent)
        with self._lock("runs"), files.explained(path, [line]), path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def work_folders(self, name: str, groups: Iterable[str]) -> Iterator[dict[str, Path]]:
        """Lock and return a folder for the training states of each group.

        The folders are removed on success. After a kill or an error they stay, so that the next process can resume.
        """
        from filelock import FileLock, Timeout

        files.make_folder(self.folder / "work")
        folders = {group: self.folder / "work" / f"{name}-{group}" for group in sorted(groups)}
        with ExitStack() as locks:
            for group, folder in folders.items():
                try:
                    locks.enter_context(FileLock(f"{folder}.lock").acquire(timeout=0))
                except Timeout:
                    raise IntarsiaError(
                        f"another `intarsia paper {name}` process is training the group {group} in {self.folder}. "
                        "Wait until it ends, or choose other groups with --only."
                    ) from None
            for folder in folders.values():
                files.make_folder(folder)
            yield folders
            for folder in folders.values():
                files.remove_folder(folder)

    def store_config(
        self, name: str, config: ExperimentConfig, skipped: Mapping[str, str], command: str | None
    ) -> None:
        """Store an experiment's configuration, merged with the earlier one, so that a report draws both."""
        with self._lock(f"{name}.json"):
            before = self.read_config(name) or StoredConfig(config, {})
            merged = config.merged(before.config)
            others = set(merged.tasks) - set(config.tasks)
            earlier = {task: reason for task, reason in before.skipped.items() if task in others}
            stored = {
                "asked": asdict(merged), "absent": {**earlier, **skipped}, "command": command,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            }  # fmt: skip
            files.replace(self.folder / f"{name}.json", [json.dumps(stored, indent=1, ensure_ascii=False).encode()])

    def read_config(self, name: str) -> StoredConfig | None:
        """Return the last configuration of an experiment, or None if it never ran."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        stored = _object(path, "asked")
        try:
            config = ExperimentConfig(**{**stored["asked"], "tasks": tuple(stored["asked"]["tasks"])})
        except (TypeError, KeyError) as error:
            raise _damaged(path, str(error)) from error
        return StoredConfig(config, stored.get("absent", {}))

    def _file(self, task: str) -> Path:
        return self.folder / "runs" / f"{task.replace('/', '-')}.jsonl"

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        from filelock import FileLock

        files.make_folder(self.folder / "work")
        with FileLock(self.folder / "work" / f"{name}.lock"):
            yield


def _line(line: bytes) -> Any:
    """Return the values of a line; raise `ValueError` if they do not match its checksum (older lines have none)."""
    values = json.loads(line)
    if isinstance(values, dict) and "checksum" in values:
        checksum = values.pop("checksum")
        if checksum != _checksum(values):
            raise ValueError("the line does not match its checksum")
    return values


def _checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def _object(path: Path, *wanted: str) -> dict[str, Any]:
    """Read a JSON object that has the wanted keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    missing = [key for key in wanted if not isinstance(found, dict) or key not in found]
    if missing:
        raise _damaged(path, f"the key {missing[0]!r} is missing")
    return dict(found)


def _damaged(path: Path, reason: str) -> IntarsiaError:
    return IntarsiaError(
        f"{path} cannot be read: {reason}. Delete the file: the next run of the experiment writes it again. The "
        "stored runs are separate files and stay."
    )


def _record(stored: Mapping[str, Any]) -> Record | None:
    """Return the record of a line, or None if this version does not know its method."""
    try:
        record = Record(**{f.name: stored[f.name] for f in fields(Record) if f.name in stored})
        return record if record.identity else None
    except (ValueError, TypeError, KeyError, IntarsiaError):
        return None
