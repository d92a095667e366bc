"""Learning one task: one training run, or the small grid where that costs little more than one run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.bank import succession
from intarsia.bank.entry import Entry
from intarsia.bank.inlay_of import inlay_of
from intarsia.bank.store import Store
from intarsia.bank.work import clear, run_id, stored_by_run, working_folder
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError, did_you_mean
from intarsia.methods import Method
from intarsia.tasks import load_data
from intarsia.tasks.examples import TaskData
from intarsia.tasks.heads import Pooling
from intarsia.train.grid import SMALL
from intarsia.train.job import Job, Settings
from intarsia.train.run import Trained, check_job
from intarsia.train.runner import JobResult, Runner, RunnerEvent, RunnerWatch
from intarsia.train.scheduler import cheap_together

FOR_A_GRID = (  # settings that no grid searches
    "max_length", "metric", "seed", "trunk_dropout", "bias_correction", "class_weights", "calibrate", "threshold",
)  # fmt: skip

NOTHING_STORED = "Nothing was stored; the same command resumes the training."

GivenSettings = Settings | Mapping[str, Any]


def split_options(
    options: Mapping[str, Any], settings: GivenSettings | None, *, loaded: bool
) -> tuple[GivenSettings | None, dict[str, Any]]:
    """Return the settings, with those among the keywords of `learn`, and the keywords for `load_data`.

    `seed` counts as both. Keywords replace values in `settings`. `loaded`: the data is `TaskData`, which takes no
    keywords.
    """
    of_data = tuple(inspect.signature(load_data).parameters)[1:]
    known = (*Settings.names(), *of_data)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise IntarsiaError(
            f"learn has no option {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
            f"Settings: {', '.join(Settings.names())}. Options of the data: {', '.join(of_data)}."
        )
    if settings is not None and not isinstance(settings, Settings | Mapping):
        raise IntarsiaError(
            f"settings: expected Settings(…) or a mapping such as {{'epochs': 3}}, found a {type(settings).__name__}."
        )
    for_data = {name: value for name, value in options.items() if name in of_data}
    ignored = [name for name, value in for_data.items() if loaded and name != "seed" and value is not None]
    if ignored:
        raise IntarsiaError(f"the data is loaded already, so {ignored[0]}= has no effect. Give it to load_data.")
    given = {name: value for name, value in options.items() if name in Settings.names() and value is not None}
    if isinstance(settings, Settings):
        given.pop("seed", None)  # these settings have a seed
        return settings.changed(**given) if given else settings, for_data
    Settings.check_names(settings or ())
    joined = {**(settings or {}), **given}
    return joined or None, {} if loaded else for_data


def given_values(settings: GivenSettings | None) -> dict[str, Any] | None:
    """Return the settings that the caller gave, if they can apply to all jobs of the small grid; else None."""
    if isinstance(settings, Settings):
        return None
    given = {k: v for k, v in (settings or {}).items() if v is not None}
    return given if given.keys() <= set(FOR_A_GRID) else None


def tries_grid(
    sweep: bool | None,
    encoder: Callable[[], Encoder],
    data: TaskData,
    method: Method | None,
    settings: GivenSettings | None,
    pooling: Pooling,
    *,
    fresh: bool,
) -> bool:
    """Return whether `learn` tries the small grid. `sweep` forces the choice; None: if the grid costs little more.
    `encoder` is called only for that estimate."""
    given = given_values(settings)
    free = method is None and given is not None and not fresh
    if sweep and not free:
        raise IntarsiaError(
            "a sweep tries methods and learning rates of its own: leave out the method, the learning rate, epochs, "
            "batch size, patience and fresh, or give a grid to `bank.sweep` (`intarsia sweep --grid file.toml`)."
        )
    if sweep is not None or not free:
        return bool(sweep)
    return cheap_together(SMALL.jobs("", data, pooling=pooling, **(given or {})), encoder())


def learn_alone(
    store: Store,
    encoder: Encoder,
    job: Job,
    *,
    fresh: bool = False,
    serve_anyway: bool = False,
    watch: RunnerWatch | None = None,
) -> Entry:
    """Train one run, store it as the newest version of its task, and return the entry."""
    check_job(job, encoder.shape)
    folder = store.folder / "work" / f"{job.name}-{job.key(encoder.fingerprint)}"
    with files.explained(store.folder, doing="use", outcome=NOTHING_STORED), working_folder(folder) as work:
        state = work / "state.safetensors"
        if fresh:
            clear(work)
            files.make_folder(work)
        entry = stored_by_run(store, job.name, work)  # by a process that was killed before it could clear the folder
        if entry is None:
            results = _IntoBank(store, encoder, work, serve_anyway)
            Runner([job], encoder, work, results, state_file=lambda _: state, watch=watch).run(together=1)
            entry = results.entry()
            if watch is not None:
                watch(RunnerEvent(job=job, key=job.key(encoder.fingerprint), learned=entry.to_dict()))
        clear(work)
    return entry


class _IntoBank:
    """The result of a single run is its inlay, scored and stored before the run's state goes."""

    def __init__(self, store: Store, encoder: Encoder, work: Path, serve_anyway: bool) -> None:
        self.store, self.encoder, self.work, self.serve_anyway = store, encoder, work, serve_anyway
        self.added: Entry | IntarsiaError | None = None

    def find(self, job: Job, key: str) -> None:
        """Learning a task again makes a new version."""

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> JobResult:
        if isinstance(outcome, IntarsiaError):
            self.added = outcome
        else:
            inlay = inlay_of(job, outcome, self.encoder)
            inlay.training["run"] = run_id(self.work)
            self.added = succession.add(self.store, inlay, encoder=self.encoder, serve_anyway=self.serve_anyway)
        return JobResult.of(job, key, outcome)

    def entry(self) -> Entry:
        if isinstance(self.added, IntarsiaError):
            raise self.added
        assert self.added is not None
        return self.added
