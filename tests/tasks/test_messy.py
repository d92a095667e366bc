"""Files as people have them: other names, spellings of one label, rows without a text or a label."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia.errors import DataError
from intarsia.tasks import load_data
from intarsia.tasks.data import load_examples

TEXTS = [f"text number {i}" for i in range(20)]


def test_usual_columns_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ID;Text;LABEL\n" + "".join(f"{i};{text};{'ab'[i % 2]}\n" for i, text in enumerate(TEXTS)))
    for named in ({}, {"text": "Text", "label": "LABEL"}, {"label": "label"}):
        data = load_data(path, **named)  # type: ignore[arg-type]
        assert data.labels == ("a", "b") and sorted(e.text for e in data.train + data.dev + data.test) == sorted(TEXTS)
    assert len(load_examples(path, kind="label", labels=("a", "b"), label="Label")) == 20
    both = [{"text": text, "Text": "other", "label": "ab"[i % 2]} for i, text in enumerate(TEXTS)]
    assert load_data(both).train[0].text != "other"


def test_the_spellings_of_one_label_are_one_label() -> None:
    ones = [1, 1.0, "1", "1.0", " 1.00 "]
    found = load_data([(text, ones[i % 5] if i % 2 else "x") for i, text in enumerate(TEXTS)])
    assert found.labels == ("1", "x")
    truths = [True, "True", "true", "TRUE"]
    found = load_data([(text, truths[i % 4] if i < 10 else "False") for i, text in enumerate(TEXTS)])
    assert found.labels == ("false", "true")
    kept = load_data([(text, ("007", "1.5.0", "v1.0")[i % 3]) for i, text in enumerate(TEXTS)])
    assert kept.labels == ("007", "1.5.0", "v1.0")


def test_a_task_with_the_old_spelling_is_evaluated_on_any() -> None:
    rows = [("a", "True"), ("b", True), ("c", "false"), ("d", "2.0"), ("e", 2)]
    found = load_examples(rows, kind="label", labels=("2.0", "False", "True"))
    assert [e.label for e in found] == ["True", "True", "False", "2.0", "2.0"]


def test_rows_without_text_or_label_are_dropped_and_counted_if_asked(tmp_path: Path) -> None:
    missing: list[tuple[object, object]] = [("", "a"), (None, "b"), ("no label", None), ("nan", float("nan")),
                                            ("word", "N/A")]  # fmt: skip
    rows = [*missing, *((text, "ab"[i % 2]) for i, text in enumerate(TEXTS))]
    with pytest.raises(DataError):
        load_data(rows)
    data = load_data(rows, drop_missing=True)
    assert data.source["dropped"] == 5 and data.labels == ("a", "b")
    assert sum(data.source["rows"].values()) == 20
    assert "dropped" not in load_data(rows[5:]).source
    path = tmp_path / "a.csv"
    path.write_text("text;label\n" + "".join(f"{text or ''};{label or ''}\n" for text, label in rows[:3] + rows[5:]))
    assert len(load_examples(path, kind="label", labels=("a", "b"), drop_missing=True)) == 20
