"""What a sweep tries: every method with every learning rate, number of epochs, batch size and seed."""

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
    """An empty tuple leaves a setting to each method's own recipe. Methods may have options: houlsby-64 layers=3-5."""

    methods: tuple[str, ...] = ("houlsby-64",)
    learning_rate: tuple[float, ...] = ()
    epochs: tuple[int, ...] = ()
    batch_size: tuple[int, ...] = ()
    seeds: int = 1
    trunk_dropout: bool = True
    bias_correction: bool | None = None  # of the optimizer's means; None: each method's own recipe

    def __post_init__(self) -> None:
        if not self.methods or self.seeds < 1:
            raise IntarsiaError(f"{len(self.methods)} methods with {self.seeds} seeds leave nothing to try.")

    @property
    def size(self) -> int:
        settings = (self.learning_rate, self.epochs, self.batch_size)
        count = len(self.methods) * self.seeds
        for values in settings:
            count *= max(1, len(values))
        return count

    def jobs(self, name: str, data: TaskData, *, pooling: Pooling = "mean", **given: Any) -> list[Job]:
        """A job for every point of the grid, in the order of what they cost; `given` are settings for all of them."""
        found = []
        options = (self.learning_rate or (None,), self.epochs or (None,), self.batch_size or (None,), range(self.seeds))
        for text in self.methods:
            name_and_size, *own = text.split()
            method = parse(name_and_size, own)
            for rate, epochs, batch, seed in itertools.product(*options):
                chosen = {
                    "learning_rate": rate, "epochs": epochs, "batch_size": batch, "seed": seed,
                    "trunk_dropout": self.trunk_dropout, "bias_correction": self.bias_correction,
                    **{k: v for k, v in given.items() if v is not None},
                }  # fmt: skip
                found.append(Job(name, data, method, pooling, Settings.for_task(method, data, **chosen)))
        return sorted(found, key=lambda job: -job.settings.epochs)  # the longest first: no seat is left waiting for it


SMALL = Grid(("houlsby-8", "houlsby-64", "houlsby-256"), learning_rate=(2e-4, 5e-4, 1e-3))
PAPER = Grid(
    ("houlsby-8", "houlsby-64", "houlsby-256"), learning_rate=(3e-5, 3e-4, 3e-3), epochs=(3, 20), seeds=5,
    bias_correction=False,
)  # fmt: skip
NAMED = {"small": SMALL, "paper": PAPER}
OLD_NAMES = {"prefix_dropout": "trunk_dropout"}  # grids written before are still read
_BOOL = bool, "true or false"
_KINDS: dict[str, tuple[type, str]] = {"seeds": (int, "a number"), "trunk_dropout": _BOOL, "bias_correction": _BOOL}


def read_grid(text: str) -> Grid:
    """`small`, `paper`, or a TOML file with lists: methods, learning_rate, epochs, batch_size; a number, seeds; and
    true or false: trunk_dropout, bias_correction."""
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
        raise IntarsiaError(f"{path} is no TOML: {error}.") from error
    content = {OLD_NAMES.get(key, key): value for key, value in content.items()}
    known = Grid.__dataclass_fields__
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise IntarsiaError(f"{path} has {unknown[0]!r}, which no grid has; expected: {', '.join(known)}.")
    for key, value in content.items():
        kind, expected = _KINDS.get(key, (list, "a list"))
        if type(value) is not kind:
            raise IntarsiaError(f"{path}: {key} = {value!r} cannot be read; {expected} was expected.")
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    return Grid(**options)
