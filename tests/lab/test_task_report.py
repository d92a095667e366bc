"""The report of a task, its model card, and the output of `evaluate`: escaped, self-contained, from the same facts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import intarsia
from intarsia import Bank, Bottleneck
from intarsia.cli import app
from intarsia.lab.task_report import write_report
from tests.support.families import opinions, save_tiny
from tests.support.token_tasks import colours, riddles

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """A bank that has learned a file with a label that is markup, and texts that are cut."""
    folder = tmp_path_factory.mktemp("report")
    rows = [{**row, "label": {"yes": EVIL, "no": "b|c*"}[row["label"]]} for row in opinions(200)]
    (folder / "evil.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bank = intarsia.open(folder / "bank", save_tiny(folder / "base"))
    settings = {"learning_rate": 3e-3, "epochs": 2, "batch_size": 16, "max_length": 5}
    with pytest.warns(intarsia.IntarsiaWarning, match="texts are cut to 5 tokens"):
        bank.learn("evil", str(folder / "evil.jsonl"), Bottleneck(4), settings=settings)
    return bank


def test_the_page_is_one_file_and_escapes_all_texts(bank: Bank, tmp_path: Path) -> None:
    paths = write_report(bank, "evil", tmp_path / "out", mistakes=5)
    assert [path.name for path in paths] == ["index.html", "README.md"]
    page = paths[0].read_text()
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page
    assert not re.search(r'(src|href)="(?!#|data:)[^"]', page), "nothing is loaded"
    for heading in (
        "Data",
        "Training",
        "Scores",
        "Labels",
        "Confusions",
        "Calibration",
        "Mistakes",
        "Cost",
        "Provenance",
    ):
        assert f"<h2>{heading}</h2>" in page, heading
    assert page.count("<svg") == 4 and bank.show("evil").header.digest in page
    assert "are cut to 5 tokens" in page


def test_the_card_is_in_the_hub_s_format(bank: Bank, tmp_path: Path) -> None:
    text = write_report(bank, "evil", tmp_path)[1].read_text()
    _, front, body = text.split("---\n", 2)
    known = yaml.safe_load(front)
    assert known["library_name"] == "intarsia" and known["pipeline_tag"] == "text-classification"
    (result,) = known["model-index"][0]["results"]
    test = bank.show("evil").header.metrics["test"]
    assert result["metrics"][0] == {"type": "accuracy", "name": "Accuracy", "value": round(test["value"], 4)}
    assert EVIL not in body and r"\<script\>" in body and r"b\|c\*" in body
    from huggingface_hub import ModelCard

    assert ModelCard(text).data.eval_results[0].metric_type == "accuracy"


def test_a_report_without_the_data_says_so(bank: Bank, tmp_path: Path) -> None:
    file = Path(bank.show("evil").header.data["path"])
    content = file.read_text()
    file.write_text(content.replace("good", "fine"))
    try:
        page = write_report(bank, "evil", tmp_path)[0].read_text()
        assert "has changed since the task learned from it" in page and "<h2>Mistakes</h2>" not in page
        page = write_report(bank, "evil", tmp_path, rows_of(file))[0].read_text()
        assert "<h2>Mistakes</h2>" in page
    finally:
        file.write_text(content)


def rows_of(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()][:30]


def test_reports_of_other_kinds(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", save_tiny(tmp_path / "base"))
    settings = {"learning_rate": 3e-3, "epochs": 1, "batch_size": 16}
    several = [{**row, "label": [row["label"], "x"][: 1 + i % 2]} for i, row in enumerate(opinions(80))]
    scores = [{**row, "label": i / 7} for i, row in enumerate(opinions(80))]
    for name, data in {"any": several, "number": scores, "spans": riddles(40), "tags": colours(40)}.items():
        bank.learn(name, data, Bottleneck(4), settings=settings)
        page = write_report(bank, name, tmp_path / name, data[:20])[0].read_text()
        assert "<h2>Mistakes</h2>" in page, name
    assert "thresholds" in bank.show("any").header.head
    assert "its threshold" in (tmp_path / "any" / "README.md").read_text()
    bank.learn("any", several, Bottleneck(4), settings={**settings, "threshold": 0.4, "calibrate": False},
               serve_anyway=True)  # fmt: skip
    page_path, card_path = write_report(bank, "any", tmp_path / "given", several)
    card = card_path.read_text()
    assert (
        "applies from the probability 0.4." in card
        and "(not calibrated)" in card
        and "found on the validation" not in card
    )
    assert "Not calibrated. The expected calibration error" in page_path.read_text()


def test_evaluate_prints_labels_confusions_and_mistakes(bank: Bank, tmp_path: Path) -> None:
    folder = bank.store.folder
    arguments = ["evaluate", "evil", str(bank.show("evil").header.data["path"]), "--bank", str(folder)]
    done = CliRunner().invoke(app, [*arguments, "--mistakes", "2", "--figures", str(tmp_path / "figures")])
    assert done.exit_code == 0, done.output
    for part in (
        "95 % interval",
        "precision  recall",
        "confusions: true label by row",
        "calibration error",
        "the worst",
    ):
        assert part in done.output, part
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "confusion.png", "precision-recall.png", "calibration.png",
    }  # fmt: skip
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json", "--mistakes", "1"]).stdout)
    assert found["examples"] == 200 and len(found["mistakes"]) == 1 and found["version"] == 1
    assert sum(map(sum, found["confusion"]["counts"])) == 200 and set(found["calibration"]) == {"ece", "bins"}
    assert {row["label"] for row in found["classes"]} == {EVIL, "b|c*"}
    refused = CliRunner().invoke(app, [*arguments, "--threshold", "0.3"])
    assert "--threshold is for tasks with several labels of n" in str(refused.exception)


def test_show_has_calibration_and_cut_texts(bank: Bank) -> None:
    shown = CliRunner().invoke(app, ["show", "evil", "--bank", str(bank.store.folder)]).output
    assert re.search(r"calibration +(temperature|none)", shown) and re.search(
        r"cut texts +\d+ of 160 to 5 tokens", shown
    )
    header = bank.show("evil").header
    assert set(header.metrics["calibration"]) == {"temperature", "ece_before", "ece_after", "part"}
    assert header.metrics["test"]["too_few"] and header.data["truncated"]["max_length"] == 5
