"""Masked words: what is hidden, the rows, the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.slots import start
from intarsia.tasks.examples import Example
from intarsia.tasks.masking import Vocabulary, hide, row_generator, step_generator
from intarsia.tasks.word_head import WordHead
from intarsia.tasks.words import PREDICTION, Words
from tests.support.families import FAMILY_NAMES, WORDS, config, plain_model, tiny_tokenizer, tiny_with_words
from tests.support.token_tasks import topics


def examples(texts: list[str]) -> list[Example]:
    return [Example(text) for text in texts]


def test_a_share_of_the_tokens_is_hidden_as_bert_has_it() -> None:
    vocabulary = Vocabulary.of(tiny_with_words())
    segment = Segment([2, *[4 + i % 40 for i in range(200)], 3])
    among = vocabulary.may_hide(segment)
    assert among.tolist() == list(range(1, 201))
    fates = np.zeros(3)
    places = np.zeros(202)
    for step in range(400):
        hidden = hide(segment, among, vocabulary, step_generator(0, step))
        assert hidden.asked is not None and len(hidden.asked) == 30  # 15 % of 200
        which, true = hidden.asked.T
        now, before = np.array(hidden.ids), np.array(segment.ids)
        assert (before[which] == true).all() and (np.delete(now, which) == np.delete(before, which)).all()
        places[which] += 1
        masked, kept = now[which] == vocabulary.mask, now[which] == true
        fates += masked.sum(), (~masked & ~kept).sum(), kept.sum()
        assert np.isin(now[which][~masked], vocabulary.words).all()
    assert places[0] == places[201] == 0 and abs(places[1:201] / 400 - 0.15).max() < 0.09
    assert fates / fates.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_short_rows_have_one_and_special_tokens_none() -> None:
    vocabulary = Vocabulary.of(tiny_with_words())
    assert WORDS.index("[UNK]") in vocabulary.special and vocabulary.mask in vocabulary.special
    assert not np.isin(vocabulary.words, vocabulary.special).any() and len(vocabulary.words) == len(WORDS) - 4
    hidden = hide(Segment([2, 9, 3]), np.array([1]), vocabulary, step_generator(0, 0))
    assert hidden.asked is not None and hidden.asked.tolist() == [[1, 9]]


def test_draws_are_functions_of_seed_and_step_or_of_the_text() -> None:
    vocabulary = Vocabulary.of(tiny_with_words())
    segment = Segment([2, *range(4, 40), 3])
    among = vocabulary.may_hide(segment)

    def ids(random: np.random.Generator) -> Any:
        return hide(segment, among, vocabulary, random).ids

    assert (
        ids(step_generator(1, 2)) == ids(step_generator(1, 2)) != ids(step_generator(2, 1)) != ids(step_generator(1, 3))
    )
    assert ids(row_generator(segment)) == ids(row_generator(Segment(np.array(segment.ids))))
    encoder = tiny_with_words()
    texts = topics(20)
    alone = [Words("words").inputs(examples([text]), encoder, 24).segments[0].ids for text in texts]
    beside = [s.ids for s in Words("words").inputs(examples(texts[::-1]), encoder, 24).segments]
    assert alone == beside[::-1]  # whatever the rows beside it


def test_long_texts_are_consecutive_rows_of_their_own() -> None:
    encoder = tiny_with_words()
    texts = [" ".join(topics(6, 3)), "red", "", "unheard of"]
    inputs = Words("words").inputs(examples(texts), encoder, 10, training=True)
    plain = encoder.tokenizer(texts[0])["input_ids"][1:-1]
    rows = [list(s.ids) for s, owner in zip(inputs.segments, inputs.owners, strict=True) if owner == 0]
    assert [i for row in rows for i in row[1:-1]] == plain and all(len(row) == 10 for row in rows[:-1])
    assert inputs.owners[-1] == 1 and len(inputs.owners) == len(rows) + 1  # of the others no word is known


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_head_starts_as_the_checkpoints_and_computes_the_same(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config(family, initializer_range=0.3)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn_like(p))
    model.save_pretrained(tmp_path)
    tiny_tokenizer(0 if config(family).pad_token_id == 0 else 1).save_pretrained(tmp_path)
    encoder = Encoder.load(tmp_path)
    head = WordHead()
    specs = head.tensors(encoder.shape)
    assert sum(spec.size for spec in specs.values()) == head.count(encoder.shape)
    e = 16 if family in ("electra", "albert") else 32
    assert head.count(encoder.shape) == e * 32 + 3 * e + 120
    found = head.starts(encoder)
    tensors = start(specs, encoder, 0) | found
    assert {"dense.weight", "norm.weight", "output.bias"} <= found.keys() <= specs.keys()
    segment = Segment([5, 9, 30, 7, 44, 6])
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([segment.ids])).logits[0]
        states = encoder.forward(pack([segment]))
        logits = head.logits(tensors, states, encoder)
    assert float((logits - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    changed = {encoder.shape.words.name: 2 * encoder.weights[encoder.shape.words.name]}
    bias = tensors["output.bias"]
    doubled = head.logits(tensors, states, encoder, weights=changed)  # tied also to a task's own embeddings
    torch.testing.assert_close(doubled - bias, 2 * (logits - bias))


def test_without_a_head_in_the_checkpoint_it_starts_as_the_identity(tmp_path: Path) -> None:
    plain_model("bert").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    for encoder in (Encoder.load(tmp_path), tiny_with_words()):
        assert WordHead().starts(encoder) == {}
        assert torch.equal(start(WordHead().tensors(encoder.shape), encoder, 0)["dense.weight"], torch.eye(32))


def test_what_is_said_and_measured() -> None:
    segments = [Segment([2, 5, 6, 3], None, np.array([[1, 5], [2, 7]])), Segment([2, 9, 3], None, np.array([[1, 9]]))]
    task_kind = Words("words")
    states = torch.arange(7.0)[:, None]
    assert task_kind.read(states, segments)[:, 0].tolist() == [1, 2, 5]
    logits = torch.zeros(3, 10)
    logits[0, 5] = logits[1, 4] = 3.0
    first, second = task_kind.predictions(logits, segments)
    assert first.dtype == PREDICTION and first["right"].tolist() == [True, False] and first["words"][0, 0] == 5
    z = np.exp(3.0) + 9
    assert first["log_probability"] == pytest.approx([3 - np.log(z), -np.log(z)])
    assert first["probabilities"][0, 0] == pytest.approx(np.exp(3.0) / z)
    assert second["log_probability"] == pytest.approx([-np.log(10)])
    inputs = Words("words").inputs(examples(["red", "apple"]), tiny_with_words(), 8)
    mean = (3 - 2 * np.log(z) - np.log(10)) / 3
    value = task_kind.measure("likelihood", examples(["red", "apple"]), inputs, [first, second], 0).value
    assert value == pytest.approx(np.exp(mean))
    assert float(task_kind.loss(logits, torch.empty(2, 0), segments)) == pytest.approx(-mean)
