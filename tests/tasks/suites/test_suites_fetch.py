"""Official files, another data folder and the hub become a data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import DataError
from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites import fetch, find, load, read_texts, status
from intarsia.tasks.suites.manifest import file_hash, read_manifest
from intarsia.tasks.suites.squad import read_squad
from intarsia.tasks.suites.tagging import TaggedSentence, check
from tests.support import official_files as official


@pytest.fixture(scope="module")
def download(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return official.glue(tmp_path_factory.mktemp("glue_data"))


@pytest.fixture(scope="module")
def data(download: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "data"
    outcomes = {one.task.name: one.outcome for one in fetch("glue", download, folder)}
    whole, absent = ("cola", "wnli", "stsb", "mrpc", "ax"), ("sst2", "qnli", "rte")
    expected = {**dict.fromkeys(whole, "whole"), **dict.fromkeys(absent, "absent"), "qqp": "partial", "mnli": "partial"}
    assert outcomes == expected
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path)]


def saved(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_glue_s_files_become_ours(data: Path) -> None:
    cola = rows(data / "glue/cola/train.jsonl.zst")
    assert len(cola) == 8551
    assert cola[1] == {"text": official.text(1), "source": "gj04", "label": "acceptable"}
    assert '"quoted' in cola[1]["text"] and "\u2028" in cola[2]["text"]
    assert rows(data / "glue/cola/test.jsonl.zst")[0] == {"text": official.text(0), "label": None}
    stsb = rows(data / "glue/stsb/train.jsonl.zst")[7]
    assert (stsb["label"], stsb["genre"]) == (1.4, "main-captions")
    assert rows(data / "glue/stsb/test.jsonl.zst")[0]["label"] is None
    mrpc = rows(data / "glue/mrpc/dev.jsonl.zst")[1]
    assert mrpc == {
        "text_a": official.text(1), "text_b": official.text(2), "label": "equivalent", "id_a": "1001", "id_b": "2001",
    }  # fmt: skip
    assert rows(data / "glue/wnli/dev.jsonl.zst")[0]["label"] == "not_entailment"
    assert len(rows(data / "glue/ax/test.jsonl.zst")) == 1104


def test_a_sample_never_has_the_official_name(data: Path) -> None:
    assert not (data / "glue/qqp").exists() and not (data / "glue/mnli").exists()
    qqp = rows(data / "glue_partial/qqp/train.jsonl.zst")
    assert len(qqp) == 40  # broken lines are left out
    assert qqp[3]["text_a"] == '"Does ""this"" end?' and qqp[3]["label"] == "duplicate"
    names = {path.name for path in (data / "glue_partial/mnli").iterdir()}
    splits = ("train", "dev", "dev_mismatched", "test", "test_mismatched")
    assert names == {f"{split}.jsonl.zst" for split in splits}
    assert len(rows(data / "glue_partial/mnli/dev_mismatched.jsonl.zst")) == 9
    assert rows(data / "glue_partial/mnli/train.jsonl.zst")[2]["label"] == "contradiction"
    assert (status(find("glue/cola"), data).state, status(find("glue/mnli"), data).state) == ("whole", "partial")


def test_the_manifest_has_rows_and_hashes(data: Path) -> None:
    entries = read_manifest(data)
    files = sorted(path for path in data.rglob("*.zst"))
    assert sorted(entries) == [path.relative_to(data).as_posix() for path in files]
    for path in files:
        entry = entries[path.relative_to(data).as_posix()]
        assert entry["sha256"] == file_hash(path) and entry["bytes"] == path.stat().st_size
        assert entry["rows"] == len(rows(path))
        assert entry["official_match"] == ("glue_partial" not in str(path))
    assert entries["glue/wnli/train.jsonl.zst"]["labels"] == {"entailment": 317, "not_entailment": 318}


def test_loading_follows_the_rules_of_load_data(data: Path) -> None:
    cola = load("glue/cola", data)
    assert (len(cola.train) + len(cola.dev), len(cola.test)) == (8551, 1043)
    assert (cola.source["suite"], cola.source["partial"], cola.kind) == ("glue/cola", False, "label")
    assert cola.source["files"]["train"] == str(data / "glue/cola/train.jsonl.zst")
    assert load("glue/stsb", data).kind == "score"
    with pytest.raises(DataError, match=r"glue/mnli is incomplete in .*train 30 of 392,702 \(a sample\).*partial=True"):
        load("glue/mnli", data)
    mnli = load("glue/mnli", data, partial=True)
    assert mnli.source["partial"] and mnli.labels == ("contradiction", "entailment", "neutral")
    assert (len(mnli.train) + len(mnli.dev), len(mnli.test)) == (30, 12)
    with pytest.raises(DataError, match=r"glue/rte is not in the data folder .* data fetch glue/rte --from hub"):
        load("glue/rte", data)
    with pytest.raises(DataError, match="only a test part"):
        load("glue/ax", data)
    with pytest.raises(DataError, match=r"squad/v1.1 is not in the data folder"):
        load("squad/v1.1", data)


def test_what_is_whole_is_kept_and_what_is_damaged_is_fetched_again(download: Path, tmp_path: Path) -> None:
    assert [one.outcome for one in fetch("glue/wnli", download, tmp_path)] == ["whole"]
    path = tmp_path / "glue/wnli/train.jsonl.zst"
    content, time = path.read_bytes(), path.stat().st_mtime_ns
    assert [one.outcome for one in fetch("glue/wnli", download, tmp_path)] == ["kept"]
    assert path.stat().st_mtime_ns == time
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert [one.outcome for one in fetch("glue/wnli", download, tmp_path)] == ["whole"]
    assert path.read_bytes() == content
    path.write_bytes(content[:100])
    assert [one.outcome for one in fetch("glue/wnli", download, tmp_path)] == ["whole"]
    assert path.read_bytes() == content
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_task_s_own_folder_serves_too(download: Path, tmp_path: Path) -> None:
    assert [one.outcome for one in fetch("glue/wnli", download / "WNLI", tmp_path)] == ["whole"]


def test_another_data_folder_serves_too_and_its_samples_stay_samples(data: Path, tmp_path: Path) -> None:
    found = {one.task.name: one for one in fetch("glue", data, tmp_path / "b")}
    assert (found["cola"].outcome, found["qqp"].outcome, found["rte"].outcome) == ("whole", "partial", "absent")
    assert "sample" in found["qqp"].notice
    for path in data.rglob("*.zst"):
        assert (tmp_path / "b" / path.relative_to(data)).read_bytes() == path.read_bytes()
    assert fetch("glue/cola", data / "glue", tmp_path / "c")[0].outcome == "whole"

    # As many rows as the official task, in a place for samples: still a sample.
    records = [{"text": f"t {n}", "label": ("yes", "perhaps")[n % 2]} for n in range(5015)]
    saved(tmp_path / "d/extra_partial/us_economic_performance/all.jsonl", *records)
    assert status(find("extra/us_economic_performance"), tmp_path / "d").state == "partial"
    (one,) = fetch("extra/us_economic_performance", tmp_path / "d", tmp_path / "e")
    assert one.outcome == "partial" and one.folder == tmp_path / "e/extra_partial/us_economic_performance"
    with pytest.raises(DataError, match="the data folder itself"):
        fetch("glue", data, data)


def test_empty_texts_are_counted_and_not_learned(tmp_path: Path) -> None:
    official.wnli(tmp_path)
    for split in ("train", "test"):
        path = tmp_path / f"WNLI/{split}.tsv"
        path.write_bytes(path.read_bytes().replace(official.text(5).encode(), b""))
    (one,) = fetch("glue/wnli", tmp_path, tmp_path / "data")
    data = load("glue/wnli", tmp_path / "data")
    assert one.outcome == "whole" and data.source["left_out"] == 4
    assert len(data.train) + len(data.dev) == 633
    assert read_texts("glue/wnli", tmp_path / "data")[5] == ("-", official.text(6))


def test_a_part_that_is_missing_leaves_the_rest_under_its_name(download: Path, tmp_path: Path) -> None:
    official.wnli(tmp_path / "a")
    (tmp_path / "a/WNLI/train.tsv").unlink()
    (one,) = fetch("glue/wnli", tmp_path / "a", tmp_path / "b")
    assert (one.outcome, one.folder) == ("partial", tmp_path / "b/glue/wnli") and "train not found" in one.notice
    with pytest.raises(DataError, match="train is missing"):
        load("glue/wnli", tmp_path / "b", partial=True)
    assert len(read_texts("glue/wnli", tmp_path / "b")) == 146  # whole, whatever train is
    with pytest.raises(DataError, match=r"train of glue/wnli is not in the data folder"):
        read_texts("glue/wnli", tmp_path / "b", split="train")
    with pytest.raises(DataError, match=r"has no texts for 'exam'.* train, dev, test"):
        read_texts("glue/wnli", tmp_path / "b", split="exam")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\t2\n", r"train.tsv, line 2: '2' is not a label of glue/wnli"),
        ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\n", "line 2: 3 fields, expected 4"),
        ("index\tpremise\tsentence2\tlabel\n0\ta\tb\t1\n", "no column 'sentence1' in its first line"),
        ("index\tsentence1\tsentence2\tlabel\n", "no rows for train"),
    ],
)
def test_wrong_files_are_named_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "WNLI").mkdir()
    (tmp_path / "WNLI/train.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        fetch("glue/wnli", tmp_path, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_wrong_sources(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a folder\. Expected hub, a folder"):
        fetch("glue", tmp_path / "nowhere", tmp_path / "data")
    with pytest.raises(DataError, match=r"has no files of glue\. For glue/cola, expected CoLA/train.tsv"):
        fetch("glue", tmp_path, tmp_path / "data")


# SQuAD, tags


def test_squad(tmp_path: Path) -> None:
    official.squad(tmp_path / "a", "train")
    official.squad(tmp_path / "a", "dev", "v2.0")
    one, two = fetch("squad", tmp_path / "a", tmp_path / "b")
    assert (one.outcome, one.rows, two.rows) == ("partial", {"train": 2}, {"dev": 3})
    found = read_squad(tmp_path / "b/squad_partial/v1.1/train-v1.1.json.zst")
    assert found[0].answers == ((0, "The river Rhine"),) and found[1].title == "Rhine" and not found[1].impossible
    last = read_squad(tmp_path / "b/squad_partial/v2.0/dev-v2.0.json.zst")[2]
    assert last.impossible and last.answers == ()


def test_squad_answers_must_stand_in_their_context(tmp_path: Path) -> None:
    path = official.squad(tmp_path, "train") / "train-v1.1.json"
    content = path.read_text()
    path.write_text(content.replace('"answer_start": 0', '"answer_start": 4'))
    with pytest.raises(DataError, match="question q1: the answer 'The river Rhine' is not at character 4"):
        read_squad(path)
    path.write_text(content.replace('[{"text": "The river Rhine", "answer_start": 0}]', "[]"))
    with pytest.raises(DataError, match="question q1: has no answer, but is_impossible is not set"):
        read_squad(path)
    path.write_text('{"data": [{"title": "x"}]}')
    with pytest.raises(DataError, match="no 'paragraphs'"):
        read_squad(path)
    with pytest.raises(DataError, match="does not exist"):
        read_squad(tmp_path / "none.json")


CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
French JJ I-NP B-MISC
Bonn NNP I-NP I-LOC

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_columns_open_every_entity_with_b(tmp_path: Path) -> None:
    (tmp_path / "eng.train").write_text(CONLL)
    (one,) = fetch("ner", tmp_path, tmp_path / "data")
    assert (one.outcome, one.rows) == ("partial", {"train": 2})
    (_, first), (_, second) = read_rows(tmp_path / "data/ner_partial/conll2003_en/train.jsonl.zst")
    assert first["tokens"] == ["EU", "rejects", "German", "French", "Bonn"]
    assert first["tags"] == ["B-ORG", "O", "B-MISC", "B-MISC", "B-LOC"]
    assert second["tags"] == ["B-PER", "I-PER"]


def test_conllu_has_words_only_and_treebanks_are_joined(tmp_path: Path) -> None:
    def word(number: str, form: str, tag: str) -> str:
        return "\t".join([number, form, "_", tag, *["_"] * 6]) + "\n"

    text = "# sent_id = 1\n" + word("1-2", "don't", "_") + word("1", "do", "AUX") + word("2", "n't", "PART")
    text += word("2.1", "go", "VERB") + "\n" + word("1", "New York", "PROPN") + "\n"
    for bank in ("ewt", "gum"):
        (tmp_path / f"UD_English-{bank}").mkdir()
        (tmp_path / f"UD_English-{bank}/en_{bank}-ud-train.conllu").write_text(text)
    (one,) = fetch("udpos", tmp_path, tmp_path / "data")
    assert one.rows == {"train": 4}
    sentences = [row for _, row in read_rows(tmp_path / "data/udpos_partial/en/train.jsonl.zst")]
    assert (sentences[0]["tokens"], sentences[0]["tags"]) == (["do", "n't"], ["AUX", "PART"])
    assert sentences[1]["tokens"] == ["New York"]


@pytest.mark.parametrize(
    ("tokens", "tags", "message"),
    [
        (("a", "b"), ("O",), "2 tokens and 1 tags"),
        (("a", " "), ("O", "O"), "token 2 is ' '"),
        (("a",), ("B-CITY",), "tag 1 is 'B-CITY'"),
        (("a", "b"), ("O", "I-PER"), "tag 2 is I-PER after O"),
    ],
)
def test_tags_must_be_well_formed(tokens: tuple[str, ...], tags: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check(TaggedSentence(tokens, tags), "train.jsonl, line 1", find("ner/conll2003_en").labels)
