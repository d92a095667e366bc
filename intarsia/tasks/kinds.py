"""What a task asks for: one label of n, several labels of n, or a score; its targets, its loss, its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.tasks.examples import Example, Kind


@dataclass(frozen=True)
class Answers:
    """How a task's outputs are to be read. Scores are learned in standard units: `mean` and `spread` undo that."""

    kind: Kind
    labels: tuple[str, ...] = ()
    mean: float = 0.0
    spread: float = 1.0

    @classmethod
    def learn(cls, kind: Kind, labels: tuple[str, ...], train: Sequence[Example]) -> Answers:
        if kind != "score":
            return cls(kind, labels)
        values = np.array([float(e.label) for e in train])  # type: ignore[arg-type]
        return cls(kind, (), float(values.mean()), float(values.std()) or 1.0)

    @property
    def outputs(self) -> int:
        return 1 if self.kind == "score" else len(self.labels)

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

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
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

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "spread": self.spread} if self.kind == "score" else {}
