"""Which columns are taken, what kind of labels they hold, and every complaint about either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.errors import DataError
from intarsia.tasks import Example, load_data

Rows = list[dict[str, Any]]


def rows(count: int = 40, prefix: str = "text", **more: Any) -> Rows:
    return [{"text": f"{prefix} {number}", "label": "ab"[number % 2], **more} for number in range(count)]


def labelled(labels: list[Any], column: str = "label") -> Rows:
    return [{"text": f"text {number}", column: label} for number, label in enumerate(labels)]


def complaint(source: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_data(source, **options)
    return str(caught.value)


@pytest.mark.parametrize("text", ["text", "sentence", "content", "tweet"])
@pytest.mark.parametrize("label", ["label", "labels", "class", "category", "target"])
def test_conventional_columns(text: str, label: str) -> None:
    data = load_data([{"id": row["text"], text: row["text"], label: row["label"]} for row in rows()])
    assert data.source["columns"] == {"text": text, "pair": None, "label": label}
    assert data.kind == "label"


@pytest.mark.parametrize(
    "names",
    [
        ("text_a", "text_b"),
        ("sentence1", "sentence2"),
        ("premise", "hypothesis"),
        ("question", "sentence"),
        ("question1", "question2"),
    ],
)
def test_conventional_pairs(names: tuple[str, str]) -> None:
    data = load_data([{names[0]: row["text"], names[1]: "second", "label": row["label"]} for row in rows()])
    assert (data.source["columns"]["text"], data.source["columns"]["pair"]) == names
    assert data.train[0].pair == "second"


def test_named_columns() -> None:
    content = [{"a": row["text"], "b": "second", "c": row["label"], "text": "no", "label": "no"} for row in rows()]
    assert load_data(content, text="a", label="c").train[0] == Example("text 0", None, "a")
    assert load_data(content, text="a", pair="b", label="c").train[0] == Example("text 0", "second", "a")


def test_own_names_win_over_conventional_ones() -> None:
    data = load_data(rows(target="Atheism", content="more"))
    assert data.source["columns"] == {"text": "text", "pair": None, "label": "label"}


def test_complaints_about_columns() -> None:
    there = "Columns found: 'body', 'label'"
    body = [{"body": row["text"], "label": row["label"]} for row in rows()]
    assert "no text column" in complaint(body)
    assert there in complaint(body)
    assert f"no column 'txt' for text. {there}" in complaint(body, text="txt")
    assert "no column 'x' for pair" in complaint(body, text="body", pair="x")
    assert "no column 'x' for label" in complaint(body, text="body", label="x")
    assert "pair='body' is named without text" in complaint(body, pair="body")
    assert "column 'body' cannot be both text and label" in complaint(body, text="body", label="body")
    unnamed = [{"text": row["text"], "x": row["label"]} for row in rows()]
    assert "no label column. Columns found: 'text', 'x'" in complaint(unnamed)
    twice = [{"text": row["text"], "class": row["label"], "category": row["label"]} for row in rows()]
    assert "several columns could be the label (class, category)" in complaint(twice)
    assert "several columns could be the text (text_a/text_b, text)" in complaint(rows(text_a="x", text_b="y"))
    both = [{"tweet": row["text"], "content": "x", "label": row["label"]} for row in rows()]
    assert "several columns could be the text (content, tweet)" in complaint(both)
    other = [{"sentence": row["text"], "label": row["label"]} for row in rows()]
    assert "dev: no column 'text', which the training data has" in complaint({"train": rows(), "dev": other})


@pytest.mark.parametrize(
    ("values", "kind", "first"),
    [
        (["a", "b"], "label", "a"),
        ([" a ", "b"], "label", "a"),
        ([0, 1], "label", "0"),
        ([0.0, 1.0], "label", "0"),
        (["0", "1"], "label", "0"),
        ([True, False], "label", "true"),
        ([np.int64(3), np.int64(4)], "label", "3"),
        ([2.5, 1], "score", 2.5),
        (["2.5", "1"], "score", 2.5),
        ([np.float32(0.5), np.float32(1)], "score", 0.5),
        ([["b", "a"], []], "labels", ("a", "b")),
        ([("b", "a"), ("a",)], "labels", ("a", "b")),
        ([np.array([1, 0]), np.array([2])], "labels", ("0", "1")),
    ],
)
def test_kinds_are_found(values: list[Any], kind: str, first: Any) -> None:
    data = load_data(labelled(values * 10))
    assert data.kind == kind
    assert next(example.label for example in data.train if example.text == "text 0") == first


def test_whole_numbers_in_a_score_column_are_scores() -> None:
    assert load_data(labelled([1, 2] * 10, "score")).kind == "score"
    assert load_data(labelled(["good", "bad"] * 10, "score")).kind == "label"
    assert load_data(labelled([1, 2] * 10), kind="score").train[0].label == 1.0
    assert load_data(labelled([1.5, 2] * 10), kind="label").labels == ("1.5", "2")


def test_several_labels_in_one_field() -> None:
    data = load_data(labelled(["b|a", "c"] * 10), kind="labels")
    assert data.labels == ("a", "b", "c")
    assert load_data(labelled([["b", "a"], 3] * 10)).labels == ("3", "a", "b")


def test_complaints_about_labels(tmp_path: Path) -> None:
    assert "unknown kind 'number'" in complaint(rows(), kind="number")
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "x,a\ny,b\n" * 10 + "x,\nx,a\nx,\n")
    assert "reviews.csv, line 22, column 'label': no label (2 of 23 rows have none)" in complaint(path)
    assert "dev, item 2, column 'label': no label. Give it a label, or leave such rows out" in complaint(
        {"train": rows(), "dev": [("x", "a"), ("y", None)]}
    )
    assert "test, item 2, column 'label': no label" in complaint({"train": rows(), "test": [("x", "a"), ("y", None)]})
    assert "item 2, column 'label': no label" in complaint(labelled([1.5, float("nan")] * 10))
    message = complaint(labelled([2.5, 1] * 10 + ["n/a"]))
    assert "neither all numbers nor all names: 2.5 in the list, item 1, column 'label', but 'n/a' in " in message
    assert "item 21, column 'label': 'n/a' is not a number" in complaint(
        labelled([2.5, 1] * 10 + ["n/a"]), kind="score"
    )
    assert "item 2, column 'label': inf is not a number" in complaint(labelled([1.5, float("inf")] * 10), kind="score")
    several = complaint(labelled([["a"], ["b"]] * 10), kind="label")
    assert "item 1, column 'label': several labels, expected one" in several
    assert "label '0' occurs twice" in complaint(labelled([[0, 1, 0], [1, 0, 0]] * 10))
    assert "item 1, column 'label': '' is not a label" in complaint(labelled(["a||b", "c"] * 10), kind="labels")
    assert "item 1, column 'label': {} is not a label" in complaint(labelled([{}, "a"] * 10))
    assert "every training example has the label 'a'" in complaint(labelled(["a"] * 20))
    assert "every training example has the label 1.0" in complaint(labelled([1.0] * 20), kind="score")
    assert "20 different labels in 20 rows do not look like classes" in complaint(labelled(list(range(20))))
    many = labelled([number // 2 for number in range(12)] + [6, 7])
    assert load_data(many, kind="label").labels == tuple("01234567")


def test_a_label_that_training_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + "x,a\ny,b\n" * 10)
    (tmp_path / "dev.csv").write_text("text,label\nx,a\ny,b\nz,a\nodd,A\n")
    message = complaint(tmp_path)
    assert "dev.csv, line 5, column 'label': label 'A' does not occur in training. Known labels: a, b." in message
    assert "label 'c' does not occur" in complaint(
        {"train": labelled([["a"], ["b"]] * 10), "dev": labelled([["a", "c"]])}
    )


def test_complaints_about_texts(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows(20), {"text": " ", "label": "a"}]))
    assert "reviews.jsonl, line 21, column 'text': the text is empty" in complaint(path)
    assert "item 21, column 'text': the text is empty" in complaint([*rows(20), {"label": "a"}])
    assert "item 21, column 'text_b': the text is empty" in complaint(
        [(row["text"], "x", row["label"]) for row in rows(20)] + [("x", "", "a")]
    )
    assert "expected a text, found 7 (int)" in complaint([*rows(20), (7, "a")])
    assert "half of a surrogate pair" in complaint([*rows(20), ("\ud83d", "a")])
