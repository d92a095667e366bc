"""Probabilities of many tasks at once have the bits of each task's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.serve.answering import probabilities_of_tasks
from intarsia.tasks.task_kind import TaskKind


@pytest.mark.parametrize("kind", ["label", "labels", "score"])
@pytest.mark.parametrize("outputs", [1, 2, 3, 7, 8, 9, 17, 32, 150])
def test_tasks_together_have_the_bits_of_each_row_alone(kind: str, outputs: int) -> None:
    draw = np.random.default_rng(outputs)
    names = () if kind == "score" else tuple(map(str, range(outputs)))
    tasks = [
        TaskKind(kind, names, mean=draw.normal(), spread=draw.random(), temperature=draw.random() + 0.1)  # type: ignore[arg-type]
        for _ in range(12)
    ]
    rows = draw.integers(1, 9, len(tasks)).tolist()
    logits = (draw.normal(size=(sum(rows), outputs)) * 5).astype(np.float32)
    together = probabilities_of_tasks(tasks, rows, logits)
    alone = [
        task.probabilities(torch.from_numpy(row[None]))
        for task, own in zip(tasks, np.split(logits, np.cumsum(rows)[:-1]), strict=True)
        for row in own
    ]
    assert together.dtype == np.float32 and together.tobytes() == np.concatenate(alone).tobytes()


def test_a_temperature_divides_as_torch_divides() -> None:
    logits = torch.randn(4096, 3, generator=torch.Generator().manual_seed(0))
    for temperature in (0.3, 1.0, 1.7, 20.0):
        plain = TaskKind("label", ("a", "b", "c")).probabilities(logits / temperature)
        found = TaskKind("label", ("a", "b", "c"), temperature=temperature).probabilities(logits)
        assert found.tobytes() == plain.tobytes()
