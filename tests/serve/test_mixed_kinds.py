"""Rows of tasks that read tokens, in one pass with rows of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import intarsia
from intarsia import Settings
from intarsia.bank.bank import Bank
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck, Full, LoRA
from intarsia.serve.ask import Ask
from tests.support.families import opinions, tiny_with_words
from tests.support.token_tasks import colours, riddles, topics


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    bank = intarsia.open(tmp_path_factory.mktemp("bank"), tiny_with_words())
    quick = Settings(epochs=8, learning_rate=1e-2, batch_size=16, max_length=24)
    bank.learn("colours", colours(200), Bottleneck(8), settings=quick)
    bank.learn("again", colours(60, 1), LoRA(4), settings=quick)
    bank.learn("opinion", opinions(40), Bottleneck(8), settings=quick)
    bank.learn("riddle", riddles(200), Bottleneck(8), settings=quick)
    words = Settings(epochs=5, learning_rate=1e-2, batch_size=8, max_length=8)
    bank.learn("words", topics(100), Bottleneck(8), settings=words, kind="words")
    bank.learn("tuned", topics(100), Full(), settings=words, kind="words")
    return bank


def test_mixed_requests_equal_separate_ones(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    long = " ".join(s.text for s in colours(8, 5))  # several rows
    requests = [(task, text) for text in ("a red apple", "good", long) for task in ("colours", "opinion", "again")]
    passes: list[int] = []
    predictor = bank.engine.predictor
    plain = predictor.start
    monkeypatch.setattr(predictor, "start", lambda asked, held: passes.append(len(asked)) or plain(asked, held))
    mixed = bank.predict(requests)
    assert len(passes) == 1 and passes[0] > len(requests)
    for (task, text), answer in zip(requests, mixed, strict=True):
        (alone,) = bank.predict(task, [text])
        assert answer.task == task and (answer.tags is None) == (task == "opinion")
        if answer.tags is None or alone.tags is None:
            assert answer == alone
            continue
        assert [w["word"] for w in answer.tags] == text.split()
        assert answer == alone


def test_questions_share_the_pass(bank: Bank) -> None:
    asked = riddles(6, 3)
    requests = [("riddle", (q.text, q.context)) for q in asked] + [("opinion", "good"), ("colours", "a red apple")]
    mixed = bank.predict(requests)
    assert mixed[-2].label is not None and mixed[-1].tags is not None
    for (_, text), answer in zip(requests[:6], mixed, strict=False):
        (alone,) = bank.predict("riddle", [text])
        assert answer.answer and answer.answer == alone.answer and answer.start == alone.start
        assert text[1][answer.start :].startswith(answer.answer) and answer.no_answer_score is None
        assert answer.candidates and answer.candidates[0]["probability"] == pytest.approx(answer.probability)
    result = bank.evaluate("riddle", riddles(50, 9))
    assert result.metric == "f1" and result.interval.value > 0.7
    assert bank.evaluate("riddle", riddles(50, 9), metric="exact-match").interval.value <= result.interval.value
    with pytest.raises(IntarsiaError, match="give \\(question, context\\)"):
        bank.predict("riddle", ["good"])


def test_a_vector_of_a_long_text_is_of_its_first_row_and_leaves_the_others(bank: Bank) -> None:
    long = " ".join(s.text for s in colours(8, 5))
    vectors = bank.embed([long, "a red apple"], "colours")
    assert np.array_equal(vectors[1], bank.embed(["a red apple"], "colours")[0])
    assert np.array_equal(vectors[0], bank.embed([long], "colours")[0])
    answers = bank.engine.answer([Ask("colours", long, embed=True), Ask("colours", "good", embed=True)])
    assert [answer.truncated for answer in answers] == [True, False]


def test_a_question_that_is_cut_is_counted_or_refused(bank: Bank) -> None:
    (q,) = riddles(1, 3)
    asks = [Ask("riddle", (q.text + " good" * 40, q.context * 4)), Ask("riddle", (q.text, q.context * 4))]
    before = bank.engine.stats().truncated
    cut, whole = bank.engine.answer(asks)
    assert cut.truncated and not whole.truncated and whole.tokens > 24  # several rows each
    assert bank.engine.stats().truncated == before + 1
    refused, again = bank.engine.answer(asks, truncate=False)
    assert "the question is longer than" in str(refused.error) and again.prediction == whole.prediction


def test_words_and_texts_give_tags_and_entities(bank: Bank) -> None:
    by_words, by_text = bank.predict("colours", [["a", "red", "apple", "is", "up"], "a red apple is up"])
    assert [w["tag"] for w in by_words.tags or ()] == [w["tag"] for w in by_text.tags or ()]
    assert [w["word"] for w in by_words.tags or ()] == ["a", "red", "apple", "is", "up"]
    assert by_words.entities == [{"type": "COL", "start": 1, "end": 3, "text": "red apple"}]
    with pytest.raises(IntarsiaError, match="tags words"):
        bank.predict("colours", ["  "])


def test_the_bank_keeps_kind_tags_and_score(bank: Bank, tmp_path: Path) -> None:
    header = bank.show("colours").header
    assert (header.kind, header.labels) == ("tags", ("B-COL", "I-COL", "O"))
    assert header.head == {"outputs": 3, "pooling": "none"} and header.metrics["metric"] == "f1-entities"
    assert header.parameters["head"] == 3 * 33
    result = bank.evaluate("colours", colours(50, 9))
    assert result.metric == "f1-entities" and result.interval.value > 0.7 and result.examples == 50
    assert bank.evaluate("colours", colours(50, 9), metric="accuracy").interval.value > result.interval.value
    with pytest.raises(IntarsiaError, match="cannot be exported"):
        bank.export("again", tmp_path / "out")


def test_masks_are_filled_in_beside_other_tasks(bank: Bank) -> None:
    long = "[MASK] pear " + " ".join(topics(1, 7)) + " red [MASK] up"  # of several rows
    requests = [("words", "red [MASK] blue"), ("opinion", "good"), ("words", long), ("colours", "a red apple"),
                ("tuned", "red [MASK] blue")]  # fmt: skip
    mixed = bank.predict(requests)
    assert mixed[1].label is not None and mixed[3].tags is not None and mixed[1].masks is None
    for (task, text), answer in zip(requests, mixed, strict=True):
        if answer.masks is None:
            continue
        (alone,) = bank.predict(task, [text])
        starts = [i for i in range(len(text)) if text.startswith("[MASK]", i)]
        assert [mask["start"] for mask in answer.masks] == starts
        for mask, other in zip(answer.masks, alone.masks or (), strict=True):
            assert [w["word"] for w in mask["words"]] == [w["word"] for w in other["words"]]
            probabilities = [w["probability"] for w in mask["words"]]
            assert len(probabilities) == 5 and sorted(probabilities, reverse=True) == probabilities
            assert 0 < sum(probabilities) <= 1 + 1e-6
            assert probabilities == pytest.approx([w["probability"] for w in other["words"]], abs=1e-5)
    with pytest.raises(IntarsiaError, match=r"'red apple' has no mask to fill in.*\[MASK\]"):
        bank.predict("words", ["red [MASK]", "red apple"])
    with pytest.raises(IntarsiaError, match="fills in the masks of a text"):
        bank.predict("words", [("red", "apple")])


def test_the_bank_keeps_words_without_the_embeddings(bank: Bank, tmp_path: Path) -> None:
    entry = bank.show("words")
    header, shape = entry.header, bank.encoder.shape
    assert header.kind == "words" and header.labels == () and header.head["pooling"] == "none"
    head = {name: spec.shape for name, spec in header.layout.items() if name.startswith("head.")}
    assert head == {
        "head.dense.weight": (32, 32), "head.dense.bias": (32,), "head.norm.weight": (32,), "head.norm.bias": (32,),
        "head.output.bias": (120,),
    }  # fmt: skip
    assert header.parameters["head"] == 32 * 32 + 3 * 32 + 120
    assert header.parameters["total"] == header.parameters["head"] + Bottleneck(8).count(shape)
    assert "head_start" not in header.training  # this base has no such head
    test = header.metrics["test"]
    assert header.metrics["metric"] == "likelihood" and test["low"] <= test["value"] <= test["high"]
    assert test["perplexity"] == pytest.approx(1 / test["value"])
    assert test["value"] > 0.02  # 1/120 untrained
    likelihood = bank.evaluate("words", topics(40, 9)).interval
    perplexity = bank.evaluate("words", topics(40, 9), metric="perplexity").interval
    assert perplexity.value == pytest.approx(1 / likelihood.value)
    assert perplexity.low < perplexity.value < perplexity.high and perplexity.high == pytest.approx(1 / likelihood.low)
    assert 0 < bank.evaluate("words", topics(40, 9), metric="accuracy").interval.value < 1
    with pytest.raises(IntarsiaError, match="cannot be exported"):
        bank.export("tuned", tmp_path / "out")
