"""Class weights: rare labels count more, in eager passes as in recorded ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck
from intarsia.tasks import TaskData, load_data
from intarsia.train.class_weights import weights_of
from intarsia.train.head_losses import HeadLosses
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train
from intarsia.train.run import Run
from tests.support.families import opinions, tiny_with_words


def unbalanced(rows: int = 40, several: bool = False) -> TaskData:
    content: list[dict[str, Any]] = [dict(row) for row in opinions(rows, seed=2)]
    for i, row in enumerate(content):
        name = "rare" if i % 5 == 0 else "usual"
        row["label"] = [name, "both"][: 1 + i % 2] if several else name
    return load_data(content)


def run_of(data: TaskData, weights: Any) -> Run:
    settings = Settings(batch_size=8, epochs=1, class_weights=weights, dropout=False)
    return Run(Job("x", data, Bottleneck(4), settings=settings), tiny_with_words())


def test_balanced_gives_each_label_the_same_sum() -> None:
    data = unbalanced()
    weights = weights_of("balanced", data)
    assert weights is not None
    rare = sum(e.label == "rare" for e in data.train)
    usual = len(data.train) - rare
    assert weights.tolist() == pytest.approx([len(data.train) / (2 * rare), len(data.train) / (2 * usual)])
    assert float(weights[0]) * rare == pytest.approx(float(weights[1]) * usual)
    several = weights_of("balanced", unbalanced(several=True))
    assert several is not None and float(several[1]) == pytest.approx(usual / rare), "both, rare, usual"


def test_a_mapping_is_scaled_to_a_mean_of_one() -> None:
    data = unbalanced()
    weights = weights_of({"rare": 8.0}, data)
    assert weights is not None and float(weights[0] / weights[1]) == pytest.approx(8.0)
    mean = np.mean([float(weights[data.labels.index(str(e.label))]) for e in data.train])
    assert mean == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"none": 1.0}, "no label 'none'"),
        ({"rare": 0.0}, "more than 0"),
        ("equal", "Expected 'balanced'"),
        ({"rare": "5"}, "the weight of 'rare' is '5'"),
        ({"rare": None}, "is None"),
        ([1, 2], "a mapping from labels"),
        ({"raer": 2}, "Did you mean 'rare'"),
        ("balancd", "Did you mean 'balanced'"),
        (3, "found a int"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(IntarsiaError, match=message):
        run_of(unbalanced(), weights)


def test_scores_have_no_class_weights() -> None:
    rows = [{**row, "label": i / 7} for i, row in enumerate(opinions(40))]
    with pytest.raises(IntarsiaError, match="not for score"):
        run_of(load_data(rows), "balanced")


def test_an_eager_loss_is_that_of_torch() -> None:
    run, rows = run_of(unbalanced(), "balanced"), [0, 1, 2, 3, 4, 5]
    logits = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert run.class_weights is not None
    losses = F.cross_entropy(logits, run.targets[rows], weight=run.class_weights, reduction="none")
    assert torch.allclose(run.loss(logits, rows, []), losses.mean())
    several = run_of(unbalanced(several=True), "balanced")
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    expected = F.binary_cross_entropy_with_logits(logits, several.targets[rows], pos_weight=several.class_weights)
    assert torch.allclose(several.loss(logits, rows, []), expected)


@pytest.mark.parametrize("weights", [None, "balanced"])
@pytest.mark.parametrize("several", [False, True])
def test_the_losses_of_recorded_passes_are_the_eager_ones(weights: str | None, several: bool) -> None:
    """The tables and losses of recorded passes, on a CPU and without a recording."""
    run, rows = run_of(unbalanced(several=several), weights), np.array([0, 3, 5, 6])
    slots = SimpleNamespace(slots=SimpleNamespace(capacity=2))
    heads = HeadLosses(cast(Any, slots), run.encoder, "mean", slot_rows=6, outputs=8)
    assert run.slot == 0
    heads.fill([(run, rows)])
    logits = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))
    present = torch.zeros(2, 6, dtype=torch.bool)
    present[0, :4] = True
    outputs = run.task_kind.outputs
    found = heads._losses(logits, present)
    assert float(found[0]) == pytest.approx(float(run.loss(logits[0, :4, :outputs], rows.tolist(), [])), rel=1e-6)
    assert float(found[1]) == 0.0


def test_rare_labels_are_found_more_often() -> None:
    def predicted(weights: Any) -> int:
        data = unbalanced(120)
        settings = Settings(batch_size=16, epochs=2, learning_rate=2e-3, class_weights=weights)
        trained = train(Job("x", data, Bottleneck(4), settings=settings), tiny_with_words())
        bias = trained.tensors["head.output.bias"]
        return int(1000 * float(bias[0] - bias[1]))

    assert predicted("balanced") > predicted(None)


def test_settings_that_are_not_given_leave_the_key_as_it_was() -> None:
    data = unbalanced()
    plain = Job("x", data, Bottleneck(4)).describe()
    assert not {"class_weights", "calibrate", "threshold"} & set(plain)
    assert Job("x", data, Bottleneck(4), settings=Settings(calibrate=False)).describe()["calibrate"] is False
