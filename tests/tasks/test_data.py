"""Loading as a user does it: sources, splits, limits and every complaint about them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import DataError
from intarsia.tasks import Example, TaskData, load_data
from intarsia.tasks.data import load_examples, load_texts
from intarsia.tasks.splits import same_text

Rows = list[dict[str, Any]]


def rows(count: int = 40, prefix: str = "text", **more: Any) -> Rows:
    return [{"text": f"{prefix} {number}", "label": "ab"[number % 2], **more} for number in range(count)]


def labelled(labels: list[Any], column: str = "label") -> Rows:
    return [{"text": f"text {number}", column: label} for number, label in enumerate(labels)]


def saved(path: Path, content: Rows) -> Path:
    if path.suffix == ".csv":
        lines = [",".join(content[0]), *(",".join(str(value) for value in row.values()) for row in content)]
    else:
        lines = [json.dumps(row) for row in content]
    path.write_text("\n".join(lines) + "\n")
    return path


def complaint(source: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_data(source, **options)
    return str(caught.value)


def sizes(data: TaskData) -> tuple[int, int, int]:
    return len(data.train), len(data.dev), len(data.test)


# Sources


@pytest.mark.parametrize("name", ["reviews.csv", "reviews.jsonl"])
def test_one_file_is_split(tmp_path: Path, name: str) -> None:
    data = load_data(str(saved(tmp_path / name, rows())))
    assert sizes(data) == (32, 4, 4)
    assert (data.kind, data.labels, data.pairs) == ("label", ("a", "b"), False)
    assert data.source["from"] == "file"
    assert data.source["rows"] == {"train": 32, "dev": 4, "test": 4}
    assert data.source["columns"] == {"text": "text", "pair": None, "label": "label"}
    assert data.source["split"].startswith("80/10/10")
    json.dumps(data.source)


def test_the_hash_is_of_the_content_not_of_the_format(tmp_path: Path) -> None:
    first = load_data(saved(tmp_path / "a.csv", rows()))
    second = load_data(saved(tmp_path / "b.jsonl", rows()))
    assert first.source["sha256"] == second.source["sha256"] != load_data(rows(), seed=1).source["sha256"]
    assert (first.train, first.dev, first.test) == (second.train, second.dev, second.test)


def test_folder_with_all(tmp_path: Path) -> None:
    saved(tmp_path / "all.csv", rows())
    (tmp_path / "README.md").write_text("notes")
    assert sizes(load_data(tmp_path)) == (32, 4, 4)


@pytest.mark.parametrize("dev", ["dev", "validation", "valid", "val"])
def test_folder_with_all_parts_is_taken_as_given(tmp_path: Path, dev: str) -> None:
    saved(tmp_path / "train.csv", rows(20))
    saved(tmp_path / f"{dev}.jsonl", rows(6, "dev"))
    saved(tmp_path / "test.jsonl", rows(4, "test"))
    data = load_data(tmp_path, seed=5)
    assert sizes(data) == (20, 6, 4)
    assert data.source["split"] == "as given"
    assert data.source["files"] == {"train": "train.csv", "dev": f"{dev}.jsonl", "test": "test.jsonl"}


def test_dev_is_held_out_where_it_is_missing() -> None:
    data = load_data({"train": rows(40), "test": rows(6, "test")})
    assert sizes(data) == (36, 4, 6)
    assert data.source["split"].startswith("dev is a tenth of train")


def test_dev_is_the_test_where_test_is_missing_or_hidden() -> None:
    without = load_data({"train": rows(40), "dev": rows(6, "dev")})
    hidden = load_data({"train": rows(40), "dev": rows(6, "dev"), "test": [{"text": "x", "label": None}] * 3})
    unlabelled = load_data({"train": rows(40), "dev": rows(6, "dev"), "test": [{"text": "x"}] * 3})
    for data in (without, hidden, unlabelled):
        assert sizes(data) == (36, 4, 6)
        assert {example.text.split()[0] for example in data.test} == {"dev"}
    assert without.source["split"].startswith("no test; the given dev is test")
    assert hidden.source["split"].startswith("test labels are hidden; the given dev is test")


def test_train_alone_is_split() -> None:
    assert sizes(load_data({"train": rows(40), "test": [{"text": "x", "label": ""}]})) == (32, 4, 4)


def test_equal_texts_do_not_cross() -> None:
    data = load_data(rows(40) + [{**row, "text": row["text"].upper()} for row in rows(40)])
    texts = [{same_text(example) for example in part} for part in (data.train, data.dev, data.test)]
    assert sum(map(len, texts)) == 40


def test_python_objects() -> None:
    tuples = [(f"text {number}", "ab"[number % 2]) for number in range(20)]
    expected = load_data(tuples)
    assert load_data([Example(text, None, label) for text, label in tuples]) == expected
    assert load_data({"text": text, "label": label} for text, label in tuples) == expected  # type: ignore[arg-type]
    triples = load_data([(text, f"second {text}", label) for text, label in tuples])
    assert triples.pairs
    assert triples == load_data([Example(text, f"second {text}", label) for text, label in tuples])


def test_mapping_of_files(tmp_path: Path) -> None:
    train = saved(tmp_path / "train_part.jsonl", rows(20))
    dev = saved(tmp_path / "dev_part.csv", rows(10, "dev"))
    data = load_data({"train": train, "dev": str(dev)})
    assert sizes(data) == (18, 2, 10)
    assert data.source["files"] == {"train": str(train), "dev": str(dev)}


def test_complaints_about_sources(tmp_path: Path) -> None:
    assert "cannot read data from a int" in complaint(3)
    assert "the list, item 1: expected an Example" in complaint([3])
    assert "no label column" in complaint(["just a text"] * 10)
    assert "unknown part 'tset'" in complaint({"train": rows(), "tset": rows()})
    assert "train: expected a list of examples or the path" in complaint({"train": 3})
    assert "no train part; found dev" in complaint({"dev": rows()})
    assert "has the parts all, train. Expected only all" in complaint({"train": rows(), "all": rows()})
    assert "dev: no examples" in complaint({"train": rows(), "dev": []})
    assert "too few examples: 6" in complaint({"train": rows(4), "dev": rows(2)})
    assert "too few different texts to split" in complaint([("same", "ab"[number % 2]) for number in range(30)])
    saved(tmp_path / "reviews.jsonl", rows())
    message = complaint(tmp_path)
    assert "no data files with a known name" in message
    assert "found reviews.jsonl" in message
    saved(tmp_path / "train.jsonl", rows())
    saved(tmp_path / "train.csv", rows())
    assert "more than one train part" in complaint(tmp_path)


def test_a_mistyped_path_is_no_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "reviews.csv", rows())
    monkeypatch.chdir(tmp_path)
    assert "Did you mean reviews.csv?" in complaint("review.csv")
    assert "Did you mean reviews.csv? For a data set of the hub, write hub:reviews" in complaint("reviews")
    (tmp_path / "folder").mkdir()
    assert "folder/cola does not exist" in complaint("folder/cola")
    assert "neither does the folder" in complaint("no/such.csv")
    assert "does not exist" in complaint(Path("owner/name"))
    assert "does not name a hub data set" in complaint("hub:a/b/c")


# Limits


def test_limit_is_stratified_and_seeded() -> None:
    content = rows(100)
    data = load_data(content, limit=20, seed=3)
    assert sizes(data) == (20, 10, 10)
    assert Counter(example.label for example in data.train) == {"a": 10, "b": 10}
    assert data == load_data(content, limit=20, seed=3)
    assert data.dev == load_data(content, seed=3).dev
    assert data.source["limit"] == 20
    assert sizes(load_data(content, limit=1000)) == (80, 10, 10)
    assert "limit=0 leaves no training examples" in complaint(content, limit=0)
    assert "limit=1 is less than the number of labels, 2" in complaint(content, limit=1)


# Without training


def test_examples_to_measure_on(tmp_path: Path) -> None:
    task: dict[str, Any] = {"kind": "label", "labels": ("a", "b")}
    hidden: Rows = [{"text": "x"}] * 3
    assert len(load_examples(rows(3), **task)) == 3
    assert len(load_examples({"train": rows(9), "dev": rows(2), "test": rows(3)}, **task)) == 3
    assert len(load_examples({"train": rows(9), "dev": rows(2), "test": hidden}, **task)) == 2
    assert load_examples(saved(tmp_path / "a.csv", rows(1)), **task) == [Example("text 0", None, "a")]
    with pytest.raises(DataError, match="only a train part"):
        load_examples({"train": rows(9)}, **task)
    with pytest.raises(DataError, match=r"test, item 1, column 'label': no label \(3 of 3"):
        load_examples({"train": rows(9), "test": hidden}, **task)
    with pytest.raises(DataError, match="item 2, column 'label': label 'b' does not occur in training"):
        load_examples(rows(3), kind="label", labels=("a", "c"))
    with pytest.raises(DataError, match="test: no examples"):
        load_examples({"train": rows(9), "test": []}, **task)


def test_texts_alone(tmp_path: Path) -> None:
    single = saved(tmp_path / "a.jsonl", [{"text": "x", "other": "o"}, {"text": "y"}])
    pairs = saved(tmp_path / "b.csv", [{"premise": "x", "hypothesis": "y"}])
    assert load_texts(single) == ["x", "y"]
    assert load_texts(pairs) == [("x", "y")]
    assert load_texts(pairs, text="premise") == ["x"]
    with pytest.raises(DataError, match=r"a\.jsonl, line 2, column 'other': the text is empty"):
        load_texts(single, text="other")


# Real data


@pytest.mark.parametrize(
    ("name", "kind", "pairs", "test"),
    [
        ("glue/cola", "label", False, 1043),
        ("glue/rte", "label", True, 277),
        ("glue/stsb", "score", True, 1379),
        ("extra/sms_spam", "label", False, 557),
    ],
)
def test_real_data(name: str, kind: str, pairs: bool, test: int) -> None:
    folder = Path(os.environ.get("INTARSIA_DATA", "no such folder")) / name
    if not folder.is_dir():
        pytest.skip("INTARSIA_DATA does not name a folder with this data set")
    data = load_data(folder)
    assert (data.kind, data.pairs, len(data.test)) == (kind, pairs, test)


def test_importing_is_cheap() -> None:
    import subprocess
    import sys

    code = (
        "import sys, intarsia.tasks;"
        "print([name for name in ('numpy', 'torch', 'pyarrow', 'datasets', 'sklearn', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
