"""Tasks from a hub that is never asked over the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import DataError
from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites import fetch, load
from intarsia.tasks.suites.squad import read_squad


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None], Any]:
    import datasets

    known: dict[tuple[str, str | None], Any] = {}

    def load_dataset(name: str, config: str | None, revision: str | None = None) -> Any:
        found = known[name, config]
        if isinstance(found, Exception):
            raise found
        assert (revision is None) == (name != "eriktks/conll2003")
        return found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return known


def pairs(labels: list[int], names: list[str]) -> Any:
    from datasets import ClassLabel, Dataset, Features, Value

    count = range(len(labels))
    content = {
        "sentence1": [f"one {n}" for n in count],
        "sentence2": [f"two {n} " for n in count],
        "label": labels,
        "idx": list(count),
    }
    text = Value("string")
    features = {"sentence1": text, "sentence2": text, "label": ClassLabel(names=names), "idx": Value("int32")}
    return Dataset.from_dict(content, features=Features(features))


def test_class_numbers_become_names_and_hidden_labels_none(hub: dict[Any, Any], tmp_path: Path) -> None:
    names = ["not_entailment", "entailment"]
    sizes = {"train": 635, "validation": 71}
    parts = {split: pairs([n % 2 for n in range(count)], names) for split, count in sizes.items()}
    hub["nyu-mll/glue", "wnli"] = {**parts, "test": pairs([-1] * 146, names)}
    (one,) = fetch("glue/wnli", "hub", tmp_path)
    assert one.outcome == "whole"
    train = [row for _, row in read_rows(tmp_path / "glue/wnli/train.jsonl.zst")]
    assert train[1] == {"label": "entailment", "text_a": "one 1", "text_b": "two 1 "}
    assert {row["label"] for _, row in read_rows(tmp_path / "glue/wnli/test.jsonl.zst")} == {None}
    data = load("glue/wnli", tmp_path)
    assert len(data.test) == 71 and data.source["split"].startswith("test labels are hidden")


def test_scores_and_the_second_sets_of_mnli(hub: dict[Any, Any], tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    text = Value("string")
    features = Features({"sentence1": text, "sentence2": text, "label": Value("float32"), "idx": Value("int32")})

    def scores(values: list[float]) -> Any:
        rows = {"sentence1": ["a"] * len(values), "sentence2": ["b"] * len(values), "label": values}
        return Dataset.from_dict({**rows, "idx": list(range(len(values)))}, features=features)

    hub["nyu-mll/glue", "stsb"] = {"train": scores([2.5, 0.0]), "validation": scores([5.0]), "test": scores([-1.0] * 3)}
    (one,) = fetch("glue/stsb", "hub", tmp_path)
    assert one.outcome == "partial"
    labels = [row["label"] for _, row in read_rows(tmp_path / "glue_partial/stsb/train.jsonl.zst")]
    hidden = [row["label"] for _, row in read_rows(tmp_path / "glue_partial/stsb/test.jsonl.zst")]
    assert labels == [2.5, 0.0] and hidden == [None] * 3

    classes = ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = Features({"premise": text, "hypothesis": text, "label": classes, "idx": Value("int32")})

    def inferences(count: int, label: int = 1) -> Any:
        rows = {"premise": ["p"] * count, "hypothesis": ["h"] * count, "label": [label] * count}
        return Dataset.from_dict({**rows, "idx": list(range(count))}, features=features)

    names = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
    hub["nyu-mll/glue", "mnli"] = {
        name: inferences(count, -1 if "test" in name else 1) for count, name in enumerate(names, 1)
    }
    (one,) = fetch("glue/mnli", "hub", tmp_path)
    assert one.rows == {"train": 1, "dev": 2, "dev_mismatched": 3, "test": 4, "test_mismatched": 5}


def test_spans_and_tags(hub: dict[Any, Any], tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    context = "The Rhine flows."
    row = {"title": "Rhine", "context": context}
    answered = {"text": ["The Rhine"], "answer_start": [0]}
    questions = [
        {**row, "id": "1", "question": "What flows?", "answers": answered},
        {**row, "id": "2", "question": "Who?", "answers": {"text": [], "answer_start": []}},
    ]
    hub["rajpurkar/squad_v2", None] = {"train": Dataset.from_list(questions)}
    (one,) = fetch("squad/v2.0", "hub", tmp_path)
    first, second = read_squad(tmp_path / "squad_partial/v2.0/train-v2.0.json.zst")
    assert one.rows == {"train": 2} and first.answers == ((0, "The Rhine"),) and second.impossible

    names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=names))})
    sentences = {"tokens": [["Ada", "Lovelace", "wrote"]], "ner_tags": [[1, 2, 0]]}
    hub["eriktks/conll2003", None] = {"train": Dataset.from_dict(sentences, features=features)}
    fetch("ner", "hub", tmp_path)
    ((_, sentence),) = read_rows(tmp_path / "ner_partial/conll2003_en/train.jsonl.zst")
    assert sentence["tags"] == ["B-PER", "I-PER", "O"]


def test_complaints(hub: dict[Any, Any], tmp_path: Path) -> None:
    hub["nyu-mll/glue", "cola"] = ConnectionError("Couldn't reach the Hub (OfflineModeIsEnabled)")
    with pytest.raises(DataError, match=r"cannot reach the hub for the data set 'nyu-mll/glue:cola' .*--from FOLDER"):
        fetch("glue", "hub", tmp_path)
    with pytest.raises(
        DataError, match=r"has no files of extra/emotion\. .*not on the hub .* fetch with --from FOLDER"
    ):
        fetch("extra/emotion", "hub", tmp_path)
    hub["nyu-mll/glue", "wnli"] = {"train": pairs([0, 1], ["a", "b"])}
    with pytest.raises(DataError, match=r"nyu-mll/glue:wnli \(train\), row 1: 'a' is not a label of glue/wnli"):
        fetch("glue/wnli", "hub", tmp_path)
    hub["nyu-mll/glue", "wnli"] = {"train": pairs([0, 1], ["a", "b"]).remove_columns("sentence2")}
    with pytest.raises(DataError, match=r"but not sentence2"):
        fetch("glue/wnli", "hub", tmp_path)
    hub["nyu-mll/glue", "wnli"] = {"all": pairs([0, 1], ["a", "b"])}
    with pytest.raises(DataError, match=r"has only unknown splits: all"):
        fetch("glue/wnli", "hub", tmp_path)
    assert not list(tmp_path.iterdir())
