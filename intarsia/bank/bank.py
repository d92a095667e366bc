"""The bank: a folder of inlays over one frozen encoder, and everything one does with it.

bank = intarsia.open("bank")
bank.learn("spam", "spam.csv", method=Bottleneck(64))
bank.predict("spam", ["You have won!"])
bank.predict([("spam", "You have won!"), ("topic", "Shares fell on Monday.")])
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from intarsia import provenance
from intarsia.bank.accounting import BankCost, account
from intarsia.bank.entry import Entry, Problem, Unfinished
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.bank.work import unfinished, working_folder
from intarsia.errors import BankError, EncoderError, IntarsiaError
from intarsia.tasks import TaskData, load_data
from intarsia.tasks.examples import Example, Kind, Question
from intarsia.tasks.metrics import Interval, check_choosing, default_metric

if TYPE_CHECKING:
    from intarsia.bank.export import Exported
    from intarsia.bank.sweep import Watch as SweepWatch
    from intarsia.encoder.encoder import Encoder
    from intarsia.methods import Method
    from intarsia.serve.predictor import Predictor
    from intarsia.tasks.heads import Pooling
    from intarsia.train.grid import Grid
    from intarsia.train.job import Settings
    from intarsia.train.loop import Watch
    from intarsia.train.run import Trained

RESAMPLES = 1000  # of a bootstrap interval
Text = str | Sequence[str] | Question  # a text; a pair of texts, or the words of a sentence, by the task's kind


@dataclass(frozen=True)
class Prediction:
    """One answer. `label` for one of n, `labels` for several of n, `score` for a number, `tags` for words, with the
    `entities` that the tags make; `answer` for a span, empty where there is none; `masks` for words to fill in."""

    task: str
    label: str | None = None
    labels: tuple[str, ...] | None = None
    score: float | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    tags: list[dict[str, Any]] | None = None  # word, tag, probability
    entities: list[dict[str, Any]] | None = None  # type, start and end (words), text
    answer: str | None = None
    start: int | None = None  # the answer's first character in the context
    no_answer_score: float | None = (
        None  # by how much no answer is better than the best; above a threshold, none is given
    )
    candidates: list[dict[str, Any]] | None = None  # text, start, probability
    masks: list[dict[str, Any]] | None = None  # start (character), words: the likeliest, each with its probability

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if v is not None}


@dataclass(frozen=True)
class Evaluation:
    """A task's score on some examples, with a bootstrap interval."""

    task: str
    metric: str
    interval: Interval
    examples: int


class Bank:
    """A folder of inlays. The encoder is loaded when first needed."""

    def __init__(
        self,
        folder: str | Path,
        encoder: str | Path | Encoder | None = None,
        *,
        device: str = "cpu",
        precision: str | None = None,
    ) -> None:
        self.store = Store(folder)
        self.device, self.precision = device, precision
        self._given = encoder
        self._encoder: Encoder | None = None
        self._predictor: Predictor | None = None
        self._served: dict[str, Entry] = {}  # by digest

    @property
    def encoder(self) -> Encoder:
        """The frozen base of this bank: the one given, the one the bank was begun with, or the embedded one."""
        if self._encoder is None:
            from intarsia.encoder.encoder import Encoder
            from intarsia.encoder.sources import EMBEDDED

            bound = self.store.encoder
            source = self._given or (bound["name"] if bound else EMBEDDED)
            encoder = source if isinstance(source, Encoder) else self._load_encoder(source)
            if bound is not None:
                self.store.bind(_description(encoder))  # refuses another base
            self._encoder = encoder
        return self._encoder

    def _load_encoder(self, source: str | Path) -> Encoder:
        from intarsia.encoder.encoder import Encoder

        try:
            return Encoder.load(source, device=self.device, precision=self.precision)
        except EncoderError as error:
            if self._given is not None or self.store.encoder is None:
                raise
            raise EncoderError(
                f"{error} The bank {self.store.folder} was begun over it: if it has moved, name its new place "
                "(--encoder, or intarsia.open(bank, encoder))."
            ) from error

    def learn(
        self,
        name: str,
        data: Any,
        method: Method | None = None,
        *,
        pooling: Pooling = "mean",
        settings: Settings | None = None,
        watch: Watch | None = None,
        fresh: bool = False,
        **columns: Any,
    ) -> Entry:
        """Learn a task and keep it as the newest version of `name`; other tasks are not touched.

        `data` is a file, a folder, a hub name, examples, or `TaskData`; `columns` go to `load_data`. The best epoch by
        the validation part is kept; the score on the test part, with its interval, is stored with it. A run that was
        killed goes on where it was when called again with the same arguments, unless `fresh`.
        """
        from intarsia.methods import Bottleneck
        from intarsia.train.job import Job, Settings
        from intarsia.train.loop import train

        self.store.check_name(name)
        if settings is not None and settings.metric is not None and isinstance(data, TaskData):
            check_choosing(settings.metric, data.kind, data.labels)  # before anything is loaded
        task = data if isinstance(data, TaskData) else load_data(data, **columns)
        method = method or Bottleneck()
        settings = settings or Settings.for_task(method, task)
        job = Job(name, task, method, pooling, settings)
        method.check(self.encoder.shape)
        with working_folder(self.store.folder / "work" / f"{name}-{job.key(self.encoder.fingerprint)}") as work:
            if fresh:
                (work / "state.safetensors").unlink(missing_ok=True)
            trained = train(job, self.encoder, state_file=work / "state.safetensors", watch=watch)
            inlay = self._inlay(job, trained)
            entry = self.store.add(inlay)
            shutil.rmtree(work, ignore_errors=True)
        return entry

    def sweep_is_cheap(self, data: TaskData, pooling: Pooling = "mean", **settings: Any) -> bool:
        """Whether the small grid costs little more than one run here: then `intarsia learn` tries it."""
        from intarsia.train.grid import SMALL
        from intarsia.train.scheduler import cheap_together

        return cheap_together(SMALL.jobs("", data, pooling=pooling, **settings), self.encoder)

    def sweep(
        self,
        tasks: Mapping[str, Any],
        grid: Grid | None = None,
        *,
        pooling: Pooling = "mean",
        together: int | None = None,
        score_all: bool = False,
        watch: SweepWatch | None = None,
        **settings: Any,
    ) -> dict[str, Entry]:
        """Try every point of a grid for each task (name → data), all in one queue of jobs that share passes, and keep
        the best of each by its validation part. `settings` (`max_length`, …; `metric`, or a mapping of
        metrics by task) hold for all. With `score_all` every
        point is scored on the test part too (for means over seeds); the choice is the validation part's all the same.

        A sweep that was killed goes on where it was when called again with the same arguments.
        """
        from intarsia.bank.sweep import Sweep, work
        from intarsia.train.grid import SMALL

        for name in tasks:
            self.store.check_name(name)
        data = {name: d if isinstance(d, TaskData) else load_data(d) for name, d in tasks.items()}
        metric = settings.pop("metric", None)
        jobs = []
        for name, task in data.items():
            own = metric.get(name) if isinstance(metric, Mapping) else metric
            jobs += (grid or SMALL).jobs(name, task, pooling=pooling, metric=own, **settings)
        jobs.sort(key=work, reverse=True)  # the longest first: at the end no seat waits for a long one
        for job in jobs:
            job.method.check(self.encoder.shape)
        with working_folder(self.store.folder / "work" / Sweep.name(jobs, self.encoder)) as folder:
            sweep = Sweep(jobs, self.encoder, folder, watch)
            sweep.run(together, score_all=score_all)
            found = {}
            for name in data:
                job, trained = sweep.best(name)
                inlay = self._inlay(job, trained)
                inlay.training["grid"] = sweep.grid(name)
                found[name] = self.store.add(inlay)
            shutil.rmtree(folder, ignore_errors=True)
        return found

    def _inlay(self, job: Any, trained: Trained) -> Inlay:
        shape = self.encoder.shape
        method = job.method.count(shape)
        head = trained.head.count(shape, job.method.row_width(shape))
        state = trained.state
        inlay = Inlay(
            name=job.name,
            kind=job.data.kind,
            labels=tuple(job.data.labels),
            method=job.describe()["method"],
            head={**trained.head.to_dict(), **trained.task_kind.to_dict()},
            encoder={k: v for k, v in _description(self.encoder).items() if k != "parameters"},
            tensors={k: v.cpu() for k, v in trained.tensors.items()},
            parameters={"method": method, "head": head, "total": method + head, "base": shape.parameters},
            metrics={"metric": trained.metric, "dev": state.best, "best_epoch": state.best_epoch},
            training={
                **{k: v for k, v in job.describe().items() if k != "method"},
                **({"head_start": "the checkpoint's"} if trained.head.starts(self.encoder) else {}),
                "steps": state.step,
                "tokens": state.tokens,
                "seconds": round(state.seconds, 1),
                "history": state.history,
            },
            data={
                **job.data.source,
                "pairs": job.data.pairs,
                **({"words_left_out": trained.left_out} if trained.left_out else {}),
            },
            versions=provenance.versions(),
            parents=(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        test = job.data.test
        if test:
            result = self._score(inlay, test, trained.metric)
            interval = {"value": result.value, "low": result.low, "high": result.high, "examples": len(test)}
            if trained.metric == "likelihood":
                interval["perplexity"] = 1 / result.value
            inlay.metrics["test"] = interval
        return inlay

    def _score(self, inlay: Inlay, examples: Sequence[Example], metric: str) -> Interval:
        from intarsia.serve.predictor import Predictor, kind_of

        task_kind = kind_of(inlay)
        predictor = Predictor(self.encoder, lambda _: inlay, slots=1)
        inputs = task_kind.inputs(examples, self.encoder, inlay.training.get("max_length"))
        predictions = predictor.predict([("", segment) for segment in inputs.segments])
        return task_kind.measure(metric, examples, inputs, predictions, RESAMPLES)

    @overload
    def predict(self, task: str, texts: Sequence[Text]) -> list[Prediction]: ...
    @overload
    def predict(self, task: Sequence[tuple[str, Text]]) -> list[Prediction]: ...

    def predict(self, task: str | Sequence[tuple[str, Text]], texts: Sequence[Text] | None = None) -> list[Prediction]:
        """Ask one task about many texts, or, with (task, text) requests, many tasks in one pass.

        A text is a string, a tuple of two for tasks over pairs, (question, context) for tasks over spans, a list of
        words for tasks that tag words, or a string with mask tokens for tasks that fill in words.
        """
        if isinstance(task, str):
            if isinstance(texts, str):
                raise IntarsiaError("predict takes a list of texts, not one string: write [text].")
            requests = [(task, text) for text in texts or ()]
        else:
            requests = list(task)
        from intarsia.serve.predictor import kind_of

        entries = {name: self._newest(name) for name in dict.fromkeys(name for name, _ in requests)}
        keyed: list[Any] = []
        asked = {}
        for name, entry in entries.items():
            header, task_kind = entry.header, kind_of(entry.header)
            places = [i for i, request in enumerate(requests) if request[0] == name]
            pairs = bool(header.data.get("pairs"))
            examples = [task_kind.parse_request(requests[i][1], name, pairs) for i in places]
            inputs = task_kind.inputs(examples, self.encoder, header.training.get("max_length"))
            asked[name] = (task_kind, places, examples, inputs, slice(len(keyed), len(keyed) + len(inputs.segments)))
            keyed += [(header.digest, segment) for segment in inputs.segments]
        predictions = self.predictor.predict(keyed)
        found: list[Any] = [None] * len(requests)
        for name, (task_kind, places, examples, inputs, rows) in asked.items():
            for i, answer in zip(places, task_kind.describe_all(examples, inputs, predictions[rows]), strict=True):
                found[i] = _prediction(name, answer)
        return found

    @property
    def predictor(self) -> Predictor:
        """Answers by digest: the served versions, in slots."""
        if self._predictor is None:
            from intarsia.serve.predictor import Predictor

            self._predictor = Predictor(self.encoder, self._load)
        return self._predictor

    def _load(self, digest: str) -> Inlay:
        entry = self._served[digest]
        return self.store.load(entry.name, entry.version)

    def _newest(self, name: str) -> Entry:
        """The served version of a task; a version learned meanwhile is picked up."""
        entry = self.store.entry(name)
        if entry.state != "ok":
            self.store.load(name)  # says what is wrong, and which version can be restored
        digest = entry.header.digest
        for old in [d for d, served in self._served.items() if served.name == name and d != digest]:
            del self._served[old]
            self.predictor.drop(old)
        self._served[digest] = entry
        return entry

    def evaluate(self, name: str, data: Any, *, metric: str | None = None, **columns: Any) -> Evaluation:
        """A task's score on labelled data: the test part of a folder, or all rows of a file or list."""
        from intarsia.tasks.data import load_examples

        inlay = self.store.load(name)
        examples = load_examples(data, kind=cast(Kind, inlay.kind), labels=tuple(inlay.labels), **columns)
        metric = metric or inlay.metrics.get("metric") or default_metric(inlay.kind, inlay.labels)  # type: ignore[arg-type]
        return Evaluation(name, metric, self._score(inlay, examples, metric), len(examples))

    def tasks(self) -> list[Entry]:
        """The served version of every task."""
        return self.store.entries()

    def cost(self) -> BankCost:
        """What the bank costs, as the paper counts."""
        bound = self.store.encoder
        if bound is None:
            raise BankError(f"the bank {self.store.folder} holds no task yet; learn one with `intarsia learn`.")
        return account(self.tasks(), int(bound["parameters"]))

    def show(self, name: str, version: int | None = None) -> Entry:
        return self.store.entry(name, version)

    def versions(self, name: str) -> list[Entry]:
        return self.store.versions(name)

    def restore(self, name: str, version: int) -> Entry:
        """Serve an older version again: its bytes become the newest version."""
        return self.store.restore(name, version)

    def remove(self, name: str, version: int | None = None) -> None:
        self.store.remove(name, version)

    def verify(self, *, rebuild: bool = False) -> list[Problem]:
        return self.store.verify(rebuild)

    def export(self, name: str, folder: str | Path, version: int | None = None, *, force: bool = False) -> Exported:
        """Write a task as a plain `transformers` folder that computes the same without Intarsia.

        For methods that can be merged into the base. `force` replaces a folder that is not empty.
        """
        from intarsia.bank.export import check_folder, export, mergeable

        entry = self.store.entry(name, version)
        inlay = self.store.load(name, entry.version)
        method, folder = mergeable(inlay), Path(folder).expanduser().resolve()
        spared = {"the bank": self.store.folder, "the folder that you are in": Path.cwd()}
        check_folder(folder, force, spared)  # before the base is loaded
        return export(inlay, entry.version, method, self.encoder, folder, force=force, spared=spared)

    def unfinished(self) -> list[Unfinished]:
        """Runs whose state is stored: interrupted ones that can go on, and those under way."""
        return unfinished(self.store.folder / "work")


def _description(encoder: Encoder) -> dict[str, Any]:
    return {
        "name": encoder.name,
        "fingerprint": encoder.fingerprint,
        "tokenizer": encoder.tokenizer_fingerprint,
        "parameters": encoder.shape.parameters,
    }


def _prediction(task: str, answer: dict[str, Any]) -> Prediction:
    if "labels" in answer:
        answer = {**answer, "labels": tuple(answer["labels"])}
    return Prediction(task, **answer)
