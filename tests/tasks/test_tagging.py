"""Words and their tags: rows, alignment, entities, scores, bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.errors import DataError
from intarsia.tasks import load_data
from intarsia.tasks.data import load_examples, load_sentences
from intarsia.tasks.entities import Entity, entities, has_entities
from intarsia.tasks.examples import Sentence
from intarsia.tasks.metrics import bootstrap_ratio, check_metric, default_metric
from intarsia.tasks.tagging import NO_TAG, Tags
from tests.support.families import WORDS, tiny_with_words

TAGS = ("B-X", "I-X", "O")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def sentence(words: int) -> Sentence:
    return Sentence.of(tuple((WORDS[4:] * 9)[:words]), tuple(TAGS[i % 3] for i in range(words)))


# What conlleval says of each; the last three are not well formed.
@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-PER I-PER O B-LOC", [("PER", 1, 3), ("LOC", 4, 5)]),
        ("I-PER I-PER O I-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),  # IOB1
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),  # IOB1: B only between two of a type
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-A I-B", [("A", 0, 1), ("B", 1, 2)]),
        ("S-A B-A E-A S-B", [("A", 0, 1), ("A", 1, 3), ("B", 3, 4)]),  # BIOES
        ("U-A B-A I-A L-A", [("A", 0, 1), ("A", 1, 4)]),  # BILOU
        ("O O", []),
        ("O I-A I-A O", [("A", 1, 3)]),
        ("E-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("O E-A E-A", [("A", 1, 2), ("A", 2, 3)]),
    ],
)
def test_entities_are_those_of_the_official_evaluation(tags: str, found: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == [Entity(*one) for one in found]


def test_entity_tags_are_known_by_their_look() -> None:
    assert has_entities(["O", "B-PER", "I-PER"]) and has_entities(["O", "S-a-b"])
    assert not has_entities(["NOUN", "VERB"]) and not has_entities(["O"]) and not has_entities([])
    assert default_metric("tags", ["O", "B-X"]) == "f1-entities" and default_metric("tags", ["NOUN", "X"]) == "accuracy"
    with pytest.raises(DataError, match="needs tags such as B-PER"):
        check_metric("f1-entities", "tags", ["NOUN", "X"])
    with pytest.raises(DataError, match="does not apply to tags"):
        check_metric("matthews", "tags", ["NOUN", "X"])


def test_a_row_without_a_tagged_word_asks_for_nothing() -> None:
    logits = torch.randn(5, 3, requires_grad=True)
    rows = [Segment([1, 2]), Segment([3, 4, 5])]
    task_kind, none = Tags("tags", ("a", "b", "c")), torch.full((2, 3), NO_TAG)
    assert task_kind.loss(logits, none, rows).item() == 0.0
    some = none.clone()
    some[1, 2] = 1
    expected = torch.nn.functional.cross_entropy(logits[4:], torch.tensor([1]))
    assert torch.equal(task_kind.loss(logits, some, rows), expected)


def test_a_words_first_sub_word_carries_its_tag() -> None:
    embedded = Encoder.load("minilm")
    task_kind = Tags("tags", TAGS)
    example = Sentence.of(("Unbelievably", "\u200b", "good", "(", "sic", ")"), ("O", "B-X", "I-X", "O", "O", "O"))
    inputs = task_kind.inputs([example], embedded, 128)
    tokens = embedded.tokenizer.convert_ids_to_tokens(list(inputs.segments[0].ids))
    carrying = [tokens[place] for place in inputs.places[0][:, 1]]
    assert inputs.places[0][:, 0].tolist() == list(range(6))
    assert carrying[1:] == ["[UNK]", "good", "(", "sic", ")"]  # what the tokenizer drops is a word all the same
    assert tokens.index(carrying[0]) == 1 and tokens[2].startswith("##")
    targets = task_kind.row_targets([example], inputs)[0].tolist()
    assert [TAGS[t] for t in targets if t != NO_TAG] == list(example.label or ())  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [1, 13, 14, 15, 27, 57])
def test_every_word_of_a_long_sentence_is_in_one_place(encoder: Encoder, words: int) -> None:
    example, task_kind = sentence(words), Tags("tags", TAGS)
    inputs = task_kind.inputs([example], encoder, 16)
    assert all(len(s.ids) <= 16 and s.ids[0] == 2 and s.ids[-1] == 3 for s in inputs.segments)
    assert [w for places in inputs.places for w in places[:, 0]] == list(range(words))
    for segment, places in zip(inputs.segments, inputs.places, strict=True):
        assert [WORDS[segment.ids[t]] for t in places[:, 1]] == [example.words[w] for w in places[:, 0]]
    predictions = []
    for segment, places in zip(inputs.segments, inputs.places, strict=True):
        row = np.zeros((len(segment.ids), 3))
        row[places[:, 1], places[:, 0] % 3] = 1.0
        predictions.append(row)
    assert [tag for tag, _ in task_kind.tagged([example], inputs, predictions)[0]] == list(example.label or ())  # type: ignore[arg-type]
    assert task_kind.measure("accuracy", [example], inputs, predictions, 0).value == 1.0


def test_training_counts_the_words_that_it_leaves_out(encoder: Encoder) -> None:
    with pytest.warns(UserWarning, match="1 of 2 training sentences .* 6 in all"):
        inputs = Tags("tags", TAGS).inputs([sentence(20), sentence(3)], encoder, 16, training=True)
    assert inputs.left_out == 6 and [len(s.ids) for s in inputs.segments] == [16, 5]


def test_a_word_longer_than_a_row_is_cut() -> None:
    embedded = Encoder.load("minilm")
    example = Sentence.of(("good", "x7q" * 30, "film"), ("O", "O", "O"))
    inputs = Tags("tags", TAGS).inputs([example], embedded, 8)
    assert [w for places in inputs.places for w in places[:, 0]] == [0, 1, 2]
    assert all(len(s.ids) <= 8 for s in inputs.segments)


def test_the_score_is_over_all_words_and_entities() -> None:
    assert bootstrap_ratio(np.array([[2.0, 4.0], [0.0, 2.0], [1.0, 1.0]]), resamples=0).value == pytest.approx(3 / 7)
    interval = bootstrap_ratio(np.array([[1.0, 1.0]] * 50 + [[0.0, 1.0]] * 50))
    assert interval.low < 0.5 == interval.value < interval.high
    assert bootstrap_ratio(np.zeros((3, 2))).value == 0.0


def rows(count: int = 30) -> list[dict[str, list[str]]]:
    return [{"tokens": ["the", f"w{i}"], "tags": ["DET", "NOUN" if i % 2 else "VERB"]} for i in range(count)]


def test_files_of_tokens_and_tags(tmp_path: Path) -> None:
    path = tmp_path / "pos.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    data = load_data(path)
    assert (data.kind, data.labels, data.pairs) == ("tags", ("DET", "NOUN", "VERB"), False)
    assert len(data.train) + len(data.dev) + len(data.test) == 30
    assert isinstance(data.train[0], Sentence) and data.train[0].words[0] == "the"
    assert load_data([*data.train, *data.dev, *data.test]).labels == data.labels
    assert len(load_examples(path, kind="tags", labels=data.labels)) == 30
    assert load_sentences(path)[3] == ("the", "w3")
    table = tmp_path / "pos.tsv"
    table.write_text("tokens\ttags\n" + "".join(f"the w{i}\tDET {'NOUN' if i % 2 else 'VERB'}\n" for i in range(30)))
    assert load_data(table).train == data.train


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["DET"]}, "line 31, column 'tags': 2 words and 1 tags"),
        ({"tokens": ["a", ""], "tags": ["DET", "DET"]}, "item 2 is ''"),
        ({"tokens": [], "tags": []}, "the list is empty"),
        ({"tokens": 5, "tags": ["DET"]}, "expected a list of words, found 5"),
        ({"tokens": ["a"], "tags": None}, "no label"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    path = tmp_path / "pos.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows(), wrong]))
    with pytest.raises(DataError, match=message):
        load_data(path)


def test_one_tag_is_nothing_to_learn_and_unknown_ones_are_refused() -> None:
    with pytest.raises(DataError, match="has the label 'DET'"):
        load_data([{"tokens": [f"w{i}"], "tags": ["DET"]} for i in range(20)])
    with pytest.raises(DataError, match="label 'X' does not occur in training"):
        load_data({"train": rows(), "dev": [{"tokens": ["a"], "tags": ["X"]}], "test": rows(3)})


@pytest.mark.skipif(not os.environ.get("INTARSIA_DATA"), reason="needs a folder with real data")
@pytest.mark.parametrize(("name", "metric"), [("ner/conll2003_en", "f1-entities"), ("udpos/en", "accuracy")])
def test_real_tasks_load(name: str, metric: str) -> None:
    from intarsia.tasks import suites

    data = suites.load(name, limit=200, partial=True)
    assert data.kind == "tags" and len(data.train) == 200 and default_metric(data.kind, data.labels) == metric
    task_kind = Tags("tags", data.labels)
    inputs = task_kind.inputs(data.dev, Encoder.load("minilm"), 64)
    assert sum(len(places) for places in inputs.places) == sum(len(e.text.split(" ")) for e in data.dev)
