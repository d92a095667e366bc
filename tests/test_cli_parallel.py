"""`intarsia predict topic,tone`: several tasks answer each text."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import intarsia
from intarsia import Bottleneck, LoRA, Parallel
from intarsia.bank.bank import Bank
from intarsia.cli import app
from intarsia.errors import IntarsiaError
from tests.support.families import opinions, save_tiny

QUICK: dict[str, Any] = {"epochs": 1, "max_length": 16}
TEXTS = ["good film", "an awful day"]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    folder = tmp_path_factory.mktemp("parallel")
    bank = intarsia.open(folder / "bank", save_tiny(folder / "base"))
    bank.learn("tone", opinions(), LoRA(2), **QUICK)
    bank.learn("tone", opinions(seed=1), LoRA(2), serve_anyway=True, **QUICK)
    lengths = [{"text": row["text"], "label": str(len(row["text"]) > 30)} for row in opinions()]
    bank.learn("length", lengths, Bottleneck(2), **QUICK)
    bank.learn("pairs", [{**row, "second": "good"} for row in opinions()], LoRA(2), text="text", pair="second", **QUICK)
    return bank


def test_the_answers_are_those_of_each_task_alone(bank: Bank) -> None:
    found = bank.predict(Parallel("tone", "tone@1", "length"), TEXTS)
    assert [list(row) for row in found] == [["tone", "tone@1", "length"]] * 2
    for name, alone in (
        ("tone", bank.predict("tone", TEXTS)),
        ("tone@1", bank.predict("tone", TEXTS, version=1)),
        ("length", bank.predict("length", TEXTS)),
    ):
        assert [row[name].to_dict() for row in found] == [answer.to_dict() for answer in alone]
    assert bank.predict(Parallel("tone"), []) == []
    with pytest.raises(IntarsiaError, match="for one task"):
        bank.predict(Parallel("tone"), TEXTS, version=1)  # type: ignore[call-overload]
    with pytest.raises(IntarsiaError, match=r"no task 'tune'. Did you mean 'tone'"):
        bank.predict(Parallel("tone", "tune"), TEXTS)


def test_the_command_prints_an_object_for_each_text(bank: Bank, tmp_path: Path) -> None:
    folder, runner = ["--bank", str(bank.store.folder)], CliRunner()
    done = runner.invoke(app, ["predict", "tone,tone@1, length", *TEXTS, *folder])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert rows[0]["tone"]["label"] == bank.predict("tone", TEXTS)[0].label and "task" not in rows[0]["tone"]
    assert rows[0].keys() == {"text", "tone", "tone@1", "length"}
    given, out = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("id,text\n1,good film\n2,\n3,bad day\n")
    assert runner.invoke(app, ["predict", "tone,length", "-f", str(given), "-o", str(out), *folder]).exit_code == 0
    with out.open() as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table] == ["1", "2", "3"] and table[1]["tone_label"] == ""
    assert table[0].keys() >= {"tone_label", "tone_probability", "length_label"}
    for arguments, reason in (
        (["tone,pairs", "a"], "single texts; text pairs"),
        (["tone,length", "a", "--version", "1"], "--version is for one task"),
        (["tone,tone", "a"], "twice"),
        (["tone", "a", "--swap", "medical"], "not PARENT=TASK"),
        (["tone", "a", "--swap", "medical=legal"], "not built on other inlays"),
    ):
        refused = runner.invoke(app, ["predict", *arguments, *folder])
        assert isinstance(refused.exception, IntarsiaError) and reason in str(refused.exception), arguments
