"""The grid of a sweep: every method with every learning rate, number of epochs, batch size and seed."""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.methods import parse
from intarsia.tasks.examples import TaskData
from intarsia.tasks.heads import Pooling
from intarsia.train.job import Job, Settings


@dataclass(frozen=True)
class Grid:
    """The values of each setting; an empty tuple means the value of each method's recipe.

    A method may have options, for example `houlsby-64 layers=3-5`, or be a composition: `stack(medical, pfeiffer-48)`.
    """

    methods: tuple[str, ...] = ("houlsby-64",)
    learning_rate: tuple[float, ...] = ()
    epochs: tuple[int, ...] = ()
    batch_size: tuple[int, ...] = ()
    seeds: int = 1
    trunk_dropout: bool = True
    bias_correction: bool | None = None  # of Adam's moments; None: the value of each method's recipe

    def __post_init__(self) -> None:
        if not self.methods or self.seeds < 1:
            raise IntarsiaError(
                f"the grid has {len(self.methods)} methods and {self.seeds} seeds, so there is nothing to try; "
                "expected at least one method and one seed."
            )

    @property
    def size(self) -> int:
        """The number of jobs per task."""
        settings = (self.learning_rate, self.epochs, self.batch_size)
        count = len(self.methods) * self.seeds
        for values in settings:
            count *= max(1, len(values))
        return count

    def jobs(self, name: str, data: TaskData, *, pooling: Pooling = "mean", **given: Any) -> list[Job]:
        """Return a job for each point of the grid, most epochs first; `given`: settings for all jobs."""
        jobs = []
        options = (self.learning_rate or (None,), self.epochs or (None,), self.batch_size or (None,), range(self.seeds))
        for text in self.methods:
            method = parse(text)
            for rate, epochs, batch, seed in itertools.product(*options):
                chosen = {
                    "learning_rate": rate, "epochs": epochs, "batch_size": batch, "seed": seed,
                    "trunk_dropout": self.trunk_dropout, "bias_correction": self.bias_correction,
                    **{k: v for k, v in given.items() if v is not None},
                }  # fmt: skip
                jobs.append(Job(name, data, method, pooling, Settings.for_task(method, data, **chosen)))
        return sorted(jobs, key=lambda job: -job.settings.epochs)  # a long job that starts last would train alone


SMALL = Grid(("houlsby-8", "houlsby-64", "houlsby-256"), learning_rate=(2e-4, 5e-4, 1e-3))
PAPER = Grid(
    ("houlsby-8", "houlsby-64", "houlsby-256"), learning_rate=(3e-5, 3e-4, 3e-3), epochs=(3, 20), seeds=5,
    bias_correction=False,
)  # fmt: skip
NAMED = {"small": SMALL, "paper": PAPER}
OLD_NAMES = {"prefix_dropout": "trunk_dropout"}  # grid files may use the names of earlier versions
_BOOL = bool, "true or false"
_KINDS: dict[str, tuple[type, str]] = {"seeds": (int, "a number"), "trunk_dropout": _BOOL, "bias_correction": _BOOL}


def read_grid(text: str) -> Grid:
    """Return the named grid (`small`, `paper`) or the grid in a TOML file.

    The file may set the lists methods, learning_rate, epochs and batch_size, the number seeds, and the booleans
    trunk_dropout and bias_correction.
    """
    if text in NAMED:
        return NAMED[text]
    path = Path(text)
    if path.suffix != ".toml" or not path.is_file():
        raise IntarsiaError(
            f"the grid {text!r} is not known: expected {', '.join(NAMED)}, or a .toml file that exists."
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise IntarsiaError(f"{path} is not a valid TOML file: {error}.") from error
    content = {OLD_NAMES.get(key, key): value for key, value in content.items()}
    known = Grid.__dataclass_fields__
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise IntarsiaError(f"{path}: the setting {unknown[0]!r} is not known; expected: {', '.join(known)}.")
    for key, value in content.items():
        kind, expected = _KINDS.get(key, (list, "a list"))
        if type(value) is not kind:
            raise IntarsiaError(f"{path}: {key} = {value!r} is not valid; {expected} was expected.")
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    return Grid(**options)
