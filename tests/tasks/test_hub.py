"""Data sets of the hub, from a hub that is never asked over the network."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.errors import DataError
from intarsia.tasks import load_data


def complaint(source: str) -> str:
    with pytest.raises(DataError) as caught:
        load_data(source)
    return str(caught.value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None], Any]:
    """A hub that has what a test puts into it, and is never asked over the network."""
    import datasets

    known: dict[tuple[str, str | None], Any] = {}

    def load(name: str, config: str | None) -> Any:
        found = known[name, config]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(datasets, "load_dataset", load)
    return known


def hub_split(labels: list[Any], feature: Any, columns: tuple[str, ...] = ("sentence",), name: str = "label") -> Any:
    from datasets import Dataset, Features, Value

    content: dict[str, list[Any]] = {column: [f"{column} {n}" for n in range(len(labels))] for column in columns}
    features = Features({**{column: Value("string") for column in columns}, name: feature})
    return Dataset.from_dict({**content, name: labels}, features=features)


def test_hub_class_numbers_become_names_and_minus_one_is_hidden(hub: dict[Any, Any]) -> None:
    from datasets import ClassLabel

    feature, pair = ClassLabel(names=["negative", "positive"]), ("sentence1", "sentence2")
    parts = {"train": [0, 1] * 20, "validation_matched": [1, 0, 1], "test_matched": [-1, -1], "validation_other": [0]}
    hub["nyu-mll/glue", "mrpc"] = {name: hub_split(labels, feature, pair) for name, labels in parts.items()}
    data = load_data("nyu-mll/glue:mrpc")
    assert (len(data.train), len(data.dev), len(data.test)) == (36, 4, 3)
    assert data.labels == ("negative", "positive")
    assert data.pairs
    assert [example.label for example in data.test] == ["positive", "negative", "positive"]
    assert (data.source["from"], data.source["hub"], data.source["config"]) == ("hub", "nyu-mll/glue", "mrpc")
    hub["glue", "mrpc"] = hub["nyu-mll/glue", "mrpc"]
    assert load_data("hub:glue:mrpc").test == data.test


def test_hub_scores_several_labels_and_a_single_split(hub: dict[Any, Any]) -> None:
    from datasets import ClassLabel, Sequence, Value

    scores = {"train": [0.5, 4.0] * 20, "validation": [1.0, 2.0], "test": [-1.0, -1.0]}
    hub["o/scores", None] = {name: hub_split(labels, Value("float32")) for name, labels in scores.items()}
    data = load_data("o/scores")
    assert (data.kind, (len(data.train), len(data.dev), len(data.test))) == ("score", (36, 4, 2))
    several = hub_split([[0, 2], [1]] * 20, Sequence(ClassLabel(names=["x", "y", "z"])), ("text",), "labels")
    hub["o/several", None] = {"train": several}
    data = load_data("o/several")
    assert (data.kind, data.labels, (len(data.train), len(data.dev), len(data.test))) == (
        "labels",
        ("x", "y", "z"),
        (32, 4, 4),
    )


def test_complaints_about_the_hub(hub: dict[Any, Any]) -> None:
    from datasets import Value

    hub["o/offline", None] = ConnectionError("Couldn't reach 'o/offline' on the Hub (OfflineModeIsEnabled)")
    message = complaint("o/offline")
    assert "cannot reach the hub for the data set 'o/offline'" in message
    assert "Or give a local file or folder" in message
    hub["o/missing", None] = FileNotFoundError("Dataset 'o/missing' doesn't exist on the Hub")
    assert "no data set 'o/missing' on the hub, and no file or folder of that name" in complaint("o/missing")
    hub["o/many", None] = ValueError("Config name is missing.\nPlease pick one among: ['x', 'y']\nExample: ...")
    message = complaint("o/many")
    assert "cannot load the hub data set 'o/many': Config name is missing. Please pick one among: ['x', 'y']" in message
    assert "after a colon" in message
    hub["o/odd", None] = {name: hub_split(["a"], Value("string")) for name in ("part1", "part2")}
    assert "hub data set o/odd (splits part1, part2): no train part" in complaint("o/odd")
    parts = {"train": ["a", "b"] * 10, "validation": ["a", "c"]}
    hub["o/rows", None] = {name: hub_split(labels, Value("string")) for name, labels in parts.items()}
    assert "o/rows (validation), row 2, column 'label': label 'c'" in complaint("o/rows")
