"""The runs on disk: one JSON object a line, one file a task, shared by all experiments over one encoder.

results/paper/<encoder>/encoder.json     which encoder these are of
results/paper/<encoder>/runs/*.jsonl     a line a run, written when it ends
results/paper/<encoder>/no_bert/*.jsonl  a line a search without a transformer
results/paper/<encoder>/<name>.json      what an experiment was asked for
results/paper/<encoder>/figures          as SVG and PNG
results/paper/<encoder>/work             states of runs under way; not to be kept
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import IntarsiaError
from intarsia.lab.paper.plan import Asked, Planned, identity

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


KEPT = ("sha256", "rows", "split", "partial", "limit", "suite", "seed")  # of where data comes from


@dataclass(frozen=True)
class Record:
    """One run that has ended: with scores, or (`reason`) without."""

    task: str
    key: str  # of the job
    method: dict[str, Any]
    settings: dict[str, Any]  # learning rate, epochs, batch size, seed, metric, length
    pooling: str
    data: dict[str, Any]  # hash of its rows, their number, how they were split, whether a sample or limited
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
class Noted:
    """What an experiment was asked for, and why it went without some of the tasks."""

    asked: Asked
    absent: Mapping[str, str]  # by task


class RunStore:
    """What one encoder's runs gave. Several processes may add to it at once."""

    def __init__(self, results: str | Path, encoder: str, *, limit: int | None = None) -> None:
        """`limit`: results of so few rows have a folder of their own, and can never be taken for whole ones."""
        slug = re.sub(r"[^\w.-]+", "-", encoder.rstrip("/").rpartition("/")[2]).strip("-.") or "encoder"
        self.folder = Path(results) / "paper" / (slug if limit is None else f"{slug}-limit{limit}")
        self._read: dict[str, tuple[int, dict[str, Record]]] = {}
        self.damaged: list[str] = []  # lines that could not be read
        if file := next((p for p in (self.folder, *self.folder.parents) if p.exists() and not p.is_dir()), None):
            raise IntarsiaError(f"{file} is a file, and a folder for results was expected. Name one with --results.")

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def encoder(self) -> dict[str, Any]:
        """Name, fingerprint, parameters and layers of the encoder that the runs are of."""
        path = self.folder / "encoder.json"
        if not path.is_file():
            raise IntarsiaError(
                f"there are no results in {self.folder}. Run an experiment first (without --draw-only), or name the "
                "folder with --results, the encoder with --encoder, and --limit where rows were limited."
            )
        return _object(path, "name", "fingerprint", "parameters", "layers")

    def of(self, encoder: Encoder) -> None:
        """Note whose runs these are; refuse those of another one."""
        about = {
            "name": Path(encoder.name).name, "fingerprint": encoder.fingerprint, "parameters": encoder.shape.parameters,
            "layers": encoder.shape.layers, "width": encoder.shape.width, "family": encoder.shape.family,
        }  # fmt: skip
        files.make_folder(self.folder)
        if (self.folder / "encoder.json").is_file():
            held = self.encoder
            if held["fingerprint"] != encoder.fingerprint:
                raise IntarsiaError(
                    f"{self.folder} holds runs of another encoder of this name: its fingerprint is "
                    f"{held['fingerprint'][:16]}…, not {encoder.fingerprint[:16]}…. Name another folder with --results."
                )
            return
        files.replace(self.folder / "encoder.json", [json.dumps(about, indent=1).encode()])

    def find(self, planned: Planned, pooling: str, max_length: int | None) -> Record | None:
        wanted = identity(planned.task, planned.method, planned.settings(max_length), pooling)
        return self.records(planned.task).get(wanted)

    def records(self, task: str) -> Mapping[str, Record]:
        """All runs of a task, by what they are; of equal ones the last. Read again where the file has grown."""
        path = self._file(task)
        size = path.stat().st_size if path.is_file() else 0
        held = self._read.get(task)
        if held is None or held[0] != size:
            records = (record for line in self.lines(path) if (record := _record(line)) is not None)
            held = self._read[task] = (size, {record.identity: record for record in records})
        return held[1]

    def add(self, record: Record) -> None:
        self.append(self._file(record.task), asdict(record))

    def lines(self, path: Path) -> list[dict[str, Any]]:
        """The objects of a file, one a line, without those that a kill cut short."""
        found = []
        for number, line in enumerate(path.read_bytes().split(b"\n") if path.is_file() else [], 1):
            with suppress(ValueError):
                found.append(json.loads(line) if line else None)
                continue
            self._note_damage(path, number)
        return [one for one in found if isinstance(one, dict)]

    def _note_damage(self, path: Path, line: int) -> None:
        told = f"{path}, line {line} cannot be read and is left out; its run is trained again when it is asked for."
        if told not in self.damaged:
            self.damaged.append(told)

    def append(self, path: Path, values: Mapping[str, Any]) -> None:
        """Add a line. One that a kill cut short before is left behind as it is, and skipped when read."""
        line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        files.make_folder(path.parent)
        with self._lock("runs"), files.explained(path, [line]), path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def working(self, name: str, groups: Iterable[str]) -> Iterator[dict[str, Path]]:
        """Folders for the states of an experiment's runs, one a group, which no other process may work in.

        They go when all has ended well; after a kill or an error they are there for the next process.
        """
        from filelock import FileLock, Timeout

        files.make_folder(self.folder / "work")
        folders = {group: self.folder / "work" / f"{name}-{group}" for group in sorted(groups)}
        with ExitStack() as held:
            for group, folder in folders.items():
                try:
                    held.enter_context(FileLock(f"{folder}.lock").acquire(timeout=0))
                except Timeout:
                    raise IntarsiaError(
                        f"another process runs `intarsia paper {name}` in {self.folder} right now, and trains its "
                        f"group {group}. Wait until it has ended, or name other groups with --only."
                    ) from None
            for folder in folders.values():
                files.make_folder(folder)
            yield folders
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)

    def note_asked(self, name: str, asked: Asked, absent: Mapping[str, str], command: str | None) -> None:
        """Keep what an experiment is asked for, beside what it was asked for before: a report draws all of it."""
        with self._lock(f"{name}.json"):
            before = self.read_asked(name) or Noted(asked, {})
            both = asked.joined(before.asked)
            others = set(both.tasks) - set(asked.tasks)
            earlier = {task: why for task, why in before.absent.items() if task in others}
            noted = {
                "asked": asdict(both), "absent": {**earlier, **absent}, "command": command,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            }  # fmt: skip
            files.replace(self.folder / f"{name}.json", [json.dumps(noted, indent=1, ensure_ascii=False).encode()])

    def read_asked(self, name: str) -> Noted | None:
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        noted = _object(path, "asked")
        try:
            asked = Asked(**{**noted["asked"], "tasks": tuple(noted["asked"]["tasks"])})
        except (TypeError, KeyError) as error:
            raise _damaged(path, str(error)) from error
        return Noted(asked, noted.get("absent", {}))

    def _file(self, task: str) -> Path:
        return self.folder / "runs" / f"{task.replace('/', '-')}.jsonl"

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        from filelock import FileLock

        files.make_folder(self.folder / "work")
        with FileLock(self.folder / "work" / f"{name}.lock"):
            yield


def _object(path: Path, *wanted: str) -> dict[str, Any]:
    """What a small file of the folder holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    lacking = [key for key in wanted if not isinstance(found, dict) or key not in found]
    if lacking:
        raise _damaged(path, f"it has no {lacking[0]!r}")
    return dict(found)


def _damaged(path: Path, why: str) -> IntarsiaError:
    return IntarsiaError(
        f"{path} cannot be read: {why}. Delete it; the next run of the experiment writes it again, and the runs "
        "themselves are kept beside it."
    )


def _record(stored: Mapping[str, Any]) -> Record | None:
    """None where it cannot be read, being of a method that is no longer known."""
    try:
        record = Record(**{f.name: stored[f.name] for f in fields(Record) if f.name in stored})
        return record if record.identity else None
    except (ValueError, TypeError, KeyError, IntarsiaError):
        return None
