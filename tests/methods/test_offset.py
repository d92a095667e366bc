"""A prefix whose text begins at a later position."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia import Prefix
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.routed import Group
from intarsia.errors import EncoderError, IntarsiaError
from tests.support.families import opinions, save_tiny, tiny


def test_it_trains_and_serves_beside_others(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", save_tiny(tmp_path / "base"))
    rows = opinions(60)
    settings = {"epochs": 20, "batch_size": 8, "max_length": 20}
    entry = bank.learn("moved", rows, Prefix(4, offset=5), **settings)  # type: ignore[arg-type]
    assert entry.header.method["offset"] == 5
    assert entry.header.parameters["method"] == 2 * 4 * 32 * 3
    bank.learn("plain", rows, Prefix(4), **settings)  # type: ignore[arg-type]
    texts = [row["text"] for row in rows[:6]]
    alone = [answer.probability for answer in bank.predict("moved", texts)]
    mixed = bank.predict([(name, text) for text in texts for name in ("plain", "moved")])[1::2]
    assert [answer.probability for answer in mixed] == alone


def test_a_text_that_needs_more_positions_is_refused(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", save_tiny(tmp_path / "base"))
    with pytest.raises(IntarsiaError, match="max_length=36 or less"):
        bank.learn("moved", opinions(30), Prefix(2, offset=4), max_length=37)
    with pytest.raises(IntarsiaError, match="40 positions"):
        bank.learn("moved", opinions(30), Prefix(2, offset=40), max_length=20)
    encoder, method = tiny(), Prefix(2, offset=4)
    slots = {name: torch.zeros(1, *spec.shape) for name, spec in method.tensors(encoder.shape).items()}
    batch = pack([Segment([5] * 37)])
    with pytest.raises(EncoderError, match="Cut texts at 36 tokens"):
        encoder.forward(batch, [Group(method, method.places(encoder.shape), slots, 0, (0,), (1,))])


def test_a_composition_cannot_move_the_text() -> None:
    with pytest.raises(IntarsiaError, match="moves the positions"):
        intarsia.Stack(Prefix(2, offset=4), intarsia.Pfeiffer(4))
