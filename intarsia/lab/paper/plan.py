"""What an experiment trains: every run of it, before anything is known of data or encoder weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from intarsia.errors import IntarsiaError
from intarsia.lab.paper import names
from intarsia.methods import Bottleneck, Full, LayerNorms, Method, TopLayers, from_dict, to_dict
from intarsia.tasks.heads import Pooling
from intarsia.tasks.kind_registry import FEWEST, default_length
from intarsia.tasks.suites.registry import find
from intarsia.train.job import Settings

BATCH = 32


@dataclass(frozen=True)
class Planned:
    """One run. What is None is the method's own recipe."""

    task: str
    group: str  # the row of a table, or the curve of a figure, that it belongs to
    method: Method
    seed: int
    learning_rate: float | None = None
    epochs: int | None = None
    batch_size: int | None = BATCH
    metric: str = ""  # chosen by and scored with; "": the official one
    extras: tuple[str, ...] = ()  # what else is measured when it has ended
    bias_correction: bool | None = False  # of the optimizer's means

    def settings(self, max_length: int | None) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("learning_rate", "epochs", "batch_size", "bias_correction")}
        recipe = Settings.for_method(self.method, **own)
        return {
            "bias_correction": recipe.adam.bias_correction,
            "learning_rate": recipe.learning_rate,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "seed": self.seed,
            "metric": self.metric or names.metric(self.task),
            "max_length": tokens(self.task, max_length),
        }


def tokens(task: str, given: int | None) -> int:
    """Of a text, at most: what was given, else what is usual for the task's kind."""
    return given or default_length(find(task).kind)


@dataclass(frozen=True)
class PaperGrid:
    """The values that the experiments try. `rates` and `epochs` are of adapters, `base_…` of full and top layers."""

    seeds: int
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    epochs: tuple[int, ...]
    base_rates: tuple[float, ...]
    base_epochs: tuple[int, ...]
    layers: tuple[int, ...]  # of variable fine-tuning
    fixed: int = 64
    curve_sizes: tuple[int, ...] = tuple(2**n for n in range(10))  # of single-task curves, which have all top layers
    stds: tuple[float, ...] = tuple(10.0**n for n in range(-7, 1))
    one: tuple[float, int] = (3e-4, 20)  # rate and epochs of initialisation and ablation, where nothing is searched
    factors: tuple[float, ...] = (1.0,)  # times the rate of each method's own recipe
    method_epochs: int | None = None  # None: of each method's own recipe
    candidates: int = 15  # of the search without a transformer


_THREE = (3e-5, 3e-4, 3e-3)
_FOUR = (1e-5, 3e-5, 1e-4, 3e-3)
PAPER = {
    # What full fine-tuning tries is Devlin et al. 2019's; the paper says it of adapters alone.
    "glue": PaperGrid(
        5, (8, 64, 256), _THREE, (3, 20), (2e-5, 3e-5, 5e-5), (3,), (1, 2, 3, 5, 7, 9, 11, 12), factors=(0.3, 1, 3)
    ),
    "extra": PaperGrid(
        3, (2, 4, 8, 16, 32, 64), _FOUR, (20, 50, 100), _FOUR, (20, 50, 100), (1, 2, 3, 5, 7, 9, 11, 12),
        factors=(0.3, 1, 3), candidates=100,
    ),
    "squad": PaperGrid(
        3, (2, 4, 8, 16, 32, 64), (3e-5, 1e-4, 3e-4, 1e-3), (3, 10, 20), (3e-5, 5e-5, 1e-4), (2, 3, 5), ()
    ),
}  # fmt: skip
# One rate each, the one that served best on four GLUE tasks with MPNet-base; at higher ones it often falls to the most
# frequent class without bias correction (the authors' program).
SMALL = PaperGrid(2, (8, 64), (3e-4,), (10,), (2e-5,), (3,), (1, 3, 6), curve_sizes=(1, 4, 16, 64, 256), one=(3e-4, 10))
TINY = PaperGrid(
    1, (2, 4), (3e-3,), (1,), (1e-3,), (1,), (1, 2), fixed=4, curve_sizes=(1, 2, 4), stds=(1e-7, 1e-2, 1.0),
    one=(3e-3, 1), method_epochs=1, candidates=3,
)  # fmt: skip
SUITES = tuple(PAPER)
GRIDS = {
    "paper": PAPER,
    "small": {
        "glue": SMALL,
        "extra": replace(SMALL, base_epochs=(10,)),  # tasks of a few thousand rows
        "squad": replace(SMALL, sizes=(2, 8, 64)),
    },
    "tiny": dict.fromkeys(SUITES, TINY),
}
_ALONE = ("grid", "limit", "pooling", "bias_correction")  # what is not joined with what was asked for before


@dataclass(frozen=True)
class Asked:
    """What a person asked an experiment for."""

    tasks: tuple[str, ...]
    grid: str = "small"
    seeds: int | None = None  # None: the grid's
    limit: int | None = None  # training rows; what is limited is never reported as the official task
    samples: bool = False  # take samples where a task is not whole
    pooling: Pooling = "mean"
    max_length: int | None = None  # None: what is usual for a task's kind
    bias_correction: bool | None = None  # of the optimizer's means; None: off, or each method's own recipe
    task_seeds: Mapping[str, int] = field(default_factory=dict)  # of tasks for which another number was asked for

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:
            raise IntarsiaError(f"the grid {self.grid!r} is not known: expected {', '.join(GRIDS)}.")
        if self.pooling not in get_args(Pooling):
            raise IntarsiaError(f"the pooling {self.pooling!r} is not known: expected {', '.join(get_args(Pooling))}.")
        if self.max_length is not None and self.max_length < FEWEST:
            raise IntarsiaError(
                f"--max-length {self.max_length} leaves no word, as a text's two marks count too; at least "
                f"{FEWEST} was expected."
            )
        if self.seeds is not None and self.seeds < 1:
            raise IntarsiaError(f"{self.seeds} seeds leave nothing to train; at least 1 was expected.")

    def joins(self, earlier: Asked) -> bool:
        """Whether both are one experiment, of which this asks for more."""
        return all(getattr(self, what) == getattr(earlier, what) for what in _ALONE) and all(
            tokens(task, self.max_length) == tokens(task, earlier.max_length) for task in self.tasks
        )

    def joined(self, earlier: Asked) -> Asked:
        """This and what was asked for before, where the rest is the same: the tasks and samples of both, and of each
        task the most seeds that were asked for."""
        if not self.joins(earlier):
            return self
        tasks = tuple(dict.fromkeys((*earlier.tasks, *self.tasks)))
        most = {t: max(len(a.each_seed(t)) for a in (self, earlier) if t in a.tasks) for t in tasks}
        others = {task: seeds for task, seeds in most.items() if seeds != (self.seeds or self.values(task).seeds)}
        return replace(self, tasks=tasks, task_seeds=others, samples=self.samples or earlier.samples)

    def values(self, task: str) -> PaperGrid:
        return GRIDS[self.grid][task.partition("/")[0]]

    def each_seed(self, task: str) -> range:
        return range(self.task_seeds.get(task) or self.seeds or self.values(task).seeds)


@dataclass(frozen=True)
class Searched:
    """A group's runs of one task: methods by learning rates by epochs by seeds."""

    task: str
    group: str
    methods: Sequence[Method]
    rates: Sequence[float | None]
    epochs: Sequence[int | None]
    options: Mapping[str, Any] = field(default_factory=dict)

    def planned(self, asked: Asked) -> list[Planned]:
        options = {"bias_correction": bool(asked.bias_correction), **self.options}
        return [
            Planned(self.task, self.group, method, seed, rate, epochs, **options)
            for method, rate, epochs, seed in itertools.product(
                self.methods, self.rates, self.epochs, asked.each_seed(self.task)
            )
        ]


def full(task: str, asked: Asked) -> list[Planned]:
    grid = asked.values(task)
    return Searched(task, "full", [Full()], grid.base_rates, grid.base_epochs, _also(task)).planned(asked)


def variable(task: str, asked: Asked, depth: int, *, every: bool = False) -> list[Planned]:
    """`depth`: layers of the encoder. `every`: all numbers of top layers, not those of the grid."""
    grid = asked.values(task)
    numbers = range(1, depth + 1) if every else sorted({n for n in grid.layers if n <= depth} or {depth})
    methods = [TopLayers(number=n) for n in numbers]
    return Searched(task, "variable", methods, grid.base_rates, grid.base_epochs, _also(task)).planned(asked)


def adapters(task: str, asked: Asked, sizes: Iterable[int] | None = None) -> list[Planned]:
    grid = asked.values(task)
    methods = [Bottleneck(size) for size in sizes or sorted({*grid.sizes, grid.fixed})]
    return Searched(task, "adapters", methods, grid.rates, grid.epochs, _also(task)).planned(asked)


def layernorm(task: str, asked: Asked) -> list[Planned]:
    grid = asked.values(task)
    rates = sorted({*grid.rates, 3e-3})  # so few parameters take a higher rate
    return Searched(task, "layernorm", [LayerNorms()], rates, grid.epochs, _also(task)).planned(asked)


def _also(task: str) -> dict[str, Any]:
    """What is scored with each run: MNLI's second dev part; of SQuAD, exact match beside F1."""
    if task.startswith("squad/"):
        return {"extras": ("exact-match",)}
    return {"extras": ("mismatched",)} if task == "glue/mnli" else {}


def identity(task: str, method: Method | Mapping[str, Any], settings: Mapping[str, Any], pooling: str) -> str:
    """The same for a planned run and for the record of it, also if methods get further options in between."""
    known = method if isinstance(method, Method) else from_dict(dict(method))
    kept = [settings[k] for k in ("learning_rate", "epochs", "batch_size", "seed", "metric", "max_length")]
    if settings.get("bias_correction"):
        kept.append("bias_correction")
    return json.dumps([task, to_dict(known), kept, pooling], sort_keys=True)
