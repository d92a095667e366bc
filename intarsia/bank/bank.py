"""The bank: a folder of inlays over one frozen encoder, with the operations on it.

bank = intarsia.open("bank")
bank.learn("spam", "spam.csv", method=Bottleneck(64))
bank.predict("spam", ["You have won!"])
bank.predict([("spam", "You have won!"), ("topic", "Shares fell on Monday.")])
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from intarsia.bank import family
from intarsia.bank.accounting import BankCost, account
from intarsia.bank.entry import Entry, Problem, Unfinished
from intarsia.bank.store import Store
from intarsia.bank.work import discard, unfinished
from intarsia.errors import BankError, EncoderError, IntarsiaError, PrecisionError, UnknownTask
from intarsia.tasks import TaskData
from intarsia.tasks.examples import Kind, check_answers
from intarsia.tasks.named import load_named, load_named_examples
from intarsia.tasks.own_metric import named_metric

if TYPE_CHECKING:
    import numpy as np

    from intarsia.bank.export import Exported
    from intarsia.bank.frames import Probabilities
    from intarsia.encoder.encoder import Encoder
    from intarsia.methods import Method
    from intarsia.serve.ask import Answer, Ask
    from intarsia.serve.engine import Engine
    from intarsia.serve.explanation import By, Explanation
    from intarsia.serve.limits import Limits
    from intarsia.serve.parallel import Parallel
    from intarsia.serve.prediction import Prediction, Text
    from intarsia.tasks.heads import Pooling
    from intarsia.tasks.lengths import Proposal
    from intarsia.tasks.metrics import Interval
    from intarsia.tasks.outcome import Outcome
    from intarsia.trackers import Callbacks
    from intarsia.train.grid import Grid
    from intarsia.train.job import Settings
    from intarsia.train.progress import Watch


Texts = Any  # of a request: see `intarsia.tasks.requests.texts_of`


@dataclass(frozen=True)
class Evaluation:
    """A task's score on labelled examples, with its interval and what lies behind it."""

    task: str
    metric: str
    interval: Interval
    examples: int
    version: int
    # Scores for each label, confusions, calibration, mistakes.
    outcome: Outcome = dataclasses.field(repr=False)

    def to_dict(self, mistakes: int = 0) -> dict[str, Any]:
        """Return plain JSON values, with at most this many mistakes."""
        i = self.interval
        return {
            "task": self.task, "version": self.version, "metric": self.metric, "value": i.value, "low": i.low,
            "high": i.high, "too_few": i.few, "examples": self.examples, **self.outcome.to_dict(mistakes),
        }  # fmt: skip


class Bank:
    """A folder of inlays. The encoder is loaded on first use."""

    def __init__(
        self,
        folder: str | Path,
        encoder: str | Path | Encoder | None = None,
        *,
        device: str = "cpu",
        precision: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`limits` bound the memory, the queue and the passes of the engine that answers requests."""
        if not isinstance(folder, str | os.PathLike):
            raise BankError(f"expected the folder of a bank, found {folder!r:.60} ({type(folder).__name__}).")
        self.store = Store(folder)
        self.device, self.precision = device, precision
        self._given = encoder
        self._encoder: Encoder | None = None
        self.limits = limits
        self._engine: Engine | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        """The folder, the number of tasks and the base; this loads nothing."""
        try:
            count, bound = len(self.store.entries()), self.store.encoder
        except IntarsiaError as error:
            return f"Bank({str(self.store.folder)!r}, {error})"
        given = getattr(self._given, "name", self._given)
        base = bound["name"] if bound else given
        tasks = f"{count} task{'s' * (count != 1)}" if count else "no tasks yet"
        return f"Bank({str(self.store.folder)!r}, {tasks}{f', base {base}' if base else ''})"

    @property
    def encoder(self) -> Encoder:
        """The frozen base: the encoder given to `Bank`, else the base named in bank.json, else the embedded base."""
        with self._lock:
            if self._encoder is None:
                from intarsia.encoder.encoder import Encoder
                from intarsia.encoder.sources import EMBEDDED

                source = self._given or self._base_name or EMBEDDED
                encoder = source if isinstance(source, Encoder) else self._load_encoder(source)
                self.store.check_base(encoder.description)
                self._encoder = encoder
            return self._encoder

    @property
    def _base_name(self) -> str | None:
        """The name of the bank's base: in bank.json or, if it has been lost, in the inlays."""
        known = self.store.encoder or self.store.stated_base()
        return known.get("name") if known else None

    def base_at_hand(self) -> Encoder | None:
        """Return the bank's base if it is loaded or can be loaded without a download; else None."""
        from intarsia.encoder.sources import EMBEDDED

        with self._lock, contextlib.suppress(EncoderError, BankError):
            if self._encoder is None and self._given is None:
                name = self._base_name
                if name is None or (name != EMBEDDED and not Path(name).is_dir()):
                    return None
            return self.encoder
        return None

    def _load_encoder(self, source: str | Path) -> Encoder:
        from intarsia.encoder.encoder import Encoder

        try:
            return Encoder.load(source, device=self.device, precision=self.precision)
        except PrecisionError:
            raise
        except EncoderError as error:
            if self._given is not None or self.store.encoder is None:
                raise
            raise EncoderError(
                f"{error} It is the base of the bank {self.store.folder}. If it has moved, give its new path "
                "(--encoder, or intarsia.open(bank, encoder))."
            ) from error

    def learn(
        self,
        name: str,
        data: Any,
        method: Method | str | None = None,
        *,
        pooling: Pooling | None = None,
        start_from: str | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        sweep: bool | None = None,
        progress: bool | None = None,
        watch: Watch | None = None,
        callbacks: Callbacks | None = None,
        fresh: bool = False,
        serve_anyway: bool = False,
        **options: Any,
    ) -> Entry:
        """Learn a task, store it as the newest version of `name`, and return its entry. Other tasks do not change.

        `data` is a file, a folder, a hub name, a DataFrame, examples, or `TaskData`: all that `load_data` takes.
        `method` is a method, or its name with a size (`"lora-8"`). `options` are settings (`epochs=3`,
        `learning_rate=1e-3`) and arguments of `load_data` (`text="review"`); the other settings follow the method's
        recipe. `settings` gives them as a `Settings` or a mapping instead. The setting `metric` is a name, or a
        function of the true and the predicted labels.

        `start_from` is a task of the bank, or a version of it (`"topic@2"`): training continues from its tensors, with
        its method and pooling. The head continues too if the labels are equal; else it starts new. `pooling` is
        `"mean"` by default.

        The bank keeps the epoch with the best validation score, and stores its test score with an interval. If the call
        is killed, the same call resumes it; `fresh` starts again instead.

        A version that scores worse than the served one on the same test part is kept, and served only with
        `serve_anyway`.

        `max_length="auto"` among the settings chooses a length for the data (`propose_length`).

        `sweep` selects the small grid (three sizes, three learning rates) instead of one run. With None, the grid is
        tried if it costs little more than one run (on a GPU with recorded passes) and the caller gave neither a method
        nor a setting that the grid searches. `sweep=True` together with either of these raises an error.

        A terminal or notebook shows a progress bar, unless `watch` is given; `progress=True` shows it anywhere, as
        lines of text where there is neither, and `progress=False` nowhere. `watch` is called with the `Progress` of
        each training step and of each validation. `callbacks` are trackers, such as `"tensorboard:runs/"`, and
        functions that are called with every `RunnerEvent`: the planned jobs (one, or nine for the grid), each step,
        each result, and the stored version. The logger `intarsia.train` gets the epochs and results.
        """
        from intarsia.bank.advice import advise
        from intarsia.bank.learning import learn_alone, split_options, tries_grid
        from intarsia.bank.watching import watching
        from intarsia.display.show import learning_progress
        from intarsia.methods import Bottleneck, as_method
        from intarsia.train.job import Job, Settings

        self._check_trains()
        self.check_learning(name)
        method = None if method is None else family.resolved(self.store, as_method(method))
        settings, columns = split_options(options, settings, loaded=isinstance(data, TaskData))
        given = {} if settings is None or isinstance(settings, Settings) else dict(settings)
        metric = settings.metric if isinstance(settings, Settings) else named_metric(given.get("metric"))
        if metric is not None and isinstance(data, TaskData):
            from intarsia.tasks.metrics import check_choosing

            check_choosing(metric, data.kind, data.labels)  # fail before the slow loading of data and base
        task = data if isinstance(data, TaskData) else load_named(data, **columns)
        if given.get("max_length") == "auto":
            given["max_length"] = self.propose_length(task).tokens
        begun = None
        if start_from is not None:
            from intarsia.bank.starting import begin

            begun = begin(self.store, self.encoder, start_from, task, method, pooling)
            method = begun.method
        pooling = pooling or (begun.pooling if begun else "mean")
        used_method = method or Bottleneck()
        used = settings if isinstance(settings, Settings) else Settings.for_task(used_method, task, **given)
        grid = tries_grid(sweep, lambda: self.encoder, task, method, settings, pooling, fresh=fresh)
        if not grid:
            weights = used.class_weights
            advise(self.store, self.encoder, name, task, used.max_length, metric=used.metric, class_weights=weights)
        explain = "sweep=False" if sweep is None else None
        with watching(
            name, progress, watch, callbacks, show=lambda where: learning_progress(name, where, explain_grid=explain)
        ) as watcher:
            if grid:
                heard = [] if watcher is None else [watcher]
                return self.sweep(
                    {name: task}, pooling=pooling, callbacks=heard, progress=False, serve_anyway=serve_anyway, **given
                )[name]
            job = Job(name, task, used_method, pooling, used)
            if begun is not None:
                job = dataclasses.replace(job, hidden=begun.hidden, start=begun.start)
            job = family.with_parents(self.store, job, self.encoder)
            return learn_alone(self.store, self.encoder, job, fresh=fresh, serve_anyway=serve_anyway, watch=watcher)

    def sweep(
        self,
        tasks: Mapping[str, Any],
        grid: Grid | str | None = None,
        *,
        pooling: Pooling = "mean",
        together: int | None = None,
        score_all: bool = False,
        serve_anyway: bool = False,
        progress: bool | None = None,
        watch: Watch | None = None,
        callbacks: Callbacks | None = None,
        **settings: Any,
    ) -> dict[str, Entry]:
        """Train every point of a grid for each task (name → data), store the best of each, and return the entries.

        `grid` is a `Grid`, `"small"`, `"paper"` or a .toml file. All jobs form one queue and share passes. The
        validation part selects the best point. `settings` apply to all jobs: `max_length`, `metric` (one metric, or a
        mapping from task to metric), and so on. `together` is the number of jobs that share a pass (None: as many as
        fit). With `score_all`, every point is also scored on the test part,
        for means over seeds; this score selects nothing. `serve_anyway`, `progress`, `watch` and `callbacks`: as in
        `learn`.

        If the call is killed, the same call resumes it; on a CPU, it ends with the same weights.
        """
        from intarsia.bank.advice import advise
        from intarsia.bank.sweep import run_sweep
        from intarsia.bank.watching import watching
        from intarsia.tasks.kind_registry import default_length
        from intarsia.train.grid import read_grid

        self._check_trains()
        if not isinstance(tasks, Mapping):
            raise IntarsiaError(f"sweep expects a mapping from task names to data, found a {type(tasks).__name__}.")
        for name in tasks:
            self.check_learning(name)
        loaded = {name: data if isinstance(data, TaskData) else load_named(data) for name, data in tasks.items()}
        if settings.get("max_length") == "auto":  # one length for all jobs: the longest
            settings["max_length"] = max(self.propose_length(data).tokens for data in loaded.values())
        for name, data in loaded.items():
            length = settings.get("max_length") or default_length(data.kind)
            given = {name: settings.get(name) for name in ("metric", "class_weights")}
            advise(self.store, self.encoder, name, data, length, **given)
        chosen = read_grid(grid) if isinstance(grid, str) else grid
        with watching(", ".join(loaded), progress, watch, callbacks) as watcher:
            return run_sweep(
                self.store, self.encoder, loaded, chosen, pooling=pooling, together=together, score_all=score_all,
                serve_anyway=serve_anyway, watch=watcher, **settings,
            )  # fmt: skip

    def propose_length(self, data: TaskData) -> Proposal:
        """Return a maximum length for a task: from the lengths of its texts, the base's limit and the cost."""
        from intarsia.tasks.kind_registry import default_length
        from intarsia.tasks.lengths import propose

        return propose(data, self.encoder, default_length(data.kind))

    def _check_trains(self) -> None:
        """Raise before the slow loading of data and base if the base serves only."""
        if self.precision == "int8":
            from intarsia.encoder.int8 import SERVES_ONLY

            raise PrecisionError(SERVES_ONLY)

    @overload
    def predict(
        self,
        task: str,
        texts: Texts,
        *,
        version: int | None = None,
        threshold: float | None = None,
        swap: Mapping[str, str] | None = None,
    ) -> list[Prediction]: ...
    @overload
    def predict(self, task: Sequence[tuple[str, Text]]) -> list[Prediction]: ...
    @overload
    def predict(self, task: Parallel, texts: Texts) -> list[dict[str, Prediction]]: ...

    def predict(
        self,
        task: str | Sequence[tuple[str, Text]] | Parallel,
        texts: Texts | None = None,
        *,
        version: int | None = None,
        threshold: float | None = None,
        swap: Mapping[str, str] | None = None,
    ) -> list[Prediction] | list[dict[str, Prediction]]:
        """Return the predictions of one task for many texts or, given (task, text) requests, of many tasks in one pass.

        `texts` is a list, a column (pandas, NumPy, Arrow, Hugging Face), or a table with the columns that the task was
        learned from. The task kind determines the type of a text: a string; a tuple of two strings for text pairs;
        (question, context) for spans; a list of words for tagging; a string with mask tokens for masked-word
        prediction. `version` asks another version of the task than the served one. `threshold` replaces the stored ones
        of a task with several labels of n.

        `Parallel("topic", "tone")` in place of a task asks several tasks for each text; the result has a mapping from
        task to prediction for each text. `swap={"medical": "legal"}` lets another inlay stand in for one on which the
        task is built: another language or domain.
        """
        from intarsia.bank.frames import parallel_requests, requests_of
        from intarsia.serve.ask import Ask
        from intarsia.serve.parallel import Parallel

        swapped = family.swap_pairs(swap)
        if not isinstance(task, str) and (version is not None or threshold is not None or swapped):
            raise IntarsiaError("version, threshold and swap are for one task: predict(task, texts, …).")
        if isinstance(task, Parallel):
            requests = parallel_requests(self.store, task, texts)
            answers = iter(self._answers([Ask(name, text, at) for row in requests for name, at, text in row]))
            return [{shown: cast("Prediction", next(answers).prediction) for shown in task.tasks} for _ in requests]
        asks = [Ask(name, text, version, swap=swapped) for name, text in requests_of(self.store, task, texts, version)]
        found = [cast("Prediction", answer.prediction) for answer in self._answers(asks)]
        return found if threshold is None else [prediction.at_threshold(threshold) for prediction in found]

    def embed(self, texts: Texts, task: str | None = None) -> np.ndarray:
        """Return a vector for each text (or pair of texts): [texts, width] in float32.

        It is the pooled last state of the plain base (the mean over the tokens) or of a task's model (pooled as its
        head reads it). `texts`: as in `predict`.
        """
        import numpy as np

        from intarsia.bank.frames import texts_to_embed
        from intarsia.serve.ask import Ask

        asks = [Ask(task, text, embed=True) for text in texts_to_embed(self.store, texts, task)]
        vectors = [answer.vector for answer in self._answers(asks)]
        return np.stack(vectors) if vectors else np.zeros((0, self.encoder.shape.width), np.float32)  # type: ignore[arg-type]

    def _answers(self, asks: Sequence[Ask]) -> list[Answer]:
        """Return the answers of the engine; raise the error of the first ask that has one."""
        answers = self.engine.answer(asks)
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return answers

    def explain(
        self, task: str, texts: Texts, *, by: By = "occlusion", label: str | None = None, version: int | None = None
    ) -> list[Explanation]:
        """Return which words carried the answer for each text; for the kinds `label`, `labels` and `score`.

        `by="occlusion"` leaves each word out and compares the answers. `by="gradients"` gives integrated gradients.
        `label` is the label to explain (None: the likeliest). `texts` and `version`: as in `predict`.
        """
        from intarsia.bank.frames import requests_of
        from intarsia.serve.explain import check, explain
        from intarsia.serve.served import Served

        entry = self.store.entry(task, version)
        check_answers(entry.header.kind, task, "be explained")
        check(entry.header.kind, entry.header.labels, by, label, task)
        inlay = self.store.load(task, entry.version)
        kind, pairs = inlay.interface.task_kind, inlay.interface.pairs
        examples = [
            kind.parse_request(text, name, pairs) for name, text in requests_of(self.store, task, texts, version)
        ]
        learned = family.learned_on(self.store, inlay, self.encoder)
        served = Served(entry.header.digest, inlay.interface, lambda: learned, task, entry.version)
        return explain(served, examples, self.encoder, by=by, label=label)

    def predict_proba(self, task: str, texts: Texts, *, version: int | None = None) -> Probabilities:
        """Return the probability of each label for each text: an array [texts, labels], and the labels."""
        from intarsia.bank.frames import predict_proba

        return predict_proba(self, task, texts, version)

    def predict_frame(
        self, frame: Any, tasks: str | Iterable[str] | None = None, *, text: str | None = None, pair: str | None = None
    ) -> Any:
        """Return a copy of a DataFrame with the answers of some tasks (None: all) in new columns.

        The columns are named `task_field`, for example `tone_label` and `tone_probability`. All tasks share passes.
        Each task reads the columns `text` and `pair` or, if they are not named, those that it was learned from, else
        those with conventional names. Rows without a text get no answer.
        """
        from intarsia.bank.frames import predict_frame

        return predict_frame(self, frame, tasks, text, pair)

    @property
    def engine(self) -> Engine:
        """The engine that answers for this bank, from any number of threads."""
        with self._lock:
            if self._engine is None:
                import weakref

                from intarsia.bank.serving import VersionMap
                from intarsia.serve.engine import Engine

                versions = VersionMap(self.store, self.encoder)
                self._engine = Engine(self.encoder, versions, self.limits)
                versions.on_replaced = self._engine.retire
                weakref.finalize(self, self._engine.close, drain=False)
            return self._engine

    def evaluate(
        self,
        name: str,
        data: Any,
        *,
        metric: Any = None,
        version: int | None = None,
        threshold: float | None = None,
        swap: Mapping[str, str] | None = None,
        **columns: Any,
    ) -> Evaluation:
        """Return a task's score on labelled data: the test part of a folder, or all rows of a file, list or frame.

        `metric` is a name, or a function of the true and the predicted labels. `swap`: as in `predict`.
        """
        from intarsia.serve.scoring import RESAMPLES, predictions_of
        from intarsia.tasks.metrics import check_metric, evaluation_metric
        from intarsia.tasks.outcome import outcome_of

        entry = self.store.entry(name, version)
        inlay = self.store.load(name, entry.version)
        check_answers(inlay.kind, name, "be evaluated")
        kind, labels = cast(Kind, inlay.kind), tuple(inlay.labels)
        metric = evaluation_metric(metric, inlay.metrics.get("metric"), kind, labels)
        check_metric(metric, kind, labels)
        known = inlay.data.get("columns")
        examples = load_named_examples(data, kind=kind, labels=labels, learned_from=known, **columns)
        family.swap_pairs(swap)
        swapped = family.swapped_parents(self.store, name, inlay, swap) if swap else None
        learned = family.learned_on(self.store, inlay, self.encoder, swapped=swapped)
        if threshold is not None:
            learned = dataclasses.replace(learned, task_kind=learned.task_kind.at_threshold(threshold))
        inputs, rows = predictions_of(learned, examples, self.encoder, max_length=inlay.interface.max_length)
        interval = learned.task_kind.measure(metric, examples, inputs, rows, RESAMPLES)
        outcome = outcome_of(learned.task_kind, examples, inputs, rows)
        return Evaluation(name, metric, interval, len(examples), entry.version, outcome)

    def tasks(self) -> list[Entry]:
        """Return the served version of every task; `predict` uses these versions."""
        return self.store.entries()

    def cost(self) -> BankCost:
        """Return the bank's parameters and bytes, counted as in Houlsby et al. (2019)."""
        bound = self.store.encoder
        if bound is None:
            raise UnknownTask(f"The bank {self.store.folder} holds no task yet; learn one with `intarsia learn`.")
        served = self.tasks()
        return account(served, int(bound["parameters"]), family.unserved_parents(self.store, served))

    def show(self, name: str, version: int | None = None) -> Entry:
        return self.store.entry(name, version)

    def relatives(self, name: str, version: int | None = None) -> family.Relatives:
        """Return the inlays on which a task is built, and those that are built on it."""
        return family.relatives(self.store, self.store.entry(name, version))

    def copy(self, name: str, to: Bank | str | Path, version: int | None = None) -> list[Entry]:
        """Copy a task to another bank over the same base, with all inlays on which it is built; return their entries
        there, the task's last. What the other bank has already is not stored twice."""
        from intarsia.bank.copying import copy_family

        return copy_family(self.store, to.store if isinstance(to, Bank) else Store(to), name, version)

    def versions(self, name: str) -> list[Entry]:
        return self.store.versions(name)

    def restore(self, name: str, version: int) -> Entry:
        """Copy an older version to a new version number, so that the bank serves it again."""
        return self.store.restore(name, version)

    def remove(self, name: str, version: int | None = None, *, force: bool = False) -> None:
        """Delete a version or, by default, a task. An inlay on which others are built stays, unless `force`."""
        self.store.remove(name, version, force=force)

    def verify(self, *, rebuild: bool = False) -> list[Problem]:
        """Check every file and return the problems. If the base can be loaded without a download, the tensors are also
        compared with those that method and head have on it. The files of a local base that loading it would take on
        trust (encoder/proof.py) are hashed again."""
        changed = self._changed_base()  # first: a wrong proof is deleted, and the base is then hashed whole
        return [*self.store.verify(rebuild, self.base_at_hand()), *changed]

    def _changed_base(self) -> list[Problem]:
        from intarsia.encoder import proof

        with contextlib.suppress(IntarsiaError):  # bank.json cannot be read: the store reports it
            folder = proof.local_folder((self.store.encoder or {}).get("name"))
            if folder is not None:
                return [
                    Problem(folder / name, f"{folder / name}, a file of the base, has changed since it was checked. "
                            "The next use of the bank checks the base whole; restore the file from its source.")
                    for name in proof.changed_files(folder)
                ]  # fmt: skip
        return []

    def merge(
        self,
        name: str,
        tasks: Mapping[str, float],
        how: str = "linear",
        *,
        scale: float = 1.0,
        density: float = 0.2,
        drop: float = 0.9,
        seed: int = 0,
        rank: int | None = None,
        head: str | None = None,
        check: Any = None,
        serve_anyway: bool = False,
    ) -> Entry:
        """Merge the weights of tasks (name → weight, `tone` or `tone@2`) into a new task, without training.

        `how`: `"linear"` (the weighted mean), `"arithmetic"` (`scale` times the sum, also with negative weights),
        `"ties"` (keeps the share `density` of each), `"dare"` (drops entries with the probability `drop`, by `seed`);
        for LoRA also `"concat"` (the exact sum) and `"svd"` (the sum, reduced to `rank`).

        Heads with the same labels are merged likewise; else `head` names the task whose head is used, or `"none"`.
        `check` is labelled data, whose score is stored. The merged inlay does not depend on the others.
        """
        from intarsia.bank import succession
        from intarsia.bank.merging import merged

        self.check_learning(name)
        inlay = merged(
            self.store, self.encoder, name, tasks, how, scale=scale, density=density, drop=drop, seed=seed, rank=rank,
            head=head, check=check,
        )  # fmt: skip
        succession.warn_of_changes(self.store, name, inlay)
        return succession.add(self.store, inlay, encoder=self.encoder, serve_anyway=serve_anyway)

    def move(
        self,
        name: str,
        to: Bank | str | Path,
        *,
        check: Any = None,
        version: int | None = None,
        new_name: str | None = None,
        serve_anyway: bool = False,
    ) -> Entry:
        """Move a task to the bank of another base of the same shape, with the inlays on which it is built.

        Return its entry there; the task also stays here. `check` is labelled data: the task is scored on both bases,
        and both scores are stored. `new_name`: its name in the other bank.
        """
        from intarsia.bank.moving import Side, check_rows, move

        entry = self.store.entry(name, version)
        check_rows(entry, check)
        target = to if isinstance(to, Bank) else Bank(to, device=self.device, precision=self.precision)
        target.check_learning(new_name or name)
        sides = Side(self.store, self.encoder), Side(target.store, target.encoder)
        return move(*sides, entry, check, new_name or name, serve_anyway=serve_anyway)

    def export(
        self,
        name: str,
        folder: str | Path,
        version: int | None = None,
        *,
        format: str = "merged",
        license: str | None = None,
        force: bool = False,
    ) -> Exported:
        """Write a task as a folder that gives the same predictions without Intarsia.

        `format` is `"merged"`, a plain `transformers` model with the task merged into its weights, or that of a library
        of adapters: `"adapterhub"`, `"peft"`, `"sft"`. What a format cannot express is refused with the reason. The
        format `"inlay"` is for Intarsia: a bank with this task and the inlays on which it is built.
        `license` is stated in the card of an adapter. `force` replaces a folder that is not empty.
        """
        from intarsia.bank.exports import export

        return export(
            self.store, lambda: self.encoder, name, folder, version, format=format, licence=license, force=force
        )

    def push(
        self, name: str, repo: str, version: int | None = None, *, license: str | None = None, private: bool = True
    ) -> str:
        """Upload a task, with the inlays on which it is built and a card, to the repository `owner/name` of the hub.

        The repository is created if it does not exist. Return the address of the commit.
        """
        from intarsia.bank.sharing import push

        return push(self.store, name, repo, version, licence=license, private=private)

    def pull(self, name: str, repo: str, *, revision: str | None = None) -> Entry:
        """Download a task that `push` uploaded, with the inlays on which it is built, and return its entry.

        It must have been learned over this bank's base. `revision` is a branch, a tag or a commit.
        """
        from intarsia.bank.sharing import pull

        self.check_learning(name)
        return pull(self.store, name, repo, revision, lambda: self.encoder)

    def import_(
        self,
        name: str,
        source: str | Path,
        *,
        format: str | None = None,
        labels: Sequence[str] | None = None,
        kind: str | None = None,
        headless: bool = False,
        base_is_the_same: bool = False,
        hub: bool = False,
        revision: str | None = None,
        check: Any = None,
        serve_anyway: bool = False,
    ) -> Entry:
        """Import an adapter of another library as a task, and return its entry.

        `source` is a folder, a file of tensors or, with `hub`, the name of a repository. The format is found unless
        given: `"adapterhub"`, `"peft"` or `"sft"`. `labels` are the head's, in the order of its outputs, for files
        that have none; `kind` replaces the kind of the task. `headless` leaves the head out. A file states its base by
        name: if that differs from the bank's base, `base_is_the_same` says that the weights are the same. `check` is
        labelled data, whose score is stored.

        Every flag and tensor of the file must have its place, or the import fails. The first answers must be finite.
        A whole setup of AdapterHub becomes a composition; its adapters become inlays of their own (`NAME-ADAPTER`).
        """
        from intarsia.bank.importing import add_imported

        self.check_learning(name)
        return add_imported(
            self.store, name, source, self.encoder, format=format, labels=labels, kind=kind, headless=headless,
            base_is_the_same=base_is_the_same, hub=hub, revision=revision, check=check, serve_anyway=serve_anyway,
        )  # fmt: skip

    def check_learning(self, name: str) -> None:
        """Raise if a task of this name cannot be learned into this bank. Call it before slow work, to fail early."""
        self.store.check_name(name)
        self.store.check_writable(name)

    def discard(self, name: str) -> list[Unfinished]:
        """Delete the checkpoints of a task's unfinished training runs, and return what was deleted."""
        return discard(self.store.folder / "work", name)

    def unfinished(self) -> list[Unfinished]:
        """Return the training runs with a stored checkpoint: interrupted ones and running ones."""
        return unfinished(self.store.folder / "work")
