"""Explanations: occlusion is prediction of the changed text, and integrated gradients add up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intarsia
from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.serve.explanation import page
from intarsia.serve.words import without, words
from tests.support.families import FAMILY_NAMES, opinions, plain_model, tiny_tokenizer, tiny_with_words

QUICK = {"epochs": 3, "learning_rate": 5e-3, "batch_size": 16, "max_length": 24}
TEXT = "the film was good , a great (sunny) day!"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture(scope="module")
def bank(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    made = intarsia.open(tmp_path_factory.mktemp("explained") / "bank", encoder)
    rows = opinions(120)
    texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]
    made.learn("tone", rows, "houlsby-4", **QUICK)
    made.learn("marks", (texts, [[label, "all"] for label in labels]), "lora-4", **QUICK)
    made.learn("stars", (texts, [1.5 + (label == labels[0]) for label in labels]), "houlsby-4", **QUICK)
    pairs = [{"text_a": text, "text_b": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    made.learn("both", pairs, "pfeiffer-4", **QUICK)
    made.learn("whole", rows, "full", **{**QUICK, "learning_rate": 1e-3})
    return made


def log_odds(bank: Bank, task: str, text: Any, label: str) -> float:
    prediction = bank.predict(task, [text])[0]
    if prediction.score is not None:
        return prediction.score
    assert prediction.probabilities is not None
    p = prediction.probabilities[label]
    others = (
        1 - p if prediction.labels is not None else sum(v for k, v in prediction.probabilities.items() if k != label)
    )
    return math.log(p) - math.log(others)


@pytest.mark.parametrize("task", ["tone", "marks", "stars", "whole"])
def test_occlusion_is_prediction_without_the_word(bank: Bank, task: str) -> None:
    (found,) = bank.explain(task, [TEXT])
    prediction = bank.predict(task, [TEXT])[0]
    label = found.label or ""
    assert found.answer == (prediction.score if task == "stars" else (prediction.probabilities or {})[label])
    assert [word.word for word in found.words] == words_of(TEXT)
    for word in found.words:
        changed = without(TEXT, (word.start, word.end))
        again = bank.predict(task, [changed])[0]
        assert word.without == (again.score if task == "stars" else (again.probabilities or {})[label])  # the same bits
        expected = log_odds(bank, task, TEXT, label) - log_odds(bank, task, changed, label)
        assert word.effect == pytest.approx(expected, abs=1e-4)


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end in words(text)]


@pytest.mark.parametrize("task", ["tone", "marks", "stars", "whole"])
def test_integrated_gradients_add_up(bank: Bank, task: str) -> None:
    (found,) = bank.explain(task, [TEXT], by="gradients")
    assert found.baseline is not None and found.error is not None and found.steps is not None
    total = sum(word.effect for word in found.words) + found.rest
    difference = found.value - found.baseline
    assert total == pytest.approx(difference + found.error, abs=1e-4)
    assert abs(found.error) <= max(0.01 * abs(difference), 1e-4) + 1e-5
    assert found.value == pytest.approx(log_odds(bank, task, TEXT, found.label or ""), abs=1e-4)
    (masked,) = bank.explain(task, [" ".join(["[MASK]"] * 12)])  # the baseline: as many mask tokens
    if task != "marks":
        masked_value = masked.value if masked.label == found.label else -masked.value
        assert found.baseline == pytest.approx(masked_value, abs=1e-3)


def test_pairs_explain_both_texts(bank: Bank) -> None:
    for by in ("occlusion", "gradients"):
        (found,) = bank.explain("both", [("a good day", "an awful film")], by=by)  # type: ignore[arg-type]
        assert [(w.field, w.word) for w in found.words] == [
            ("text", "a"), ("text", "good"), ("text", "day"), ("pair", "an"), ("pair", "awful"), ("pair", "film"),
        ]  # fmt: skip
        assert all(np.isfinite(w.effect) for w in found.words) and found.largest > 0
    (without_last,) = bank.predict("both", [("a good day", "an awful")])
    (found,) = bank.explain("both", [("a good day", "an awful film")])
    assert found.words[-1].without == (without_last.probabilities or {})[found.label or ""]


def test_the_words_that_make_the_label_have_the_largest_effects(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("tone", opinions(200), "full", learning_rate=2e-3, epochs=8, batch_size=16, max_length=24)
    for by, text in (("occlusion", "good film"), ("gradients", "the good film was good and good")):
        found = bank.explain("tone", [text], by=by)[0]  # type: ignore[arg-type]
        assert found.label == "yes" and found.strongest(1)[0].word == "good"
        against = bank.explain("tone", [text], by=by, label="no")[0]  # type: ignore[arg-type]
        assert against.value == pytest.approx(-found.value, abs=1e-4)
        assert [w.effect for w in against.words] == pytest.approx([-w.effect for w in found.words], abs=1e-3)


def test_words_that_are_cut_are_counted(bank: Bank) -> None:
    text = " ".join(["good film"] * 20)
    for by in ("occlusion", "gradients"):
        (found,) = bank.explain("tone", [text], by=by)  # type: ignore[arg-type]
        assert len(found.words) == 40 and found.unread == 40 - 22  # 24 tokens, two of them special


def test_many_texts_and_none(bank: Bank) -> None:
    texts = ["a good day", "an awful day !"]
    found = bank.explain("tone", texts)
    assert [one.text for one in found] == texts
    assert [one.to_dict() for one in found] == [bank.explain("tone", [text])[0].to_dict() for text in texts]
    assert bank.explain("tone", []) == []
    assert bank.explain("tone", ["good"])[0].words[0].without is not None  # without its only word: an empty text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "magic"}, "by 'magic' is not known; expected one of: occlusion, gradients"),
        ({"label": "alll"}, "Did you mean 'all'"),
    ],
)
def test_wrong_options_are_explained(bank: Bank, options: dict[str, Any], message: str) -> None:
    with pytest.raises(IntarsiaError, match=message):
        bank.explain("marks", ["good"], **options)
    with pytest.raises(IntarsiaError, match="leave the label out"):
        bank.explain("stars", ["good"], label="x")


def test_a_kind_without_one_answer_is_refused(bank: Bank, encoder: Encoder) -> None:
    from tests.support.token_tasks import colours

    bank.learn("colour", colours(40), "houlsby-4", **QUICK)
    with pytest.raises(IntarsiaError, match="kind tags, whose answers cannot be explained"):
        bank.explain("colour", ["a red apple"])


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_gradients_of_every_family_add_up(family: str, tmp_path: Path) -> None:
    base = Encoder(plain_model(family), tiny_tokenizer(pad=1 if "roberta" in family else 0), name=family)
    bank = intarsia.open(tmp_path / "bank", base)
    bank.learn("tone", opinions(40), "houlsby-4", **{**QUICK, "epochs": 1})
    (found,) = bank.explain("tone", ["a good film"], by="gradients")
    assert found.baseline is not None and found.error is not None
    assert abs(found.error) <= max(0.01 * abs(found.value - found.baseline), 1e-4) + 1e-5
    assert bank.explain("tone", ["a good film"])[0].value == pytest.approx(found.value, abs=1e-4)


def test_words_are_found_in_any_script() -> None:
    assert words_of('He said: "don\'t!!" (e-mail)') == ["He", "said", ":", '"', "don't", '!!"', "(", "e-mail", ")"]
    assert words_of("हिन्दी में") == ["हिन्दी", "में"]
    assert words_of("東京は good") == ["東", "京", "は", "good"]
    assert words_of(" \n ") == [] and words_of("...") == ["..."]
    assert without("a good day", (2, 6)) == "a day" and without("good day", (0, 4)) == "day"
    assert without("a day!", (5, 6)) == "a day" and without("a good", (2, 6)) == "a" and without("x", (0, 1)) == ""


def test_html_shows_the_words_and_escapes_the_text(bank: Bank) -> None:
    found = bank.explain("tone", ["good <script>alert(1)</script> day", TEXT])
    drawn = page(found)
    assert "<script>" not in drawn and "&lt;" in drawn and drawn.count("<h3>") == 2
    assert "background:rgba(" in drawn and "title=" in drawn and "http" not in drawn
    assert json.loads(json.dumps(found[0].to_dict()))["words"][0]["word"] == "good"
    assert "effects" not in repr(found[0]) and len(repr(found[0])) < 200
