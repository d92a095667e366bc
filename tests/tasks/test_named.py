"""Public tasks by their names, before any hub is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intarsia.errors import DataError, IntarsiaWarning
from intarsia.tasks.data import load_data
from intarsia.tasks.named import load_again, load_named, load_named_examples

ROWS = [{"text": f"a sentence, number {i}", "label": ("acceptable", "unacceptable")[i % 2]} for i in range(40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a sample of glue/cola, and an empty working directory."""
    (tmp_path / "public" / "glue_partial" / "cola").mkdir(parents=True)
    for part, rows in (("train", ROWS[:30]), ("dev", ROWS[30:])):
        path = tmp_path / "public" / "glue_partial" / "cola" / f"{part}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("INTARSIA_DATA", str(tmp_path / "public"))
    return tmp_path / "public"


def test_a_public_task_is_loaded_by_its_name(folder: Path) -> None:
    with pytest.warns(IntarsiaWarning, match="glue/cola is a sample in the data folder"):
        task = load_named("glue/cola")
    assert task.source["suite"] == "glue/cola" and len(task.test) == 10 and task.source["partial"]
    with pytest.raises(DataError, match="leave out label"):
        load_named("glue/cola", label="label", text=None)
    with pytest.raises(DataError, match=r"glue/rte is not in the data folder .*Fetch it: intarsia data fetch glue/rte"):
        load_named("glue/rte")


def test_a_folder_of_that_name_wins(folder: Path) -> None:
    here = Path("glue/cola")
    here.mkdir(parents=True)
    (here / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert load_named("glue/cola").source["from"] == "folder"


def test_a_public_task_is_evaluated_on_by_its_name(folder: Path) -> None:
    labels = ("acceptable", "unacceptable")
    with pytest.warns(IntarsiaWarning, match="glue/cola is a sample"):
        examples = load_named_examples("glue/cola", kind="label", labels=labels)
    assert len(examples) == 10 and {e.label for e in examples} == set(labels)
    with pytest.warns(IntarsiaWarning), pytest.raises(DataError, match="of the kind label; expected data of the kind"):
        load_named_examples("glue/cola", kind="score", labels=())
    with pytest.raises(DataError, match="Did you mean 'glue/cola'"):
        load_named_examples("glue/colaa", kind="label", labels=labels)


def test_data_is_read_again_as_it_was_read(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "messy.csv"
    lines = [f"eine Schönheit {i}#{'ab'[i % 2]}" for i in range(20)]
    path.write_text("\n".join(["text#label", *lines, "kein Wert#", ""]), encoding="cp1252")
    first = load_data(path, sep="#", encoding="cp1252", drop_missing=True)
    assert load_again("label", first.source).source["sha256"] == first.source["sha256"]
    with pytest.warns(IntarsiaWarning):
        public = load_named("glue/cola")
    with pytest.warns(IntarsiaWarning):
        assert load_again("label", public.source).source["sha256"] == public.source["sha256"]
    with pytest.raises(DataError, match="learned from data in memory"):
        load_again("label", load_data([(f"text {i}", "ab"[i % 2]) for i in range(20)]).source)
