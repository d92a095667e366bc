"""A job: the data, method, hyper-parameters and seed of one training run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError, did_you_mean
from intarsia.methods import Method, to_dict
from intarsia.tasks.examples import TaskData
from intarsia.tasks.heads import Hidden, Pooling
from intarsia.tasks.kind_registry import default_length
from intarsia.tasks.learned import Learned
from intarsia.tasks.own_metric import named_metric
from intarsia.train.optimizer import AdamSettings
from intarsia.train.setting_values import checked_value

if TYPE_CHECKING:
    from torch import Tensor

CHECKED = (
    "learning_rate", "epochs", "batch_size", "max_length", "warmup", "patience", "dropout", "trunk_dropout", "seed",
    "class_weights", "calibrate", "threshold",
)  # fmt: skip
DEFAULTS = {"class_weights": None, "calibrate": True, "threshold": None}
FEWEST_STEPS = 200  # on a few hundred texts, a recipe's epochs give too few steps to learn much


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of a job. The defaults are the recipe of Houlsby's adapters."""

    learning_rate: float = 5e-4
    epochs: int = 10
    batch_size: int = 32
    max_length: int = 128
    warmup: float = 0.1  # share of the steps
    adam: AdamSettings = field(default_factory=AdamSettings)
    patience: int | None = None  # epochs without a better validation score after which training stops
    dropout: bool = True  # whether the base's dropout is on in training
    trunk_dropout: bool = (
        True  # whether it is on in the trunk too; False: the trunk's states are computed once and cached
    )
    # The metric that selects the best checkpoint; None: the task kind's default. A function becomes a name that has a
    # function (`tasks/own_metric.py`).
    metric: str | None = None
    seed: int = 0
    class_weights: str | Mapping[str, float] | None = None  # "balanced", or a weight for each label
    calibrate: bool = True  # find a temperature on the dev part
    threshold: float | None = None  # for several labels, all of them; None: find one for each on the dev part

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names that `for_method` takes: the fields, and those of Adam."""
        return *(f.name for f in fields(cls)), *(f.name for f in fields(AdamSettings))

    @classmethod
    def for_method(cls, method: Method, **given: Any) -> Settings:
        """Return the method's recipe; settings in `given` that are not None replace its values."""
        cls.check_names(given)
        chosen = {**method.recipe, **{k: v for k, v in given.items() if v is not None}}
        adam = {f.name: chosen.pop(f.name) for f in fields(AdamSettings) if f.name in chosen}
        if adam:
            chosen["adam"] = AdamSettings(**adam)
        return cls(**chosen)

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """Raise if a name is not that of a setting."""
        if unknown := [name for name in given if name not in cls.names()]:
            raise IntarsiaError(
                f"{unknown[0]!r} is not a setting.{did_you_mean(unknown[0], cls.names())} "
                f"Settings: {', '.join(cls.names())}."
            )

    def changed(self, **given: Any) -> Settings:
        """Return these settings with the values in `given`."""
        self.check_names(given)
        adam = {f.name: given.pop(f.name) for f in fields(AdamSettings) if f.name in given}
        if adam:
            given["adam"] = replace(given.get("adam", self.adam), **adam)
        return replace(self, **given)

    @classmethod
    def for_task(cls, method: Method, data: TaskData, **given: Any) -> Settings:
        """Return the settings of `for_method`, adapted to a task.

        Unless they are given, the maximum length is the default of the task's kind, and the number of epochs is high
        enough for `FEWEST_STEPS` steps.
        """
        if given.get("max_length") is None:
            given["max_length"] = default_length(data.kind)
        settings = cls.for_method(method, **given)
        if given.get("epochs") is not None:
            return settings
        steps = math.ceil(len(data.train) / settings.batch_size)
        return replace(settings, epochs=max(settings.epochs, math.ceil(FEWEST_STEPS / steps)))

    def __post_init__(self) -> None:
        for option in CHECKED:
            object.__setattr__(self, option, checked_value(option, getattr(self, option)))
        object.__setattr__(self, "metric", named_metric(self.metric))


@dataclass(frozen=True)
class Start:
    """The inlay from whose tensors a run starts. The head's are among them if the task answers the same question."""

    task: str
    version: int
    digest: str
    tensors: Mapping[str, Tensor] = field(compare=False, repr=False)  # "method.…" and "head.…"

    def describe(self) -> dict[str, Any]:
        head = any(name.startswith("head.") for name in self.tensors)
        return {"task": self.task, "version": self.version, "digest": self.digest, "head": head}


@dataclass(frozen=True)
class Job:
    """One training run, before it starts."""

    name: str
    data: TaskData
    method: Method
    pooling: Pooling = "mean"
    settings: Settings = field(default_factory=Settings)
    hidden: Hidden | None = None  # of the head, when training continues from one that has it
    start: Start | None = None  # None: from the method's own initial values
    # The frozen inlays on which the method is built, and those on which they are built, by digest (`Learned.parents`).
    parents: Mapping[str, Learned] = field(default_factory=dict, compare=False, repr=False)

    def describe(self) -> dict[str, Any]:
        """Return the method, pooling and settings as plain values (for JSON)."""
        settings = asdict(self.settings)
        for name, default in DEFAULTS.items():  # left out, so that older checkpoints and results keep their keys
            if settings[name] == default:
                del settings[name]
        hidden = {"hidden": asdict(self.hidden)} if self.hidden else {}
        start = {"start_from": self.start.describe()} if self.start else {}
        return {"method": to_dict(self.method), "pooling": self.pooling, **hidden, **settings, **start}

    def key(self, encoder_fingerprint: str) -> str:
        """Return the key of this job's checkpoints, equal for jobs that would end with the same weights."""
        content = [self.name, encoder_fingerprint, self._data_hash(), self.data.kind, self.describe()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def _data_hash(self) -> str:
        """Return the data's hash. Loaded data carries its hash; for in-memory data it is computed."""
        from intarsia.tasks.data import content_hash

        data = self.data
        return data.source.get("sha256") or content_hash({"train": data.train, "dev": data.dev, "test": data.test})
