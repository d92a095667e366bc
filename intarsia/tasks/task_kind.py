"""Task kinds: how examples become rows, how outputs become a loss, a metric and answers.

`TaskKind` itself handles one label of n, several labels of n, and scores. The subclasses are `Tags` (tagging.py),
`Spans` (spans.py) and `Words` (words.py); `kind_registry.py` maps each kind to its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import Segment
from intarsia.errors import IntarsiaError
from intarsia.tasks.calibration import find_temperature, tempered
from intarsia.tasks.examples import Example, Kind
from intarsia.tasks.heads import Head, Hidden, Pooling
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.intervals import interval, ranking_interval
from intarsia.tasks.metrics import Interval, check_metric
from intarsia.tasks.probabilities import probabilities
from intarsia.tasks.ranking import ranks
from intarsia.tasks.thresholds import USUAL, find_thresholds

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


@dataclass(frozen=True)
class Tuning:
    """What is chosen on the dev part."""

    metric: str = ""  # that selects the best epoch
    calibrate: bool = True  # find a temperature
    threshold: float | None = None  # for all of several labels; None: find one for each


@dataclass(frozen=True)
class TaskKind:
    """What training and serving need to know about a task's inputs, loss, metric and answers.

    An *example* is one labelled item of the data. A *row* is one token segment in a batch; a long example may have
    several rows. A head that reads rows gets one vector per row. A head that reads tokens (`reads_tokens`) gets one
    vector per token. N is the number of tokens in a batch, R of rows, d the base's width, k the number of outputs;
    V is the number of vectors that the head reads: R, N, or for `Words` the number of hidden tokens.

    Training calls, in this order:

    1. `learn` makes the task kind from the training examples.
    2. `head` makes the output layer.
    3. `inputs` turns the examples of each part into rows. `training=True` marks the train part.
    4. `row_targets` gives a target for each training row, [R, …].
    5. At each step: `at_step` gives the segments of the batch. The encoder and `heads.pool` turn them into vectors
       [R, d] or [N, d]. `read` selects those that the head reads [V, d]. The head gives logits [V, k]. `loss` is a
       scalar.
    6. At each validation: `read` and the head as in 5 (without `at_step`); `predictions` gives one array per row;
       `tune` chooses the settings that depend on the dev part, `tuned` applies them, and `measure` gives the score.
       `always` detects a collapsed run.
    7. `to_dict` gives what the inlay must store. `kind_registry.stored_kind` restores the task kind from it.

    Serving calls, in this order:

    1. `head`, once for each inlay.
    2. `parse_request` turns each request into an example without a label.
    3. `inputs` turns the examples into rows.
    4. `read`, then `predictions`, for each batch.
    5. `describe_all` gives one answer per example, as plain JSON values. To evaluate a stored task, the bank calls
       `measure` in its place.

    A subclass overrides the methods that differ. `gold`, `targets`, `probabilities`, `decide` and `describe` are the
    parts that the implementations in this class are made of.
    """

    max_length: ClassVar[int] = 128  # the default limit of tokens per row
    reported: ClassVar[tuple[str, ...]] = ()  # test metrics that are reported beside the selected metric
    reads_tokens: ClassVar[bool] = False  # the head reads one vector per token, not one per row
    draws: ClassVar[bool] = False  # training rows are drawn anew at each step

    kind: Kind
    labels: tuple[str, ...] = ()
    # Scores are learned in standard units: (score - mean) / spread, both taken from the training examples.
    mean: float = 0.0
    spread: float = 1.0
    temperature: float = 1.0  # divides the logits of labels (calibration.py)
    thresholds: tuple[float, ...] = ()  # of several labels, one each (thresholds.py); empty: 0.5

    @classmethod
    def learn(cls, kind: Kind, labels: tuple[str, ...], train: Sequence[Example]) -> TaskKind:
        """The task kind for these training examples; scores take their mean and spread from them."""
        if kind != "score":
            return cls(kind, labels)
        values = np.array([float(e.label) for e in train])  # type: ignore[arg-type]
        return cls(kind, (), float(values.mean()), float(values.std()) or 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The fields that an inlay stores beside kind and labels."""
        if self.kind == "score":
            return {"mean": self.mean, "spread": self.spread}
        stored: dict[str, Any] = {} if self.temperature == 1.0 else {"temperature": self.temperature}
        return {**stored, "thresholds": list(self.thresholds)} if self.thresholds else stored

    # The head and its inputs.

    @property
    def outputs(self) -> int:
        """k, the number of outputs per row or token."""
        return 1 if self.kind == "score" else len(self.labels)

    def head(self, pooling: Pooling, hidden: Hidden | None = None) -> Head:
        """The output layer. Kinds that read tokens ignore `pooling`."""
        if pooling == "none" and not self.reads_tokens:
            raise IntarsiaError(
                "the pooling none is for kinds that read tokens; choose mean, cls, pooler or trained-pooler."
            )
        return Head(self.outputs, "none" if self.reads_tokens else pooling, hidden)

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        """The rows of the examples, at most `max_length` tokens each. Here each example is one row."""
        texts, pairs = [e.text for e in examples], [e.pair for e in examples]
        return Inputs(encoder.tokenize(texts, pairs, max_length=max_length))

    def at_step(self, inputs: Inputs, rows: Sequence[int], seed: int, step: int) -> list[Segment]:
        """The segments of the given training rows at a step. Random choices depend on seed and step only."""
        return [inputs.segments[row] for row in rows]

    def read(self, states: Tensor, segments: Sequence[Segment]) -> Tensor:
        """The vectors that the head reads, [R, d] or [N, d] → [V, d]; `states` comes from `heads.pool`."""
        return states

    # Targets and loss.

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """The target of each row, [R, …]."""
        return self.targets(examples)

    def targets(self, examples: Sequence[Example]) -> Tensor:
        """`gold` in the form that the loss takes: [n] class numbers, [n, k] zeros and ones, or [n] standard units."""
        gold = self.gold(examples)
        if self.kind == "score":
            return torch.from_numpy((gold - self.mean) / self.spread).float()
        return torch.from_numpy(gold).long() if self.kind == "label" else torch.from_numpy(gold).float()

    def gold(self, examples: Sequence[Example]) -> np.ndarray:
        """The labels in the form that metrics take: [n] ints, [n, k] bools, or [n] floats."""
        if self.kind == "score":
            return np.array([float(e.label) for e in examples])  # type: ignore[arg-type]
        number = {label: i for i, label in enumerate(self.labels)}
        if self.kind == "label":
            return np.array([number[e.label] for e in examples])  # type: ignore[index]
        gold = np.zeros((len(examples), len(self.labels)), bool)
        for row, e in enumerate(examples):
            gold[row, [number[label] for label in e.label]] = True  # type: ignore[union-attr]
        return gold

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """The mean loss over the rows: logits [R, k], targets as `row_targets` gives them → a scalar."""
        if self.kind == "label":
            return F.cross_entropy(logits, targets)
        if self.kind == "labels":
            return F.binary_cross_entropy_with_logits(logits, targets)
        return F.mse_loss(logits[:, 0], targets)

    def weighted_loss(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The mean loss over the rows, with a weight for each label [k]; for the kinds `label` and `labels`."""
        if self.kind == "label":
            losses = F.cross_entropy(logits, targets, reduction="none")
            return (losses * weights[targets]).mean()
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return (losses * torch.where(targets > 0, weights, 1.0)).mean()

    # Predictions and their score.

    def predictions(self, logits: Tensor, segments: Sequence[Segment]) -> list[np.ndarray]:
        """One array per row: its probabilities [k], or those of its tokens [tokens, k]."""
        probabilities = self.probabilities(logits)
        if not self.reads_tokens:
            return list(probabilities)
        return np.split(probabilities, np.cumsum([len(segment.ids) for segment in segments])[:-1])

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """Probabilities [V, k] of the labels; for scores the scores themselves [V, 1]."""
        values = logits.detach().float().cpu().numpy()
        return probabilities(self.kind, values, temperature=self.temperature, mean=self.mean, spread=self.spread)

    def decide(self, probabilities: np.ndarray) -> np.ndarray:
        """Predicted labels in the form of `gold`."""
        if self.kind == "label":
            return probabilities.argmax(-1)
        return probabilities >= self.limits if self.kind == "labels" else probabilities[:, 0]

    @property
    def limits(self) -> np.ndarray:
        """The probability from which each label applies, for several labels [k]."""
        return np.array(self.thresholds or [USUAL] * len(self.labels))

    def tune(
        self,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        tuning: Tuning = Tuning(),  # noqa: B008 (a frozen value)
    ) -> dict[str, Any]:
        """Settings that are chosen on the dev part: the temperature, and thresholds for several labels."""
        if self.kind not in ("label", "labels") or self.reads_tokens:
            return {}
        gold, probabilities = self.gold(examples), np.stack(list(predictions))
        found: dict[str, Any] = {}
        if tuning.calibrate:
            found["temperature"] = find_temperature(self.kind, probabilities, gold)
        if self.kind == "labels":
            if tuning.threshold is not None:
                found["thresholds"] = [tuning.threshold] * len(self.labels)
            else:
                calibrated = tempered(self.kind, probabilities, found.get("temperature", 1.0))
                found["thresholds"] = list(find_thresholds(calibrated, gold, tuning.metric))
        return found

    def tuned(self, found: Mapping[str, Any]) -> TaskKind:
        """This task kind with the settings that `tune` found."""
        chosen = {"temperature": found.get("temperature"), "thresholds": found.get("thresholds")}
        if chosen["thresholds"] is not None:
            chosen["thresholds"] = tuple(chosen["thresholds"])
        return dataclasses.replace(self, **{name: value for name, value in chosen.items() if value is not None})

    def at_threshold(self, threshold: float) -> TaskKind:
        """This task kind with one threshold for all of several labels."""
        if self.kind != "labels":
            raise IntarsiaError(f"a threshold is for tasks with several labels of n; this task's kind is {self.kind}.")
        if not 0 < threshold < 1:
            raise IntarsiaError(f"threshold is a probability and must be between 0 and 1, not {threshold}.")
        return dataclasses.replace(self, thresholds=(threshold,) * len(self.labels))

    def retempered(self, predictions: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Predictions that were made without this temperature, with it. Only thresholds depend on the difference."""
        if self.kind != "labels" or self.temperature == 1.0:
            return predictions
        return list(tempered(self.kind, np.stack(list(predictions)), self.temperature))

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        """The metric of the predictions with its interval; `predictions` has one array per row."""
        stacked, gold = np.stack(list(predictions)), self.gold(examples)
        if ranks(metric):
            check_metric(metric, self.kind, self.labels)
            one_hot = gold if self.kind == "labels" else np.eye(len(self.labels), dtype=bool)[gold]
            return ranking_interval(metric, one_hot, stacked, self.labels, resamples=resamples)
        return interval(metric, gold, self.decide(stacked), labels=self.labels, resamples=resamples)

    def always(self, examples: Sequence[Example], predictions: Sequence[np.ndarray]) -> str | None:
        """The label if all rows get the same one although their true labels differ (a collapsed run), else None."""
        if self.kind != "label" or len({e.label for e in examples}) < 2:
            return None
        (first, *others) = np.unique(self.decide(np.stack(list(predictions))))
        return None if others else self.labels[first]

    # Requests and answers.

    def parse_request(self, text: Any, task: str, pairs: bool) -> Example:
        """A request as an example without a label. `pairs`: the task is over text pairs."""
        if isinstance(text, str):
            if pairs:
                raise IntarsiaError(f"the task {task!r} is over text pairs: give (text, other text).")
            return Example(text)
        if not (isinstance(text, list | tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)):
            expected = "(text, other text)" if pairs else "a text"
            raise IntarsiaError(f"the task {task!r} expects {expected}, found {text!r:.60} ({type(text).__name__}).")
        if not pairs:
            raise IntarsiaError(f"the task {task!r} is over single texts: give a text, not {type(text).__name__}.")
        match text:
            case [str(first), str(second)]:
                return Example(first, second)
        raise IntarsiaError(f"the task {task!r} is over text pairs: give (text, other text).")

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """One answer per example, as plain JSON values."""
        return [self.describe(row) for row in predictions]

    def describe(self, row: np.ndarray) -> dict[str, Any]:
        """The answer for one row of probabilities [k]."""
        if self.kind == "score":
            return {"score": float(row[0])}
        values = row.tolist()
        table = dict(zip(self.labels, values, strict=True))
        if self.kind == "labels":
            chosen = [label for label, p, limit in zip(self.labels, row, self.limits, strict=True) if p >= limit]
            return {"labels": chosen, "probabilities": table}
        highest = max(values)
        return {"label": self.labels[values.index(highest)], "probability": highest, "probabilities": table}
