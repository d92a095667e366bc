"""The runs that an experiment trains. A plan needs neither data nor encoder weights."""

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
from intarsia.tasks.kind_registry import default_length
from intarsia.tasks.lengths import FEWEST
from intarsia.tasks.suites.registry import find
from intarsia.train.job import Settings

BATCH = 32


@dataclass(frozen=True)
class PlannedRun:
    """One run. A setting that is None comes from the method's own recipe."""

    task: str
    group: str  # the table row or figure curve that shows this run
    method: Method
    seed: int
    learning_rate: float | None = None
    epochs: int | None = None
    batch_size: int | None = BATCH
    metric: str = ""  # selects the epoch and scores the run; "": the task's official metric
    extras: tuple[str, ...] = ()  # further measurements after training
    bias_correction: bool | None = False  # of AdamW's moment estimates

    def settings(self, max_length: int | None) -> dict[str, Any]:
        """Return all settings of the run, with the recipe's values where the plan has None."""
        own = {name: getattr(self, name) for name in ("learning_rate", "epochs", "batch_size", "bias_correction")}
        recipe = Settings.for_method(self.method, **own)
        return {
            "bias_correction": recipe.adam.bias_correction,
            "learning_rate": recipe.learning_rate,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "seed": self.seed,
            "metric": self.metric or names.metric(self.task),
            "max_length": max_tokens(self.task, max_length),
        }


def max_tokens(task: str, max_length: int | None) -> int:
    """Return `max_length`, or the default text length of the task's kind."""
    return max_length or default_length(find(task).kind)


@dataclass(frozen=True)
class PaperGrid:
    """The values that the experiments try.

    `rates` and `epochs` are for adapters, `base_rates` and `base_epochs` for full and top-layer fine-tuning.
    """

    seeds: int
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    epochs: tuple[int, ...]
    base_rates: tuple[float, ...]
    base_epochs: tuple[int, ...]
    layers: tuple[int, ...]  # numbers of top layers in variable fine-tuning
    fixed_size: int = 64  # the adapter size where sizes are not searched
    curve_sizes: tuple[int, ...] = tuple(2**n for n in range(10))  # for single-task curves
    stds: tuple[float, ...] = tuple(10.0**n for n in range(-7, 1))
    fixed_recipe: tuple[float, int] = (3e-4, 20)  # rate and epochs of initialisation and ablation, which search nothing
    rate_factors: tuple[float, ...] = (1.0,)  # multiply the learning rate of each method's own recipe
    method_epochs: int | None = None  # None: each method's own recipe
    candidates: int = 15  # in the search without a transformer


_THREE = (3e-5, 3e-4, 3e-3)
_FOUR = (1e-5, 3e-5, 1e-4, 3e-3)
PAPER = {
    # The paper gives a grid for adapters only; full fine-tuning uses the grid of Devlin et al. 2019.
    "glue": PaperGrid(
        5, (8, 64, 256), _THREE, (3, 20), (2e-5, 3e-5, 5e-5), (3,), (1, 2, 3, 5, 7, 9, 11, 12), rate_factors=(0.3, 1, 3)
    ),
    "extra": PaperGrid(
        3, (2, 4, 8, 16, 32, 64), _FOUR, (20, 50, 100), _FOUR, (20, 50, 100), (1, 2, 3, 5, 7, 9, 11, 12),
        rate_factors=(0.3, 1, 3), candidates=100,
    ),
    "squad": PaperGrid(
        3, (2, 4, 8, 16, 32, 64), (3e-5, 1e-4, 3e-4, 1e-3), (3, 10, 20), (3e-5, 5e-5, 1e-4), (2, 3, 5), ()
    ),
}  # fmt: skip
# One learning rate each: the best on four GLUE tasks with MPNet-base. Higher rates often collapse to the majority
# class, because the authors' optimizer has no bias correction.
SMALL = PaperGrid(
    2, (8, 64), (3e-4,), (10,), (2e-5,), (3,), (1, 3, 6), curve_sizes=(1, 4, 16, 64, 256), fixed_recipe=(3e-4, 10)
)
TINY = PaperGrid(
    1, (2, 4), (3e-3,), (1,), (1e-3,), (1,), (1, 2), fixed_size=4, curve_sizes=(1, 2, 4), stds=(1e-7, 1e-2, 1.0),
    fixed_recipe=(3e-3, 1), method_epochs=1, candidates=3,
)  # fmt: skip
SUITES = tuple(PAPER)
GRIDS = {
    "paper": PAPER,
    "small": {
        "glue": SMALL,
        "extra": replace(SMALL, base_epochs=(10,)),  # these tasks have a few thousand rows
        "squad": replace(SMALL, sizes=(2, 8, 64)),
    },
    "tiny": dict.fromkeys(SUITES, TINY),
}
_MUST_MATCH = ("grid", "limit", "pooling", "bias_correction")  # two configurations that differ here are not merged


@dataclass(frozen=True)
class ExperimentConfig:
    """The options of one experiment, as given on the command line."""

    tasks: tuple[str, ...]
    grid: str = "small"
    seeds: int | None = None  # None: the number in the grid
    limit: int | None = None  # training rows; a limited task is never reported as the official task
    samples: bool = False  # use the sample of a task that is not complete
    pooling: Pooling = "mean"
    max_length: int | None = None  # None: the default of the task's kind
    bias_correction: bool | None = None  # of AdamW's moment estimates; None: off, or each method's own recipe
    task_seeds: Mapping[str, int] = field(default_factory=dict)  # tasks whose number of seeds differs from `seeds`

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:
            raise IntarsiaError(f"unknown grid {self.grid!r}: expected {', '.join(GRIDS)}.")
        if self.pooling not in get_args(Pooling):
            raise IntarsiaError(f"unknown pooling {self.pooling!r}: expected {', '.join(get_args(Pooling))}.")
        if self.max_length is not None and self.max_length < FEWEST:
            raise IntarsiaError(
                f"--max-length {self.max_length} leaves no word, because the two special tokens of a text count too. "
                f"Expected at least {FEWEST}."
            )
        if self.seeds is not None and self.seeds < 1:
            raise IntarsiaError(f"--seeds {self.seeds} leaves nothing to train. Expected at least 1.")

    def extends(self, earlier: ExperimentConfig) -> bool:
        """Return whether this configuration only adds tasks, seeds or samples to an earlier one."""
        return all(getattr(self, name) == getattr(earlier, name) for name in _MUST_MATCH) and all(
            max_tokens(task, self.max_length) == max_tokens(task, earlier.max_length) for task in self.tasks
        )

    def merged(self, earlier: ExperimentConfig) -> ExperimentConfig:
        """Return the union with an earlier configuration, or `self` where the two cannot be merged.

        The union has the tasks and samples of both, and for each task the larger number of seeds.
        """
        if not self.extends(earlier):
            return self
        tasks = tuple(dict.fromkeys((*earlier.tasks, *self.tasks)))
        seeds_of = {t: max(len(c.seed_range(t)) for c in (self, earlier) if t in c.tasks) for t in tasks}
        others = {
            task: seeds for task, seeds in seeds_of.items() if seeds != (self.seeds or self.task_grid(task).seeds)
        }
        return replace(self, tasks=tasks, task_seeds=others, samples=self.samples or earlier.samples)

    def task_grid(self, task: str) -> PaperGrid:
        """Return the grid of the suite that the task belongs to."""
        return GRIDS[self.grid][task.partition("/")[0]]

    def seed_range(self, task: str) -> range:
        return range(self.task_seeds.get(task) or self.seeds or self.task_grid(task).seeds)


@dataclass(frozen=True)
class RunGrid:
    """The runs of one group on one task: the product of methods, learning rates, epochs and seeds."""

    task: str
    group: str
    methods: Sequence[Method]
    rates: Sequence[float | None]
    epochs: Sequence[int | None]
    options: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, config: ExperimentConfig) -> list[PlannedRun]:
        options = {"bias_correction": bool(config.bias_correction), **self.options}
        return [
            PlannedRun(self.task, self.group, method, seed, rate, epochs, **options)
            for method, rate, epochs, seed in itertools.product(
                self.methods, self.rates, self.epochs, config.seed_range(self.task)
            )
        ]


def full(task: str, config: ExperimentConfig) -> list[PlannedRun]:
    """Return the runs of full fine-tuning."""
    grid = config.task_grid(task)
    return RunGrid(task, "full", [Full()], grid.base_rates, grid.base_epochs, _extra_scores(task)).runs(config)


def variable(task: str, config: ExperimentConfig, depth: int, *, every: bool = False) -> list[PlannedRun]:
    """Return the runs of the top n layers. `depth` is the encoder's number of layers. `every` plans all n, not the
    values of the grid only."""
    grid = config.task_grid(task)
    numbers = range(1, depth + 1) if every else sorted({n for n in grid.layers if n <= depth} or {depth})
    methods = [TopLayers(number=n) for n in numbers]
    return RunGrid(task, "variable", methods, grid.base_rates, grid.base_epochs, _extra_scores(task)).runs(config)


def adapters(task: str, config: ExperimentConfig, sizes: Iterable[int] | None = None) -> list[PlannedRun]:
    """Return the runs of adapters of the given sizes, or of all sizes in the grid."""
    grid = config.task_grid(task)
    methods = [Bottleneck(size) for size in sizes or sorted({*grid.sizes, grid.fixed_size})]
    return RunGrid(task, "adapters", methods, grid.rates, grid.epochs, _extra_scores(task)).runs(config)


def layernorm(task: str, config: ExperimentConfig) -> list[PlannedRun]:
    """Return the runs that train only LayerNorms."""
    grid = config.task_grid(task)
    rates = sorted({*grid.rates, 3e-3})  # these few parameters need a higher rate
    return RunGrid(task, "layernorm", [LayerNorms()], rates, grid.epochs, _extra_scores(task)).runs(config)


def _extra_scores(task: str) -> dict[str, Any]:
    """Return the option for further scores of a run: MNLI's mismatched dev part, and SQuAD's exact match."""
    if task.startswith("squad/"):
        return {"extras": ("exact-match",)}
    return {"extras": ("mismatched",)} if task == "glue/mnli" else {}


def identity(task: str, method: Method | Mapping[str, Any], settings: Mapping[str, Any], pooling: str) -> str:
    """Return a key that is equal for a planned run and its stored record.

    The key stays equal when a later version adds options to a method.
    """
    known = method if isinstance(method, Method) else from_dict(dict(method))
    kept = [settings[k] for k in ("learning_rate", "epochs", "batch_size", "seed", "metric", "max_length")]
    if settings.get("bias_correction"):
        kept.append("bias_correction")
    return json.dumps([task, to_dict(known), kept, pooling], sort_keys=True)
