"""Heads with a hidden layer, as other systems have them: computed, counted, stored, trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.bank.inlay_of import inlay_of
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.tasks.heads import Head, Hidden
from intarsia.train.loop import train
from tests.support.families import opinions, tiny, tiny_with_words
from tests.support.jobs import opinion_job


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler", "none"])
@pytest.mark.parametrize("hidden", [Hidden("relu"), Hidden("gelu_exact", norm=True)])
def test_the_hidden_layer_is_a_dense_layer_in_front_of_the_output(pooling: str, hidden: Hidden) -> None:
    encoder, head = tiny(), Head(3, pooling, hidden)  # type: ignore[arg-type]
    specs = head.tensors(encoder.shape)
    assert head.count(encoder.shape) == sum(spec.size for spec in specs.values())
    tensors = {name: 0.3 * torch.randn(spec.shape) for name, spec in specs.items()}
    rows = torch.randn(5, 32)
    expected = rows
    if pooling == "pooler":
        assert encoder.pooler is not None
        expected = torch.tanh(F.linear(rows, *encoder.pooler))
    expected = F.linear(expected, tensors["hidden.weight"], tensors["hidden.bias"])
    expected = F.relu(expected) if hidden.activation == "relu" else F.gelu(expected)
    if hidden.norm:
        expected = F.layer_norm(expected, (32,), tensors["norm.weight"], tensors["norm.bias"], 1e-12)
    expected = F.linear(expected, tensors["output.weight"], tensors["output.bias"])
    assert torch.allclose(head.logits(tensors, rows, encoder), expected, atol=1e-5)


def test_it_reads_what_the_method_gives() -> None:
    shape, head = tiny().shape, Head(2, "mean", Hidden())
    assert head.tensors(shape, 64)["hidden.weight"].shape == (32, 64)
    assert head.tensors(shape, 64)["output.weight"].shape == (2, 32)
    assert head.count(shape, 64) == 32 * 64 + 32 + 2 * 33


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(IntarsiaError, match="activation"):
        Hidden("sin")  # type: ignore[arg-type]


def test_it_trains_and_is_stored(tmp_path: Path) -> None:
    encoder, hidden = tiny_with_words(), Hidden("relu", norm=True)
    plain = opinion_job()
    job = replace(plain, hidden=hidden)
    assert job.key("") != plain.key("")
    trained = train(job, encoder)
    specs = {f"head.{name}": spec for name, spec in Head(2, "mean", hidden).tensors(encoder.shape).items()}
    before = start(specs, encoder, job.settings.seed)
    assert all(not torch.equal(trained.tensors[name], before[name]) for name in before)
    inlay = inlay_of(job, trained, encoder)
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.store.add(inlay)
    header = bank.show("opinion").header
    assert header.head["hidden"] == {"activation": "relu", "norm": True}
    assert header.parameters["head"] == 32 * 32 + 32 + 64 + 2 * 33
    rows = opinions(20, seed=5)
    answers = bank.predict("opinion", [row["text"] for row in rows])
    assert sum(answer.label == row["label"] for answer, row in zip(answers, rows, strict=True)) >= 15
