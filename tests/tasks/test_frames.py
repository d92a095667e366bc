"""pandas, NumPy, Arrow, Hugging Face, dicts of lists and (X, y) as data and as texts of a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intarsia.errors import DataError
from intarsia.tasks import load_data
from intarsia.tasks.data import load_examples
from intarsia.tasks.requests import texts_of

pd = pytest.importorskip("pandas")
TEXTS = [f"text {number}" for number in range(40)]
LABELS = ["ab"[number % 2] for number in range(40)]


def frame(**more: Any) -> Any:
    return pd.DataFrame({"text": TEXTS, "label": LABELS, **more})


def complaint(source: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_data(source, **options)
    return str(caught.value)


def dataset() -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    return datasets.Dataset.from_dict({"text": TEXTS, "label": [number % 2 for number in range(40)]}, features=features)


SOURCES = {
    "rows": lambda: [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)],
    "tuples": lambda: list(zip(TEXTS, LABELS, strict=True)),
    "lists": lambda: [list(row) for row in zip(TEXTS, LABELS, strict=True)],
    "generator": lambda: (row for row in zip(TEXTS, LABELS, strict=True)),
    "frame": frame,
    "frame with categories": lambda: frame().astype({"label": "category"}),
    "frame of objects": lambda: frame().astype(object),
    "frame with another index": lambda: frame().set_index(pd.Index([f"row{i}" for i in range(40)])),
    "dict of lists": lambda: {"text": TEXTS, "label": LABELS},
    "dict of arrays": lambda: {"text": np.array(TEXTS), "label": pd.Series(LABELS)},
    "dict of tuples": lambda: {"text": tuple(TEXTS), "label": tuple(LABELS)},
    "X and y as lists": lambda: (TEXTS, LABELS),
    "X and y as tuples": lambda: (tuple(TEXTS), tuple(LABELS)),
    "X and y as columns": lambda: (frame()["text"], frame()["label"]),
    "X and y as arrays": lambda: (np.array(TEXTS), np.array(LABELS)),
    "X as a frame": lambda: (frame()[["text"]], frame()["label"]),
    "X of one column": lambda: (np.array(TEXTS)[:, None], np.array(LABELS)[:, None]),
    "rows of an array": lambda: np.array([TEXTS, LABELS]).T,
    "Hugging Face": dataset,
    "Hugging Face, streamed": lambda: dataset().to_iterable_dataset(),
    "Hugging Face slice": lambda: {**dataset()[:], "label": LABELS},
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_form_of_the_same_data_is_the_same_task(name: str) -> None:
    data, expected = load_data(SOURCES[name]()), load_data(SOURCES["rows"]())
    assert (data.kind, data.labels) == ("label", ("a", "b"))
    assert data.train == expected.train and data.dev == expected.dev and data.test == expected.test


def test_any_table_that_speaks_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    data = load_data(pa.table({"text": TEXTS, "label": LABELS}))
    assert data.train == load_data(SOURCES["rows"]()).train


def test_parts_may_be_frames_and_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    expected = load_data({"train": SOURCES["rows"](), "test": [("new", "a")]})
    assert load_data({"train": frame(), "test": frame(text=[f"new {i}" for i in range(40)])}).labels == ("a", "b")
    parts = datasets.DatasetDict({"train": dataset(), "test": dataset(), "unsupervised": dataset()})
    assert len(load_data(parts).train) == len(expected.train)


def test_the_kinds_follow_from_the_labels_of_y() -> None:
    assert load_data((TEXTS, [number / 7 for number in range(40)])).kind == "score"
    assert load_data((TEXTS, [1, 2] * 20)).labels == ("1", "2")
    assert load_data((TEXTS, [["a"], []] * 20)).kind == "labels"
    named = load_data((TEXTS, pd.DataFrame({"urgent": [0, 1] * 20, "rude": [1, 1] * 20})))
    assert (named.kind, named.labels) == ("labels", ("rude", "urgent"))
    pairs = load_data(([(text, "other") for text in TEXTS], LABELS))
    assert pairs.pairs and pairs.train[0].pair == "other"
    tagged = load_data(([text.split() for text in TEXTS], [["O", "N"]] * 40))
    assert (tagged.kind, tagged.labels) == ("tags", ("N", "O"))


def test_a_frame_of_tokens_as_pandas_reads_it_from_parquet() -> None:
    table = pd.DataFrame({"tokens": [np.array(text.split()) for text in TEXTS], "tags": [np.array(["O", "N"])] * 40})
    assert load_data(table).kind == "tags"


def test_whole_numbers_next_to_missing_values_stay_whole() -> None:
    labels = pd.Series([1, 2] * 20).astype("float64")
    assert load_data((TEXTS, labels)).labels == ("1", "2")
    assert load_data((TEXTS, labels.astype("Int64"))).labels == ("1", "2")


def test_the_data_sets_of_scikit_learn() -> None:
    from sklearn.utils import Bunch

    bunch = Bunch(data=TEXTS, target=np.array([0, 1] * 20), target_names=["alt.atheism", "sci.space"], DESCR="…")
    assert load_data(bunch).labels == ("alt.atheism", "sci.space")


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_missing_cells_are_named_by_their_index(missing: Any) -> None:
    broken = frame(text=pd.Series([*TEXTS[:-1], missing], dtype=object)).set_index(pd.RangeIndex(100, 140))
    assert complaint(broken).startswith("the DataFrame, index 139, column 'text': the text is empty")
    unlabelled = frame(label=pd.Series([*LABELS[:-1], missing], dtype=object))
    assert complaint(unlabelled).startswith("the DataFrame, index 39, column 'label': no label")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.zeros((40, 3)), "a ndarray of float64 (40 × 3) holds numbers"),
        ((np.zeros((40, 3)), LABELS), "holds numbers"),
        (np.zeros((2, 2, 2), dtype=object), "has 3 dimensions"),
        (7, "cannot read data from a int"),
        (None, "cannot read data from a NoneType"),
        (b"text", "cannot read data from a bytes"),
        ({"text": "one", "label": "a"}, "unknown part 'text'"),
        ({"text": TEXTS, "label": LABELS[:-1]}, "the columns have different lengths (text 40, label 39)"),
        ((TEXTS, LABELS[:-1]), "X has 40 rows and y has 39"),
        ((TEXTS, 3.0), "found 40 items"),
        ((frame(), LABELS), "X has a column 'label' beside the labels in y"),
        (pd.DataFrame([[1, 2]] * 40, columns=["text", "text"]), "has the column 'text' more than once"),
        (frame(text=range(40)), "index 0, column 'text': expected a text, found 0 (int)"),
        (pd.DataFrame([TEXTS, LABELS]).T, "no text column. Columns found: '0', '1'"),
        ([object()] * 20, "expected an Example, a mapping"),
        ([["one", "two", "three", "four"]] * 20, "found 4 items"),
        ((TEXTS, pd.DataFrame({"a": [1, 2] * 20, "b": [0, 1] * 20})), "Expected one column of labels, or columns"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_type(source: Any, words: str) -> None:
    assert words in complaint(source)


def test_the_names_of_columns_are_not_texts() -> None:
    assert all(example.text in TEXTS for example in load_data(frame(), kind="words").train)


def test_evaluation_takes_the_same_forms() -> None:
    for source in (frame(), (TEXTS, LABELS), dataset(), {"text": TEXTS, "label": LABELS}):
        assert len(load_examples(source, kind="label", labels=("a", "b"))) == 40


def test_evaluation_reads_the_columns_that_the_task_was_learned_from() -> None:
    table = frame(review=["good"] * 40, stars=["b"] * 40)
    learned_from = {"text": "review", "pair": None, "label": "stars"}
    found = load_examples(table, kind="label", labels=("a", "b"), learned_from=learned_from)
    assert {(example.text, example.label) for example in found} == {("good", "b")}
    other = load_examples(frame(), kind="label", labels=("a", "b"), learned_from=learned_from)
    assert [example.text for example in other] == TEXTS


# The texts of a request.


def test_columns_and_tables_are_texts() -> None:
    pairs = pd.DataFrame({"text_a": ["x", "y"], "text_b": ["u", "v"], "id": [1, 2]})
    assert texts_of(frame()["text"], "label") == texts_of(np.array(TEXTS), "label") == TEXTS
    assert texts_of(frame(), "label") == texts_of(dataset(), "label") == texts_of(dataset()["text"], "label") == TEXTS
    assert texts_of(pairs, "label") == [("x", "u"), ("y", "v")]
    assert texts_of((text for text in TEXTS), "label") == TEXTS
    assert texts_of(pd.Series(["a", None]), "label") == ["a", None]
    assert texts_of([{"text": "a"}, {"text": "b"}], "label") == ["a", "b"]


def test_a_table_is_read_as_the_task_was_learned() -> None:
    table = pd.DataFrame({"text": ["no"], "review": ["yes"], "stars": [5]})
    assert texts_of(table, "label", {"text": "review", "pair": None}) == ["yes"]
    assert texts_of(pd.DataFrame({"anything": ["yes"]}), "label", {"text": "review", "pair": None}) == ["yes"]
    with pytest.raises(DataError, match="The task was learned from 'review'"):
        texts_of(pd.DataFrame({"a": ["x"], "b": ["y"]}), "label", {"text": "review", "pair": None})
    questions = pd.DataFrame({"question": ["who?"], "context": ["he"], "id": ["1"]})
    assert texts_of(questions, "span") == [("who?", "he")]
    assert texts_of(pd.DataFrame({"tokens": [["a", "b"]], "id": [1]}), "tags") == [["a", "b"]]


@pytest.mark.parametrize("texts", [None, "one text", b"bytes", 3, np.zeros(3), {"text": 1}])
def test_a_request_without_texts_is_refused(texts: Any) -> None:
    with pytest.raises(DataError, match="expected a list of texts"):
        texts_of(texts, "label")
