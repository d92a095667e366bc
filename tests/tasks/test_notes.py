"""What a reader of data is told: contradictions, near-equal names, labels with one row, words for missing labels."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from intarsia.errors import IntarsiaWarning
from intarsia.tasks import load_data
from intarsia.tasks.notes import imbalance

ROWS = [(f"text number {i}", "good" if i % 2 else "bad") for i in range(40)]


def notes(rows: list[tuple[str, object]], **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = load_data(rows, **options)  # type: ignore[arg-type]
    found = [str(warning.message) for warning in caught if warning.category is IntarsiaWarning]
    assert data.source.get("notes", []) == found
    return found


def test_clean_data_has_no_notes() -> None:
    assert notes(ROWS) == []


def test_contradictory_labels_are_named_with_their_rows() -> None:
    (note,) = notes([*ROWS, ("Text  number 3", "bad")])
    assert note == (
        "1 text has contradictory labels, 'text number 3': 'good' (the list, item 4) and 'bad' (the list, item 41). "
        "No model can answer both; correct the wrong ones."
    )
    several = notes([*ROWS, *((text, "bad") for text, label in ROWS[:8] if label == "good"), ("x" * 90, "bad")])
    assert several[0].startswith("4 texts have contradictory labels, for instance 'text number 1'")


def test_near_equal_names() -> None:
    found = notes([*ROWS, ("one", "Good"), ("two", "GOOD"), ("three", "Good"), ("four", "GOOD")])
    assert found == [
        "the labels 'GOOD' (2 rows) and 'Good' (2 rows) and 'good' (20 rows) differ only in case or punctuation. If "
        "they are one label, write them alike."
    ]


def test_a_label_with_one_row(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in [*ROWS, ("odd", "spare")]))
    with pytest.warns(IntarsiaWarning, match=r"the label 'spare' \(.*x\.csv, line 42\) has only one row"):
        load_data(file)


@pytest.mark.parametrize("word", ["NaN", "NA", "n/a", "null"])
def test_words_for_a_missing_label(word: str) -> None:
    (note,) = notes([*ROWS, ("one", word), ("two", word)])
    assert note.startswith(
        f"2 rows with '{word}' in the column 'label' (first: the list, item 41): it is read as a label"
    )


def test_several_labels_and_scores() -> None:
    rows = [(text, [label, "x"]) for text, label in ROWS]
    assert notes([*rows, ("text number 3", ["bad"])])[0].startswith("1 text has contradictory labels, 'text number 3'")
    assert notes([(text, i / 7) for i, (text, _) in enumerate(ROWS)] + [("text number 3", 9.5)]) == []


def test_a_label_that_dominates() -> None:
    rows = [(f"text {i}", "rare" if i % 10 == 0 else "usual") for i in range(100)]
    note = imbalance(load_data(rows))
    assert note is not None and note.startswith("90% of the training rows have the label 'usual'")
    assert "--metric f1-macro" in note and "--class-weights balanced" in note
    assert imbalance(load_data(ROWS)) is None
