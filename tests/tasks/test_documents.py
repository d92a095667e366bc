"""Plain text as data: lines, texts, parts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from intarsia.errors import DataError
from intarsia.tasks import load_data
from intarsia.tasks.data import load_examples, load_texts
from intarsia.tasks.documents import documents
from intarsia.tasks.tables import RawTable
from tests.support.token_tasks import topics


def joined(*lines: str) -> list[tuple[int, str]]:
    table = documents(
        RawTable("t.txt", "line", range(1, len(lines) + 1), [{"text": line} for line in lines], lines=True)
    )
    return [(number, row["text"]) for number, row in zip(table.numbers, table.rows, strict=True)]


def test_a_blank_line_ends_a_text() -> None:
    assert joined("", "one", "two", " ", "", "three", "") == [(2, "one\ntwo"), (6, "three")]


def test_without_blank_lines_each_line_is_a_text() -> None:
    assert joined("one", "two") == [(1, "one"), (2, "two")]


def test_headings_of_wikitext_stay_with_what_is_below_them() -> None:
    found = joined(
        "", "= Homarus =", "", "A lobster .", "It is blue .", "", "= = Life = =", "", "= = = Moult = = =", "", "Yes ."
    )  # fmt: skip
    assert found == [(2, "= Homarus =\nA lobster .\nIt is blue ."), (7, "= = Life = =\n= = = Moult = = =\nYes .")]


def test_a_text_file_is_split_and_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("\n\n".join(topics(50)))
    whole = load_data(tmp_path / "all.txt", kind="words")
    assert (whole.kind, whole.labels, whole.pairs, whole.asks) == ("words", (), False, "hidden words")
    assert sum(whole.source["rows"].values()) == 50 and whole.source["rows"]["train"] >= 38
    assert whole.source["split"] == "80/10/10, equal texts kept together" and whole.source["columns"]["label"] is None
    again = load_data(topics(50), kind="words")
    assert again.source["sha256"] == whole.source["sha256"] and again.test == whole.test
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("\n".join(topics(20, len(name))))
    (tmp_path / "all.txt").unlink()
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text, "label": None}) + "\n" for text in topics(5))
    parts = load_data(tmp_path, kind="words", limit=12)
    assert parts.source["rows"] == {"train": 12, "dev": 4 + 8, "test": 5} and parts.source["split"] == "as given"
    assert [e.text for e in load_examples(tmp_path, kind="words", labels=())] == topics(5)


def test_a_line_is_a_text_where_a_task_is_asked(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("one [MASK]\n\n two\n")
    assert load_texts(tmp_path / "some.txt") == ["one [MASK]", "two"]


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (topics(20), {}, "no label column.*or set kind='words'"),
        (topics(3), {"kind": "words"}, "too few examples: 3"),
        ([*topics(20), " "], {"kind": "words"}, "item 21, column 'text': the text is empty"),
        ([{"text": t, "y": 1} for t in topics(20)], {"kind": "words", "label": "y"}, "takes plain texts only.*not 'y'"),
        ([(t, t, "x") for t in topics(20)], {"kind": "words"}, "takes single texts, not pairs"),
    ],
)
def test_complaints(data: object, options: dict[str, str], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        load_data(data, **options)  # type: ignore[arg-type]


def test_wikitext(data_folder: Path) -> None:
    data = load_data(data_folder / "corpora" / "wikitext2", kind="words")
    assert data.source["rows"] == {"train": 5487, "dev": 541, "test": 616}
    assert data.test[0].text.startswith("= Robert Boulter =\nRobert Boulter is an English film")
