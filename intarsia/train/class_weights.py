"""Weights of the labels in the loss, for data in which some labels are rare.

For one label of n, each row's loss counts with the weight of its label. `balanced` gives each label the same weight in
sum. The weights are scaled so that the training rows weigh 1 in the mean: the learning rate keeps its meaning.

For several labels of n, the loss of a label that applies counts with its weight; `balanced` is the number of rows
without the label for each row with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia.errors import IntarsiaError, did_you_mean
from intarsia.tasks.examples import TaskData


def weights_of(given: str | Mapping[str, float] | None, data: TaskData) -> Tensor | None:
    """The weight of each label [k], or None. `given`: "balanced", or weights by label; labels without one have 1."""
    if given is None:
        return None
    if data.kind not in ("label", "labels"):
        raise IntarsiaError(f"class_weights are for the kinds label and labels, not for {data.kind}.")
    counts: Counter[str] = Counter()
    for example in data.train:
        counts.update((example.label,) if isinstance(example.label, str) else example.label)  # type: ignore[arg-type]
    rows = len(data.train)
    if isinstance(given, str):
        several = data.kind == "labels"
        weights = [
            max(1, rows - counts[name]) / counts[name] if several else rows / (len(data.labels) * counts[name])
            for name in data.labels
        ]
        return torch.tensor(weights)
    unknown = [name for name in given if name not in data.labels]
    if unknown:
        raise IntarsiaError(
            f"class_weights: no label {unknown[0]!r}.{did_you_mean(unknown[0], data.labels)} "
            f"Known labels: {', '.join(data.labels)}."
        )
    found = torch.tensor([float(given.get(name, 1.0)) for name in data.labels])
    if data.kind == "labels":
        return found
    mean = sum(float(w) * counts[name] for name, w in zip(data.labels, found, strict=True)) / rows
    return found / mean
