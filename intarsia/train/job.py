"""One training run: data, method, hyper-parameters, seed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.methods import Method, to_dict
from intarsia.tasks.examples import TaskData
from intarsia.tasks.heads import Pooling
from intarsia.tasks.kind_registry import FEWEST, default_length
from intarsia.train.optimizer import AdamSettings

FEWEST_STEPS = 200  # of a recipe's epochs: with fewer, on a few hundred texts, little is learned


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults are the recipe of Houlsby's adapters."""

    learning_rate: float = 5e-4
    epochs: int = 10
    batch_size: int = 32
    max_length: int = 128
    warmup: float = 0.1  # share of the steps
    adam: AdamSettings = field(default_factory=AdamSettings)
    patience: int | None = None  # stop after so many epochs without a better validation score
    dropout: bool = True  # that of the base, on in training
    trunk_dropout: bool = True  # also below the method's lowest layer; False: what is below is computed once and kept
    metric: str | None = None  # what is the best checkpoint by; None: the task kind's default
    seed: int = 0

    @classmethod
    def for_method(cls, method: Method, **given: Any) -> Settings:
        """The method's own recipe, with what is given (and is not None) in its place."""
        chosen = {**method.recipe, **{k: v for k, v in given.items() if v is not None}}
        own = {k: chosen.pop(k) for k in ("eps", "bias_correction") if k in chosen}
        if own:
            chosen["adam"] = AdamSettings(**own)
        return cls(**chosen)

    @classmethod
    def for_task(cls, method: Method, data: TaskData, **given: Any) -> Settings:
        """As `for_method`, with what is usual for a task: more epochs where the recipe's would be few steps, and texts
        as long as its kind's."""
        given["max_length"] = given.get("max_length") or default_length(data.kind)
        settings = cls.for_method(method, **given)
        if given.get("epochs") is not None:
            return settings
        steps = math.ceil(len(data.train) / settings.batch_size)
        return replace(settings, epochs=max(settings.epochs, math.ceil(FEWEST_STEPS / steps)))

    def __post_init__(self) -> None:
        for option in ("learning_rate", "epochs", "batch_size", "max_length"):
            if getattr(self, option) <= 0:
                raise IntarsiaError(f"{option} must be above 0, not {getattr(self, option)}.")
        if self.max_length < FEWEST:
            raise IntarsiaError(f"max_length {self.max_length} leaves no word: a text's two marks count too.")
        if not 0 <= self.warmup < 1:
            raise IntarsiaError(f"warmup is a share of the steps, from 0 to below 1, not {self.warmup}.")
        if self.patience is not None and self.patience < 1:
            raise IntarsiaError(f"patience must be at least 1 epoch, not {self.patience}.")


@dataclass(frozen=True)
class Job:
    name: str
    data: TaskData
    method: Method
    pooling: Pooling = "mean"
    settings: Settings = field(default_factory=Settings)

    def describe(self) -> dict[str, Any]:
        return {"method": to_dict(self.method), "pooling": self.pooling, **asdict(self.settings)}

    def key(self, encoder_fingerprint: str) -> str:
        """Equal for runs that would end with the same weights: what a checkpoint belongs to."""
        content = [self.name, encoder_fingerprint, self._data_hash(), self.data.kind, self.describe()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def _data_hash(self) -> str:
        """Of data that was read it is known; of such as a program made up it is computed."""
        from intarsia.tasks.data import content_hash

        data = self.data
        return data.source.get("sha256") or content_hash({"train": data.train, "dev": data.dev, "test": data.test})
