"""Runs a comparison's jobs one after another, keeps each result when it ends, and knows the time that is left."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import BankError, EncoderError, IntarsiaError
from intarsia.formatting import score
from intarsia.lab import cost
from intarsia.lab.comparison import Result, Row
from intarsia.methods import Method, to_dict
from intarsia.tasks import TaskData

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.sites import Shape
    from intarsia.tasks.heads import Head
    from intarsia.train.job import Job
    from intarsia.train.loop import Progress

NO_BERT = "no BERT"


@dataclass(frozen=True)
class Moment:
    """What a watcher is told when a run begins, after each of its steps, and when it has ended (`result`)."""

    name: str
    seed: int
    method: int  # of `methods`, from 1
    methods: int
    info: str = ""
    share: float = 0.0  # of all the work there is, done
    seconds_left: float | None = None  # of all of it; None: nothing is known yet
    result: Result | None = None
    stored: bool = False  # the result was there already

    @property
    def title(self) -> str:
        return f"{self.method}/{self.methods} {self.name}" + ("" if self.name == NO_BERT else f", seed {self.seed}")


Watch = Callable[[Moment], None]


class Bench:
    """Runs what has no stored result, one after another, and keeps the time."""

    def __init__(
        self, encoder: Encoder, folder: Path, jobs: dict[str, list[Job]], no_bert: float | None, metric: str,
        watch: Watch | None,
    ) -> None:  # fmt: skip
        self.encoder, self.folder, self.jobs, self.metric = encoder, folder, jobs, metric
        self.watch = watch or (lambda _: None)
        self.work = folder.parent / "work"
        self.methods = len(jobs) + (no_bert is not None)
        self.reasons = {name: _reason(of[0].method, encoder.shape) for name, of in jobs.items()}
        possible = {self._key(job): job for name, of in jobs.items() if self.reasons[name] is None for job in of}
        self.keys = set(possible)
        self.found = {key: found for key in possible if (found := Result.read(folder, key)) is not None}
        # In epochs of full fine-tuning, to know the time that is left.
        self.ahead = {key: _work(job, encoder.shape) for key, job in possible.items() if key not in self.found}
        self.all_work, self.done_work = sum(self.ahead.values()), 0.0
        self.search_seconds = 60 * (no_bert or 0.0)
        self.busy = 0.0  # seconds that the work done has taken

    def run(self) -> list[Row]:
        return [self._row(number, name, jobs) for number, (name, jobs) in enumerate(self.jobs.items(), 1)]

    def _row(self, number: int, name: str, jobs: list[Job]) -> Row:
        method, shape, reason = jobs[0].method, self.encoder.shape, self.reasons[name]
        if reason is not None:
            return Row(name, to_dict(method), None, (), reason)
        head = _head(jobs[0]).count(shape, method.row_width(shape))
        counts = {"method": method.count(shape), "head": head, "base": shape.parameters}
        results = []
        for job in jobs:
            moment = Moment(name, job.settings.seed, number, self.methods)
            known = self.found.get(self._key(job))
            result = known or self._train(job, moment)
            results.append(result)
            self._tell(moment, result=result, stored=known is not None)
        return Row(name, to_dict(method), counts, tuple(results))

    def _train(self, job: Job, moment: Moment) -> Result:
        from intarsia.serve.scoring import score as score_learned
        from intarsia.train.loop import train

        key = self._key(job)
        state_file = self.work / f"{key}.safetensors"
        files.make_folder(self.work)
        self._tell(moment)
        began = time.monotonic()
        resumed: float | None = None

        def watch(p: Progress) -> None:
            nonlocal resumed
            if p.reading is not None:
                self._tell(moment, progress=p)
                return
            if resumed is None:  # what an earlier process has done took none of this one's time
                resumed = p.resumed_at / p.steps
                self.all_work -= resumed * self.ahead[key]
            done = (p.step / p.steps - resumed) * self.ahead[key]
            self._tell(moment, progress=p, running=(done, time.monotonic() - began))

        known: dict[str, Any] = {
            "key": key, "seed": job.settings.seed, "method": to_dict(job.method), "metric": self.metric,
            "settings": {k: v for k, v in job.describe().items() if k != "method"},
        }  # fmt: skip
        try:
            trained = train(job, self.encoder, state_file=state_file, watch=watch)
            test = score_learned(
                trained.learned, job.data.test, self.encoder, metric=trained.metric, max_length=job.settings.max_length
            )
            state = trained.state
            result = Result(
                **known,
                seconds=round(max(state.seconds, time.monotonic() - began), 2),  # longer if it was resumed
                dev=state.best,
                best_epoch=state.best_epoch,
                test={**test._asdict(), "examples": len(job.data.test)},
                steps=state.step,
                history=state.history,
            )
        except (BankError, EncoderError):
            raise  # a full disk or a changed base is no fault of the method
        except IntarsiaError as error:
            result = Result(**known, seconds=round(time.monotonic() - began, 2), reason=str(error))
        result.write(self.folder)
        state_file.unlink(missing_ok=True)
        self.found[key] = result
        self.done_work += (1 - (resumed or 0.0)) * self.ahead.pop(key)
        self.busy += time.monotonic() - began
        return result

    def search(self, task: TaskData, minutes: float) -> dict[str, Any]:
        """The model without a transformer; a search is stored when it ends, and begins anew if it was interrupted."""
        from intarsia.lab import no_bert

        content = [task.source["sha256"], task.kind, self.metric, minutes]
        path = self.folder / f"no-bert-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}.json"
        moment = Moment(NO_BERT, 0, self.methods, self.methods)
        with suppress(OSError, ValueError):
            return _counted(json.loads(path.read_text(encoding="utf-8")))
        self.watch(dataclasses.replace(moment, share=1.0, seconds_left=60 * minutes))

        def watch(p: no_bert.Progress) -> None:
            best = "" if p.best is None else f" · {p.metric} {100 * (p.best.dev or 0.0):.1f}"
            info = f"{p.done} tried{best}"
            self.watch(dataclasses.replace(moment, info=info, share=p.share, seconds_left=p.seconds_left))

        try:
            found = no_bert.search(task, minutes, metric=self.metric, watch=watch).to_dict()
        except IntarsiaError as error:
            found = {"metrics": None, "reason": str(error)}
        files.replace(path, [json.dumps(found, indent=1).encode()])
        return _counted(found)

    def tidy(self) -> None:
        """Remove the working files of this comparison; those of another one, which may yet go on, stay."""
        for path in [*(self.work / f"{key}.safetensors" for key in self.keys), *self.work.glob("states-*")]:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.work.rmdir()

    def _key(self, job: Job) -> str:
        return job.key(self.encoder.fingerprint)

    def _tell(
        self,
        moment: Moment,
        *,
        progress: Progress | None = None,
        running: tuple[float, float] = (0.0, 0.0),
        result: Result | None = None,
        stored: bool = False,
    ) -> None:
        done, busy = self.done_work + running[0], self.busy + running[1]
        left = None if done <= 0 else busy * (self.all_work - done) / done + self.search_seconds
        self.watch(
            dataclasses.replace(
                moment,
                info="" if progress is None else _info(progress),
                share=done / self.all_work if self.all_work else 1.0,
                seconds_left=left,
                result=result,
                stored=stored,
            )
        )


def _info(p: Progress) -> str:
    if p.reading is not None:
        return str(p)
    validation = "" if p.validation is None else f" · {p.metric} {score(p.validation)}"
    return f"epoch {p.epoch}/{p.epochs}{validation}"


def _counted(found: dict[str, Any]) -> dict[str, Any]:
    """A search, with the number of what it tried instead of thousands of lines."""
    return {**found, "tried": len(found.get("tried", ()))}


def _head(job: Job) -> Head:
    from intarsia.tasks.kind_registry import kind_for

    return kind_for(job.data).head(job.pooling)


def _reason(method: Method, shape: Shape) -> str | None:
    try:
        method.check(shape)
    except IntarsiaError as error:
        return str(error)
    return None


def _work(job: Job, shape: Shape) -> float:
    """About how long a run takes, in epochs of full fine-tuning."""
    train, dev, test = (len(part) for part in (job.data.train, job.data.dev, job.data.test))
    epochs = job.settings.epochs
    if job.method.cached:
        return (train + dev + test) / 3 / train + 0.01 * epochs
    steps = epochs * cost.steps(job.method, shape) * cost.estimate(job.method, shape)
    return steps + (epochs * dev + test) / 3 / train
