"""Rows of tasks that read tokens, in one pass with rows of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import opinions, tiny_with_words
from tagged import colours, riddles

import intarsia
from intarsia import Settings
from intarsia.bank.bank import Bank
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck, LoRA


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    bank = intarsia.open(tmp_path_factory.mktemp("bank"), tiny_with_words())
    quick = Settings(epochs=8, learning_rate=1e-2, batch_size=16, max_length=24)
    bank.learn("colours", colours(200), Bottleneck(8), settings=quick)
    bank.learn("again", colours(60, 1), LoRA(4), settings=quick)
    bank.learn("opinion", opinions(40), Bottleneck(8), settings=quick)
    bank.learn("riddle", riddles(200), Bottleneck(8), settings=quick)
    return bank


def test_mixed_requests_equal_separate_ones(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    long = " ".join(s.text for s in colours(8, 5))  # several rows
    requests = [(task, text) for text in ("a red apple", "good", long) for task in ("colours", "opinion", "again")]
    passes: list[int] = []
    plain = bank.predictor._pass
    monkeypatch.setattr(bank.predictor, "_pass", lambda asked: passes.append(len(asked)) or plain(asked))
    mixed = bank.predict(requests)
    assert len(passes) == 1 and passes[0] > len(requests)
    for (task, text), answer in zip(requests, mixed, strict=True):
        (alone,) = bank.predict(task, [text])
        assert answer.task == task and (answer.tags is None) == (task == "opinion")
        if answer.tags is None or alone.tags is None:
            assert answer.probability == pytest.approx(alone.probability, abs=1e-5)
            continue
        assert [w["word"] for w in answer.tags] == text.split()
        assert [w["tag"] for w in answer.tags] == [w["tag"] for w in alone.tags]
        for a, b in zip(answer.tags, alone.tags, strict=True):
            assert a["probability"] == pytest.approx(b["probability"], abs=1e-5)


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
