"""What a task asks for: one label of n, several labels of n, or a score; its targets, its loss, its task_kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import Segment
from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import Example, Kind
from intarsia.tasks.heads import Head, Pooling
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.metrics import Interval, bootstrap

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


@dataclass(frozen=True)
class TaskKind:
    """How a task's outputs are to be read. Scores are learned in standard units: `mean` and `spread` undo that.

    This class is for tasks whose head reads one vector a row. Kinds whose head reads every token are subclasses, with
    inputs, targets, loss and answers of their own. Training and serving ask the same of any kind: `head`, `inputs`,
    `at_step`, `row_targets`, `read`, `loss`, `predictions`, `tune`, `measure`, `asked` and `describe_all`.
    """

    max_length: ClassVar[int] = 128  # tokens of a row, unless told otherwise
    reported: ClassVar[tuple[str, ...]] = ()  # metrics of the test part, beside the one that was asked for
    reads_tokens: ClassVar[bool] = False  # the head's outputs: one for each token, not for each row
    draws: ClassVar[bool] = False  # training rows differ from step to step

    kind: Kind
    labels: tuple[str, ...] = ()
    mean: float = 0.0
    spread: float = 1.0

    @classmethod
    def learn(cls, kind: Kind, labels: tuple[str, ...], train: Sequence[Example]) -> TaskKind:
        if kind != "score":
            return cls(kind, labels)
        values = np.array([float(e.label) for e in train])  # type: ignore[arg-type]
        return cls(kind, (), float(values.mean()), float(values.std()) or 1.0)

    @property
    def outputs(self) -> int:
        return 1 if self.kind == "score" else len(self.labels)

    def head(self, pooling: Pooling) -> Head:
        if pooling == "none" and not self.reads_tokens:
            raise IntarsiaError(
                "the pooling none is for kinds that read tokens; choose mean, cls, pooler or trained-pooler."
            )
        return Head(self.outputs, "none" if self.reads_tokens else pooling)

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        """The rows of examples, cut to `max_length` tokens."""
        texts, pairs = [e.text for e in examples], [e.pair for e in examples]
        return Inputs(encoder.tokenize(texts, pairs, max_length=max_length))

    def at_step(self, inputs: Inputs, rows: Sequence[int], seed: int, step: int) -> list[Segment]:
        """The training rows of a step. What is drawn is a function of seed and step alone."""
        return [inputs.segments[row] for row in rows]

    def read(self, states: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Of what `pool` gives for these rows, what the head reads."""
        return states

    def gold(self, examples: Sequence[Example]) -> np.ndarray:
        """Labels as metrics take them: [n] ints, [n, k] bools, or [n] floats."""
        if self.kind == "score":
            return np.array([float(e.label) for e in examples])  # type: ignore[arg-type]
        place = {label: i for i, label in enumerate(self.labels)}
        if self.kind == "label":
            return np.array([place[e.label] for e in examples])  # type: ignore[index]
        gold = np.zeros((len(examples), len(self.labels)), bool)
        for row, e in enumerate(examples):
            gold[row, [place[label] for label in e.label]] = True  # type: ignore[union-attr]
        return gold

    def targets(self, examples: Sequence[Example]) -> Tensor:
        gold = self.gold(examples)
        if self.kind == "score":
            return torch.from_numpy((gold - self.mean) / self.spread).float()
        return torch.from_numpy(gold).long() if self.kind == "label" else torch.from_numpy(gold).float()

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """[rows, …] what each row asks for."""
        return self.targets(examples)

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """Mean over the rows."""
        if self.kind == "label":
            return F.cross_entropy(logits, targets)
        if self.kind == "labels":
            return F.binary_cross_entropy_with_logits(logits, targets)
        return F.mse_loss(logits[:, 0], targets)

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """[n, k] for labels; for scores the scores themselves, [n, 1]."""
        logits = logits.detach().float().cpu()
        if self.kind == "label":
            return torch.softmax(logits, -1).numpy()
        if self.kind == "labels":
            return torch.sigmoid(logits).numpy()
        return logits.numpy() * self.spread + self.mean

    def predictions(self, logits: Tensor, segments: Sequence[Segment]) -> list[np.ndarray]:
        """What is said of each row: its probabilities, or those of each of its tokens."""
        probabilities = self.probabilities(logits)
        if not self.reads_tokens:
            return list(probabilities)
        return np.split(probabilities, np.cumsum([len(segment.ids) for segment in segments])[:-1])

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        """The score of what was said of each row of the inputs."""
        predicted = self.decide(np.stack(list(predictions)))
        return bootstrap(metric, self.gold(examples), predicted, labels=self.labels, resamples=resamples)

    def tune(self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]) -> dict[str, Any]:
        """What is set by the validation part, beside the tensors."""
        return {}

    def tuned(self, found: Mapping[str, Any]) -> TaskKind:
        """With what `tune` found."""
        return self

    def always(self, examples: Sequence[Example], predictions: Sequence[np.ndarray]) -> str | None:
        """The one label that all rows get, though their true ones differ: a run that has collapsed."""
        if self.kind != "label" or len({e.label for e in examples}) < 2:
            return None
        (first, *others) = np.unique(self.decide(np.stack(list(predictions))))
        return None if others else self.labels[first]

    def decide(self, probabilities: np.ndarray) -> np.ndarray:
        """Predictions in the form of `gold`."""
        if self.kind == "label":
            return probabilities.argmax(-1)
        return probabilities >= 0.5 if self.kind == "labels" else probabilities[:, 0]

    def describe(self, row: np.ndarray) -> dict[str, Any]:
        """One answer as plain values."""
        if self.kind == "score":
            return {"score": float(row[0])}
        table = {label: float(p) for label, p in zip(self.labels, row, strict=True)}
        if self.kind == "labels":
            return {"labels": [label for label, p in table.items() if p >= 0.5], "probabilities": table}
        best = int(row.argmax())
        return {"label": self.labels[best], "probability": float(row[best]), "probabilities": table}

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """An answer for each example, as plain values."""
        return [self.describe(row) for row in predictions]

    def asked(self, text: Any, task: str, pairs: bool) -> Example:
        """What was asked of a task, as an example without a label."""
        if isinstance(text, str):
            if pairs:
                raise IntarsiaError(f"the task {task!r} is over text pairs: give (text, other text).")
            return Example(text)
        if not pairs:
            raise IntarsiaError(f"the task {task!r} is over single texts, but a pair was given.")
        return Example(text[0], text[1])

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "spread": self.spread} if self.kind == "score" else {}
