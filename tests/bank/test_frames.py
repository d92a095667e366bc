"""A bank among DataFrames and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.bank.bank import Bank
from intarsia.errors import IntarsiaError
from tests.support.families import opinions, tiny_with_words
from tests.support.token_tasks import colours

pd = pytest.importorskip("pandas")
QUICK = Settings(learning_rate=3e-3, epochs=2, batch_size=16)
TEXTS = ["good film", "an awful day", "the sun is so hot"]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    opened = intarsia.open(tmp_path_factory.mktemp("frames") / "bank", tiny_with_words())
    opinion = pd.DataFrame(opinions()).rename(columns={"text": "review", "label": "verdict"})
    opened.learn("opinion", opinion, Bottleneck(4), settings=QUICK, text="review", label="verdict")
    rows = opinions()
    several = [["kind"] if row["label"] == "yes" else ["short", "rude"] for row in rows]
    opened.learn("marks", ([row["text"] for row in rows], several), Bottleneck(4), settings=QUICK)
    opened.learn("stars", {"text": [r["text"] for r in rows], "score": [0.5 * len(r["text"]) for r in rows]},
                 Bottleneck(4), settings=QUICK)  # fmt: skip
    opened.learn("colour", colours(40), Bottleneck(4), settings=QUICK)
    return opened


def test_columns_and_frames_are_texts(bank: Bank) -> None:
    expected = bank.predict("opinion", TEXTS)
    frame = pd.DataFrame({"review": TEXTS, "other": range(3)}, index=["x", "y", "z"])
    for texts in (frame["review"], frame, np.array(TEXTS), tuple(TEXTS), {"review": TEXTS}, (text for text in TEXTS)):
        assert bank.predict("opinion", texts) == expected


def test_probabilities_are_an_array_with_the_labels_of_its_columns(bank: Bank) -> None:
    values, labels = bank.predict_proba("opinion", pd.Series(TEXTS))
    assert labels == ("no", "yes") and values.shape == (3, 2)
    np.testing.assert_allclose(values.sum(1), 1, atol=1e-6)
    predicted = bank.predict("opinion", TEXTS)
    assert [labels[i] for i in values.argmax(1)] == [prediction.label for prediction in predicted]
    several = bank.predict_proba("marks", TEXTS)
    assert several.labels == ("kind", "rude", "short") and several.values.shape == (3, 3)
    assert bank.predict_proba("opinion", []).values.shape == (0, 2)
    with pytest.raises(IntarsiaError, match="kind 'score', which has no probability"):
        bank.predict_proba("stars", TEXTS)


def test_a_frame_gets_the_answers_of_many_tasks(bank: Bank) -> None:
    frame = pd.DataFrame({"review": TEXTS, "text": TEXTS}, index=[7, 8, 9])
    out = bank.predict_frame(frame, ["opinion", "marks", "stars"])
    assert [*out.columns] == ["review", "text", "opinion_label", "opinion_probability", "marks_labels", "stars_score"]
    assert [*out.index] == [7, 8, 9] and [*frame.columns] == ["review", "text"]
    assert [*out["opinion_label"]] == [p.label for p in bank.predict("opinion", TEXTS)]
    assert out["stars_score"].dtype == "float64" and out["opinion_probability"].between(0, 1).all()
    again = bank.predict_frame(out, "opinion")  # a second time replaces the columns
    pd.testing.assert_frame_equal(again, out, check_exact=False)
    assert "colour_tags" in bank.predict_frame(frame)


def test_rows_without_a_text_get_no_answer(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"review": ["good film", None, "  "]})
    out = bank.predict_frame(frame, "opinion")
    assert out["opinion_label"].isna().tolist() == out["opinion_probability"].isna().tolist() == [False, True, True]
    assert "2 of 3 rows have no text" in caplog.text
    with pytest.raises(IntarsiaError, match=r"text 2 is missing.*dropna"):
        bank.predict("opinion", frame["review"])


def test_evaluate_reads_the_columns_of_the_task(bank: Bank) -> None:
    frame = pd.DataFrame(opinions(20)).rename(columns={"text": "review", "label": "verdict"})
    expected = bank.evaluate("opinion", opinions(20)).interval
    assert bank.evaluate("opinion", frame).interval == expected
    assert bank.evaluate("opinion", ([*frame["review"]], [*frame["verdict"]])).interval == expected


@pytest.mark.parametrize(
    "arguments",
    [("opinion",), ("opinion", "one text"), ("opinion", 3), ("opinion", [3]), ("opinion", [None]),
     ("opinion", [("a",)]), ("opinion", [("a", "b")]), ("opinion", np.zeros(3)), ("opinion", object()), (3,),
     (["opinion"],), ([("opinion", 3)],), ([("opinion", "a")], ["b"]), ("colour", [3]), (b"opinion", ["a"]),
     ("opinion", {"a", "b"})],
)  # fmt: skip
def test_what_cannot_be_a_request_is_refused(bank: Bank, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(IntarsiaError):
        bank.predict(*arguments)


def test_the_columns_of_a_frame_are_named(bank: Bank) -> None:
    frame = pd.DataFrame({"body": TEXTS, "title": ["a", "b", "c"]})
    out = bank.predict_frame(frame, ["opinion", "marks"], text="body")
    assert [*out["opinion_label"]] == [p.label for p in bank.predict("opinion", TEXTS)]
    with pytest.raises(IntarsiaError, match=r"no column 'boddy'\. Columns found: 'body', 'title'"):
        bank.predict_frame(frame, "opinion", text="boddy")


def test_a_threshold_is_given_to_a_call(bank: Bank) -> None:
    assert {p.labels for p in bank.predict("marks", TEXTS, threshold=1e-9)} == {("kind", "rude", "short")}
    assert {p.labels for p in bank.predict("marks", TEXTS, threshold=1 - 1e-9)} == {()}
    for task, threshold, words in (("marks", 1.5, "between 0 and 1"), ("opinion", 0.5, "several labels of n")):
        with pytest.raises(IntarsiaError, match=words):
            bank.predict(task, TEXTS, threshold=threshold)
    with pytest.raises(IntarsiaError, match="for one task"):
        bank.predict([("marks", "a")], threshold=0.5)  # type: ignore[call-overload]


def test_a_client_takes_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    client = intarsia.Client("http://127.0.0.1:1")
    monkeypatch.setattr(client, "get", lambda path: {"kind": "label"})
    monkeypatch.setattr(client, "post", lambda path, body: sent.append(body) or {"results": []})
    for texts in (pd.Series(TEXTS), np.array(TEXTS), pd.DataFrame({"text": TEXTS}), (text for text in TEXTS)):
        client.predict("opinion", texts)
        assert [row["input"] for row in sent.pop()["requests"]] == TEXTS
    with pytest.raises(IntarsiaError, match="write \\[text\\]"):
        client.predict("opinion", "one text")


def test_only_a_frame_becomes_a_frame(bank: Bank) -> None:
    with pytest.raises(IntarsiaError, match="expects a pandas DataFrame"):
        bank.predict_frame(TEXTS)
    with pytest.raises(IntarsiaError, match="no text column"):
        bank.predict_frame(pd.DataFrame({"a": ["x"], "b": ["y"]}), "marks")
