"""Questions about contexts: windows, positions, decoding, the official scores, bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from intarsia.encoder.encoder import Encoder
from intarsia.errors import DataError, IntarsiaError
from intarsia.tasks import load_data
from intarsia.tasks.data import load_questions
from intarsia.tasks.examples import Question
from intarsia.tasks.metrics import check_metric, default_metric
from intarsia.tasks.spans import Spans
from intarsia.tasks.squad_score import exact_match, f1, normalized
from tests.support.families import tiny_with_words
from tests.support.token_tasks import as_squad, riddles

LONG = " ".join(["the day was hot and the night cold"] * 8)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


# What evaluate-v1.1.py and evaluate-v2.0.py say.
@pytest.mark.parametrize(
    ("predicted", "gold", "v2", "exact", "overlap"),
    [
        ("The Apple!", ["apple"], False, 1, 1.0),
        ("an  apple a day", ["apple day"], False, 1, 1.0),
        ("red apple", ["apple", "green pear"], False, 0, 2 / 3),
        ("apple apple", ["apple"], False, 0, 2 / 3),
        ("pear", ["apple"], False, 0, 0.0),
        ("the", ["a"], False, 1, 0.0),  # nothing remains of either: 1.1 finds no word in common
        ("the", ["a"], True, 1, 1.0),
        ("", [], True, 1, 1.0),
        ("apple", [], True, 0, 0.0),
        ("", ["apple"], True, 0, 0.0),
        ("Theme of A-ha", ["theme aha"], True, 0, 0.8),
    ],
)
def test_scores_are_those_of_the_official_evaluation(
    predicted: str, gold: list[str], v2: bool, exact: float, overlap: float
) -> None:
    assert exact_match(predicted, gold, v2=v2) == exact
    assert f1(predicted, gold, v2=v2) == pytest.approx(overlap)


def test_normalisation() -> None:
    assert normalized(" The  U.S. (a country), an\tisland;") == "us country island"
    assert normalized("anthem") == "anthem"


@pytest.mark.parametrize("at", [0, 25, 90, len(LONG) - 4])
def test_positions_lead_back_to_the_answer(encoder: Encoder, at: int) -> None:
    start = LONG.index("night" if at < len(LONG) - 10 else "cold", at)
    text = LONG[start:].split()[0]
    example = Question("is it good", LONG, None, "1", ((start, text),))
    inputs = Spans("span").inputs([example], encoder, 24)
    assert len(inputs.segments) > 3 and all(len(s.ids) <= 24 for s in inputs.segments)
    targets = Spans("span").row_targets([example], inputs).numpy()
    holding = 0
    for (first, last), characters in zip(targets, inputs.places, strict=True):
        inner = characters[characters[:, 0] >= 0]
        inside = inner[0, 0] <= start and start + len(text) <= inner[-1, 1]
        assert bool(first) == inside
        if inside:
            holding += 1
            assert LONG[characters[first, 0] : characters[last, 1]] == text
    assert holding >= 1
    covered = {c for places in inputs.places for a, b in places[places[:, 0] >= 0] for c in range(a, b)}
    assert covered == {i for i, c in enumerate(LONG) if c != " "}


@pytest.mark.parametrize("length", [12, 16, 24, 40])
def test_neighbouring_rows_share_a_third_and_always_move_on(encoder: Encoder, length: int) -> None:
    inputs = Spans("span").inputs([Question("is it", LONG), Question(LONG, LONG)], encoder, length)
    for owner in (0, 1):
        rows = [p[p[:, 0] >= 0] for p, own in zip(inputs.places, inputs.owners, strict=True) if own == owner]
        for before, after in zip(rows, rows[1:], strict=False):
            shared = int((before[:, 1] > after[0, 0]).sum())
            assert 1 <= shared <= min(length // 3, len(before) // 2)
            assert after is rows[-1] or shared >= (length // 3) // 2


def test_long_questions_are_cut_and_short_rows_refused(encoder: Encoder) -> None:
    inputs = Spans("span").inputs([Question(LONG, "a good film")], encoder, 30)
    assert len(inputs.segments) == 1 and len(inputs.segments[0].ids) <= 30
    assert (inputs.places[0][:, 0] >= 0).sum() == 3
    with pytest.raises(IntarsiaError, match="leaves no room"):
        Spans("span").inputs([Question("is it", "a good film")], encoder, 6)


def predictions_of(task_kind: Spans, examples: list[Question], encoder: Encoder, none: dict[str, float]) -> tuple:  # type: ignore[type-arg]
    """Inputs, and outputs that point to each question's answer, with its own score for none."""
    inputs = task_kind.inputs(examples, encoder, 40)
    predictions = []
    for owner, places, (first, last) in zip(
        inputs.owners, inputs.places, task_kind.row_targets(examples, inputs).tolist(), strict=True
    ):
        row = np.zeros((len(places), 2), np.float32)
        if first:
            row[first, 0], row[last, 1] = 5.0, 4.0
        row[0, 0] = none.get(examples[owner].id, -20.0)
        predictions.append(row)
    return inputs, predictions


def test_the_best_spans_of_all_rows_are_ranked(encoder: Encoder) -> None:
    task_kind, examples = Spans("span"), riddles(8)
    inputs, predictions = predictions_of(task_kind, examples, encoder, {})
    for example, decoded in zip(examples, task_kind.decode(examples, inputs, predictions), strict=True):
        assert task_kind.answer(decoded) == (example.answers or ())[0][1]
        best = decoded.candidates[0]
        assert example.context[best.start :].startswith(best.text) and best.score == 9.0
        assert sum(c.probability for c in decoded.candidates) == pytest.approx(1.0)
        assert len({c.text for c in decoded.candidates}) == len(decoded.candidates)
    assert task_kind.measure("f1", examples, inputs, predictions, 0).value == 1.0
    assert task_kind.measure("exact-match", examples, inputs, predictions, 0).value == 1.0


def test_answers_are_not_too_long(encoder: Encoder) -> None:
    example = Question("is it", " ".join(["good"] * 35))
    inputs = Spans("span").inputs([example], tiny_with_words(), 40)
    row = np.zeros((len(inputs.places[0]), 2), np.float32)
    inner = np.flatnonzero(inputs.places[0][:, 0] >= 0)
    row[inner[0], 0] = row[inner[-1], 1] = 9.0
    (decoded,) = Spans("span").decode([example], inputs, [row] * len(inputs.segments))
    assert all(len(c.text.split()) <= 30 for c in decoded.candidates)


def test_the_threshold_for_no_answer_is_the_best_on_dev(encoder: Encoder) -> None:
    examples = riddles(12, none=True)
    task_kind = Spans.learn("span", (), examples)
    assert task_kind.no_answer and not Spans.learn("span", (), riddles(3)).no_answer
    none = {q.id: 9.0 + (3.0 if not q.answers else 1.0) for q in examples}  # none is always better, by 1 or by 12
    inputs, predictions = predictions_of(task_kind, examples, encoder, none)
    assert task_kind.measure("f1", examples, inputs, predictions, 0).value == pytest.approx(4 / 12)
    found = task_kind.tune(examples, inputs, predictions)
    assert 1.0 < found["threshold"] < 12.0
    tuned = task_kind.tuned(found)
    for metric in ("f1", "exact-match", "f1:answered", "f1:unanswered", "exact-match:answered"):
        assert tuned.measure(metric, examples, inputs, predictions, 0).value == 1.0
    assert task_kind.measure("f1:answered", examples, inputs, predictions, 0).value == 0.0
    said_of_first = tuned.describe_all(examples, inputs, predictions)[:2]
    assert said_of_first[0]["answer"] == "" and said_of_first[1]["answer"] == (examples[1].answers or ())[0][1]
    assert Spans("span").tune(examples, inputs, predictions) == {}


def test_files_of_squad_and_rows_of_the_hub(tmp_path: Path) -> None:
    questions = riddles(40, none=True)
    (tmp_path / "riddles.json").write_text(json.dumps(as_squad(questions)))
    data = load_data(tmp_path / "riddles.json")
    assert (data.kind, data.labels, data.pairs) == ("span", (), True)
    assert {q.pair for q in data.train}.isdisjoint({q.pair for q in data.test})
    hub = [
        {
            "id": q.id, "question": q.text, "context": q.context,
            "answers": {"text": [t for _, t in q.answers or ()], "answer_start": [a for a, _ in q.answers or ()]},
        }
        for q in questions
    ]  # fmt: skip
    assert load_data(hub).train == data.train == load_data(questions).train
    asked = load_questions(tmp_path / "riddles.json")
    assert [q.id for q in asked] == [q.id for q in questions] and asked[0].answers is None
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "train-v2.0.json").write_text(json.dumps(as_squad(questions)))
    (folder / "dev-v2.0.json").write_text(json.dumps(as_squad(riddles(5, 1))))
    parts = load_data(folder)
    assert len(parts.test) == 5 and len(parts.train) + len(parts.dev) == 40


def test_questions_about_one_context_stay_together() -> None:
    questions = [Question(f"is it {i}", f"good film {i // 5}", None, str(i), ((0, "good"),)) for i in range(100)]
    data = load_data(questions)
    assert {q.pair for q in data.train}.isdisjoint({q.pair for q in (*data.dev, *data.test)})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"question": "is it", "context": "a film", "answers": [{"text": "book", "answer_start": 2}]}, "'film' is"),
        ({"question": " ", "context": "a film", "answers": []}, "question is ' '"),
        ({"question": "is it", "context": "a film", "answers": ["film"]}, "cannot be read as answers"),
        ({"question": "is it", "context": "a film", "answers": None}, "no label"),
    ],
)
def test_bad_rows_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data([*riddles(20), wrong])


def test_metrics_of_spans() -> None:
    assert default_metric("span", ()) == "f1"
    with pytest.raises(DataError, match="does not apply to span"):
        check_metric("accuracy", "span", ())


@pytest.mark.skipif(not os.environ.get("INTARSIA_DATA"), reason="needs a folder with real data")
def test_answers_of_squad_are_found_again() -> None:
    from intarsia.tasks import suites

    data = suites.load("squad/v1.1", limit=500, partial=True)
    encoder, task_kind, examples = Encoder.load("minilm"), Spans("span"), data.dev
    inputs = task_kind.inputs(examples, encoder, 192)
    predictions = []
    for places, (first, last) in zip(inputs.places, task_kind.row_targets(examples, inputs).tolist(), strict=True):
        row = np.zeros((len(places), 2), np.float32)
        row[first, 0], row[last, 1] = 9.0, 9.0
        predictions.append(row)
    assert len(inputs.segments) > len(examples)
    assert task_kind.measure("exact-match", examples, inputs, predictions, 0).value > 0.97  # a few begin inside a token
