"""What is in a data folder, and the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from intarsia.cli import app
from intarsia.errors import DataError
from intarsia.tasks.suites import find, load, read_texts, status
from tests.support import official_files as official

runner = CliRunner()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTARSIA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def jsonl(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": f"t {n}", "label": "ham"}) + "\n" for n in range(count)))


def test_states(tmp_path: Path) -> None:
    spam = find("extra/sms_spam")
    assert status(spam, tmp_path).state == "missing"
    jsonl(tmp_path / "extra_partial/sms_spam/train_subset_small.jsonl", 7)
    jsonl(tmp_path / "extra_partial/sms_spam/train_subset.jsonl", 9)
    jsonl(tmp_path / "extra_partial/sms_spam/valid.jsonl", 3)
    found = status(spam, tmp_path)
    assert found.state == "partial" and {part.split: part.rows for part in found.parts} == {
        "all": None, "train": 9, "dev": 3,
    }  # fmt: skip
    jsonl(tmp_path / "extra/sms_spam/all.jsonl", 5573)
    assert status(spam, tmp_path).state == "partial"
    jsonl(tmp_path / "extra/sms_spam/all.jsonl", 5574)
    assert status(spam, tmp_path).state == "whole"


def test_a_sample_of_all_rows_is_not_the_official_task(tmp_path: Path) -> None:
    jsonl(tmp_path / "extra_partial/sms_spam/all.jsonl", 5574)
    assert status(find("extra/sms_spam"), tmp_path).state == "partial"
    predictions = " ".join(runner.invoke(app, ["data", "list", "extra", "--data", str(tmp_path)]).output.split())
    assert "extra/sms_spam: all rows, but stored as a sample (_partial), so not official." in predictions
    jsonl(tmp_path / "extra_partial/sms_spam/all.jsonl", 9)
    assert "all rows" not in runner.invoke(app, ["data", "list", "extra", "--data", str(tmp_path)]).output


def test_several_samples_of_questions_are_one_sample(tmp_path: Path) -> None:
    folder = official.squad(tmp_path / "squad/v1.1", "dev")
    for name in ("official", "located"):
        official.squad(folder, "train").joinpath("train-v1.1.json").rename(folder / f"train_subset_{name}.json")
    more = json.loads((folder / "train_subset_located.json").read_text())
    paragraphs = more["data"][0]["paragraphs"]
    first = paragraphs[0]["qas"][0]
    for n in range(3, 12):
        own = {**first, "id": f"q{n}", "question": f"What flows, {n}?"}
        paragraphs.append({"context": f"{official.CONTEXT} {n}", "qas": [own]})
    (folder / "train_subset_located.json").write_text(json.dumps(more))
    found = status(find("squad/v1.1"), tmp_path)
    assert found.state == "partial" and found.parts[0].rows == 2 + 11
    assert [path.name for path in found.files["train"]] == ["train_subset_located.json", "train_subset_official.json"]
    loaded = load("squad/v1.1", tmp_path, partial=True)
    assert len({e.text for e in loaded.train + loaded.dev}) == len(loaded.train + loaded.dev) == 11  # each once
    assert loaded.source["left_out"] == 2


def test_a_manifest_is_believed_only_for_files_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "extra/sms_spam/all.jsonl"
    jsonl(path, 20)
    size = path.stat().st_size
    entry = {"extra/sms_spam/all.jsonl": {"rows": 5574, "bytes": size}}
    (tmp_path / "MANIFEST.json").write_text(json.dumps(entry))
    assert status(find("extra/sms_spam"), tmp_path).state == "whole"
    jsonl(path, 21)
    assert status(find("extra/sms_spam"), tmp_path).parts[0].rows == 21
    (tmp_path / "MANIFEST.json").write_text("{")
    with pytest.raises(DataError, match=r"MANIFEST.json cannot be read"):
        status(find("extra/sms_spam"), tmp_path)


def test_list_without_any_data() -> None:
    done = runner.invoke(app, ["data", "list"])
    assert done.exit_code == 0, done.output
    assert "data: 31 missing." in done.output and "intarsia data fetch SUITE/TASK --from hub" in done.output
    assert "–/392,702" in done.output and "its mismatched sets" in done.output
    assert max(map(len, done.output.splitlines())) <= 120
    rows = [line for line in done.output.splitlines() if line.startswith(("glue/", "extra/", "squad/"))]
    assert len(rows) == 29 and max(map(len, rows)) <= 100


def test_fetch_and_list_as_commands(tmp_path: Path) -> None:
    official.wnli(tmp_path / "download")
    official.qqp(tmp_path / "download")
    done = runner.invoke(app, ["data", "fetch", "glue", "--from", "download"])
    assert done.exit_code == 0, done.output
    assert "glue/wnli: whole. train 635, dev 71, test 146" in done.output
    assert "glue/qqp: partial. train 40, dev 7, test 9. train has 40 rows, officially 363,846" in done.output
    assert "glue/cola: not found" in done.output
    again = runner.invoke(app, ["data", "fetch", "glue/wnli", "--from", "download", "--json"])
    (one,) = json.loads(again.output)
    assert (one["outcome"], one["rows"]["train"]) == ("kept", 635)
    table = runner.invoke(app, ["data", "list", "glue"]).output
    assert "40/363,846" in table and "1 whole, 1 partial, 8 missing" in table
    known = json.loads(runner.invoke(app, ["data", "list", "glue/wnli", "--data", "data", "--json"]).output)
    (task,) = known["tasks"]
    assert task["state"] == "whole" and task["parts"]["dev"] == {
        "rows": 71, "official": 71, "path": "data/glue/wnli/dev.jsonl.zst",
    }  # fmt: skip
    assert len(read_texts("glue/wnli")) == 146 and read_texts("glue/wnli")[0] == (official.text(0), official.text(1))


def test_bad_input_exits_with_2_and_says_what_to_do(tmp_path: Path) -> None:
    for arguments, message in (
        (["list", "gleu"], "Did you mean glue"),
        (["fetch", "glue/cola", "--from", "nowhere"], "nowhere is not a folder"),
        (["fetch", "glue/cola", "--from", "hub"], "cannot reach the hub"),
        (["fetch", "glue/cola"], "--from"),
    ):
        command = [sys.executable, "-m", "intarsia.cli", "data", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_listing_imports_nothing_large() -> None:
    code = (
        "import sys, intarsia.cli, intarsia.tasks.suites.folder as f; f.list_data();"
        "print([name for name in ('numpy', 'torch', 'pyarrow', 'datasets', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
