"""The loss of int8 over all tasks: where the data comes from, what is compared, and what is said without data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intarsia
from intarsia.bank.bank import Bank
from intarsia.bank.precision_report import PrecisionReport, compare
from intarsia.encoder import int8_probe
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError, PrecisionError
from tests.support.families import opinions, tiny_with_words

ROWS = opinions(80)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture(scope="module")
def bank(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """A task learned from a file, a task learned from memory."""
    folder = tmp_path_factory.mktemp("report")
    write(folder / "file.jsonl")
    bank = intarsia.open(folder / "bank", encoder)
    settings = {"epochs": 1, "batch_size": 16}
    bank.learn("from-file", str(folder / "file.jsonl"), settings=settings, sweep=False)
    bank.learn("from-memory", ROWS, settings=settings, sweep=False)
    return bank


@pytest.fixture
def int8(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    monkeypatch.setattr(int8_probe, "require", lambda *_: None)
    encoder.use_int8()
    yield encoder  # type: ignore[misc]
    encoder.use_int8(False)


def write(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def by_name(report: PrecisionReport) -> dict[str, object]:
    return {task.task: task for task in report.tasks}


def test_the_test_part_of_what_was_learned_from_is_scored_in_both(bank: Bank, int8: Encoder) -> None:
    report = compare(bank.store, int8)
    found, without = report.tasks
    inlay = bank.store.load("from-file")
    assert found.rows == inlay.data["rows"]["test"] and (found.data or "").startswith("test part of ")
    assert found.precisions["float32"].score == pytest.approx(inlay.metrics["test"]["value"])
    assert found.precisions.keys() == {"float32", "int8"} and found.changed is not None and found.tokens > 0
    assert (
        found.points
        == report.points
        == pytest.approx(100 * ((found.precisions["int8"].score or 0) - (found.precisions["float32"].score or 0)))
    )
    assert "--data from-memory=FILE" in (without.problem or "") and not without.precisions
    assert int8.precision == "int8"  # as before
    assert {task["task"] for task in json.loads(json.dumps(report.to_dict()))["tasks"]} == {"from-file", "from-memory"}


def test_data_is_given_by_task_or_as_a_folder(bank: Bank, int8: Encoder, tmp_path: Path) -> None:
    path = write(tmp_path / "from-memory.jsonl")
    for data in ({"from-memory": str(path)}, tmp_path):
        found = compare(bank.store, int8, data, limit=30).tasks[1]
        assert found.problem is None and found.rows == 30 and found.precisions["int8"].score is not None


def test_without_labels_the_answers_are_compared(bank: Bank, int8: Encoder, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a good film\nan awful day\n")
    found = compare(bank.store, int8, texts=texts).tasks[1]
    assert found.rows == 2 and found.points is None and found.changed is not None


def test_another_precision_is_scored_alone(bank: Bank, encoder: Encoder) -> None:
    report = compare(bank.store, encoder)
    assert report.tasks[0].precisions.keys() == {"float32"} and report.points is None


def test_what_cannot_be_used_is_named(bank: Bank, encoder: Encoder, tmp_path: Path) -> None:
    for data in ({"absent": "x.csv"}, tmp_path / "absent", tmp_path):
        with pytest.raises(IntarsiaError):
            compare(bank.store, encoder, data)
    with pytest.raises(IntarsiaError, match="leaves no rows"):
        compare(bank.store, encoder, limit=0)


def test_a_bank_without_int8_says_what_was_measured(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = int8_probe.Verdict(few={"tokens": 16, "float32": 1.0, "int8": 9.0})
    monkeypatch.setattr(int8_probe, "verdict", lambda *_: slow)
    with pytest.raises(PrecisionError, match=r"0\.11 times as fast"):
        bank.encoder.use_int8()
    assert bank.encoder.precision == "float32"
