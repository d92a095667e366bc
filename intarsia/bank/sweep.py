"""A sweep: every point of a grid, for one or many tasks, in one queue; the best of each task becomes its inlay.

Selection is by the validation part alone. The test part is scored once, for the chosen one, when the task is stored.
Every finished point is kept on disk, and the state of those under way: a killed sweep goes on when started again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import IntarsiaError
from intarsia.methods import to_dict

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.train.job import Job
    from intarsia.train.loop import Progress
    from intarsia.train.run import Trained


@dataclass(frozen=True)
class Point:
    """What came of one job of a sweep."""

    task: str
    key: str
    method: dict[str, Any]
    settings: dict[str, Any]
    dev: float | None  # None: it diverged …
    reason: str | None  # … and why
    best_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    test: float | None = None  # where every point is scored there; the choice does not look at it

    def brief(self) -> dict[str, Any]:
        """As the stored inlay lists it."""
        kept = {k: self.settings[k] for k in ("learning_rate", "epochs", "batch_size", "seed")}
        test = {} if self.test is None else {"test": self.test}
        return {"method": self.method, **kept, "dev": self.dev, **test, "seconds": self.seconds, "reason": self.reason}


@dataclass(frozen=True)
class Moment:
    """What a watcher is told: how many jobs each task has (`planned`, first of all), a step of a job (`progress`), or a
    point that is done (`point`, perhaps from before)."""

    planned: Mapping[str, int] | None = None
    progress: Progress | None = None
    point: Point | None = None
    stored: bool = False


Watch = Callable[[Moment], None]


class Sweep:
    """Jobs of one or many tasks, and what is known of them on disk."""

    def __init__(self, jobs: list[Job], encoder: Encoder, folder: Path, watch: Watch | None = None) -> None:
        self.encoder, self.folder = encoder, folder
        self.jobs = {job.key(encoder.fingerprint): job for job in jobs}
        self.watch = watch or (lambda _: None)
        self.points: dict[str, Point] = {}
        for key in self.jobs:
            path = self._point_file(key)
            if path.is_file():
                self.points[key] = Point(**json.loads(path.read_text(encoding="utf-8")))

    @staticmethod
    def name(jobs: list[Job], encoder: Encoder) -> str:
        """The same for the same jobs, whatever their order."""
        keys = sorted(job.key(encoder.fingerprint) for job in jobs)
        return f"sweep-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}"

    def run(self, together: int | None = None, *, score_all: bool = False) -> None:
        from intarsia.train.loop import train_together
        from intarsia.train.trunk import TrunkCache

        self.watch(Moment(planned=Counter(job.name for job in self.jobs.values())))
        for point in self.points.values():
            self.watch(Moment(point=point, stored=True))
        left = [job for key, job in self.jobs.items() if key not in self.points]
        train_together(
            left,
            self.encoder,
            together=together,
            score_test=score_all,
            done=self._done,
            state_file=self._state_file,
            watch=lambda progress: self.watch(Moment(progress=progress)),
            trunk=TrunkCache(self.encoder, self.folder),
        )

    def best(self, task: str) -> tuple[Job, Trained]:
        """The job of the best validation score, and what it learned."""
        point = self._best(task)
        if point is None:
            reasons = sorted({p.reason or "" for p in self.points.values() if p.task == task})
            raise IntarsiaError(f"no job of the sweep for {task!r} ended well: {' '.join(reasons)}")
        job = self.jobs[point.key]
        return job, self._trained(job, point)

    def grid(self, task: str) -> list[dict[str, Any]]:
        return [point.brief() for point in self.points.values() if point.task == task]

    def _best(self, task: str) -> Point | None:
        """Of equal ones the first that ended: the one whose tensors were kept."""
        ended = [p for p in self.points.values() if p.task == task and p.dev is not None]
        found = [p for p in ended if self._tensor_file(p.key).is_file()]
        return max(found, key=lambda p: p.dev or 0.0, default=None)

    def _done(self, job: Job, result: Trained | IntarsiaError) -> None:
        key = job.key(self.encoder.fingerprint)
        settings = {k: v for k, v in job.describe().items() if k != "method"}
        known: dict[str, Any] = {"task": job.name, "key": key, "method": to_dict(job.method), "settings": settings}
        if isinstance(result, IntarsiaError):
            point = Point(**known, dev=None, reason=str(result))
        else:
            state = result.state
            point = Point(
                **known, dev=state.best, reason=None, best_epoch=state.best_epoch, steps=state.step,
                seconds=round(state.seconds, 1), test=result.test,
            )  # fmt: skip
        before = self._best(job.name)
        better = point.dev is not None and (before is None or point.dev > (before.dev or 0.0))
        if better and not isinstance(result, IntarsiaError):
            self._keep(key, result)
        files.replace(self._point_file(key), [json.dumps(asdict(point)).encode()])
        self.points[key] = point
        if better and before is not None:  # only now: a kill at any moment leaves the best one's tensors
            self._tensor_file(before.key).unlink(missing_ok=True)
        shutil.rmtree(self.folder / key, ignore_errors=True)
        self.watch(Moment(point=point))

    def _keep(self, key: str, trained: Trained) -> None:
        from safetensors.torch import save

        tensors = {k: v.cpu().contiguous() for k, v in trained.tensors.items()}
        known = {"state": json.dumps(asdict(trained.state)), "left_out": str(trained.left_out)}
        content = save(tensors, known)
        files.replace(self._tensor_file(key), [content])

    def _trained(self, job: Job, point: Point) -> Trained:
        from safetensors import safe_open

        from intarsia.tasks.kind_registry import kind_for
        from intarsia.tasks.learned import Learned
        from intarsia.tasks.metrics import default_metric
        from intarsia.train.checkpoint import State
        from intarsia.train.run import Trained, best_kind

        with safe_open(self._tensor_file(point.key), framework="pt") as file:
            known = file.metadata()
            state = State(**json.loads(known["state"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        task_kind = best_kind(kind_for(job.data), state)
        metric = job.settings.metric or default_metric(job.data.kind, job.data.labels)
        left_out = int(known.get("left_out", 0))
        learned = Learned(job.method, task_kind.head(job.pooling), task_kind, tensors)
        return Trained(learned, metric, state, left_out=left_out)

    def _state_file(self, job: Job) -> Path:
        folder = self.folder / job.key(self.encoder.fingerprint)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "state.safetensors"

    def _point_file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _tensor_file(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def work(job: Job) -> int:
    """How long a job takes, roughly."""
    return job.settings.epochs * sum(len(e.text) + len(e.pair or "") for e in job.data.train)
