"""Inlays without a head: they give vectors and no answers, and every other call says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia import Pfeiffer
from intarsia.bank.bank import Bank
from intarsia.bank.inlay_of import headless_inlay
from intarsia.encoder.encoder import Encoder
from intarsia.errors import DamagedInlay, IntarsiaError, Refused
from intarsia.lab.model_card import card
from intarsia.lab.task_report import gather, page
from tests.support.families import opinions, tiny_with_words
from tests.support.inlays import make_inlay

TEXTS = ["good film", "an awful day"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture
def bank(encoder: Encoder, tmp_path: Path) -> Bank:
    bank = intarsia.open(tmp_path / "bank", encoder)
    method = Pfeiffer(4)
    random = torch.Generator().manual_seed(3)
    tensors = {k: torch.randn(spec.shape, generator=random) for k, spec in method.stored(encoder.shape).items()}
    bank.store.add(headless_inlay("medical", method, tensors, encoder, data={"source": "a test"}), encoder=encoder)
    return bank


def test_it_gives_vectors_and_says_what_is_missing(bank: Bank) -> None:
    (entry,) = bank.tasks()
    assert (entry.header.kind, entry.header.head, entry.header.labels) == (
        "none",
        {"outputs": 0, "pooling": "mean"},
        (),
    )
    vectors = bank.embed(TEXTS, "medical")
    assert vectors.shape == (2, bank.encoder.shape.width) and not np.allclose(vectors, bank.embed(TEXTS))
    refused = [
        lambda: bank.predict("medical", TEXTS),
        lambda: bank.predict([("medical", TEXTS[0])]),
        lambda: bank.predict_proba("medical", TEXTS),
        lambda: bank.evaluate("medical", opinions(8)),
    ]
    for call in refused:
        with pytest.raises(IntarsiaError, match=r"'medical' has no head.*Stack\('medical', Pfeiffer\(48\)\)"):
            call()


def test_it_stands_beside_tasks_with_a_head(bank: Bank, encoder: Encoder) -> None:
    import pandas as pd

    bank.learn("opinion", opinions(), Pfeiffer(4), epochs=1)
    frame = bank.predict_frame(pd.DataFrame({"text": TEXTS}))
    assert [column for column in frame if column.startswith(("medical", "opinion"))] == [
        "opinion_label", "opinion_probability",
    ]  # fmt: skip
    assert bank.verify() == []
    assert len(bank.tasks()) == 2 and bank.cost().head > 0
    assert "bank.embed" in card(bank.show("medical"), None)
    assert "without a head" in page(gather(bank, "medical"))
    assert bank.restore("medical", 1).version == 2
    with pytest.raises(IntarsiaError, match="cannot be exported"):
        bank.export("medical", bank.store.folder / "out")
    json.dumps(bank.show("medical").header.method)


def test_files_that_contradict_themselves_are_refused(bank: Bank) -> None:
    for changes, problem in (
        ({"kind": "none"}, "has no labels"),
        ({"kind": "none", "labels": ()}, "has no head, but it has 'head.output"),
        ({"kind": "none", "labels": (), "head": {"pooling": "none"}}, "pooling none"),
    ):
        with pytest.raises(DamagedInlay, match=problem):
            make_inlay(**changes).check()
    with pytest.raises(Refused):
        bank.store.add(make_inlay("foreign"))
