"""Data files that are damaged, absurd or much larger than they look: read or refused, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from intarsia.errors import DataError, IntarsiaError
from intarsia.tasks import load_data
from intarsia.tasks.content import LONGEST_LINE, content_limit
from intarsia.tasks.data import load_examples, load_texts
from intarsia.tasks.documents import documents
from intarsia.tasks.metrics import bootstrap
from intarsia.tasks.reading import read_rows
from intarsia.tasks.tables import RawTable
from tests.support.fuzz_readers import fuzz, samples

MB = 1 << 20


def test_fuzzed_files() -> None:
    counts, failures = fuzz(seed=1, count=1500)
    assert not failures, f"seed {min(failures)}: {failures[min(failures)]}"
    assert counts["read"] > 50 and counts["refused"] > 500


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}", "malformed JSON"),
        ("x.jsonl", b'{"text": "a", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "malformed JSON"),
        ("x.json", b"[" * 100_000, "nested too deeply"),
        ("x.json", b'{"data": [{"title": 1, "paragraphs": [{"context": 2, "qas": [{"id": 3, "question": 4, "answers": '
         b"[]}]}]}]}", "must be texts"),
        ("x.json.gz", gzip.compress(samples()["json"])[:-30], "damaged"),
        ("x.json.gz", bytes(b ^ (i % 97 == 50) for i, b in enumerate(gzip.compress(samples()["json"]))), "damaged"),
        ("x.json.zst", samples()["json.zst"][:40], "damaged"),
        ("x.parquet", samples()["parquet"].replace(b"of", b"\xff\xfe"), "damaged"),
        ("x.parquet", b"PAR1" + b"\0" * 40 + b"PAR1", "damaged"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_data(path)


@pytest.mark.parametrize("label", [10**400, 10**5000], ids=["400 digits", "5000 digits"])
@pytest.mark.parametrize("kind", ["label", "score", "labels", None])
def test_labels_beyond_floats(label: int, kind: str | None) -> None:
    rows = [{"text": f"text {i}", "label": label if i == 3 else i % 2} for i in range(20)]
    with pytest.raises(DataError):
        load_data(rows, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x" * 5000 + ".csv", "a/" * 3000 + "x.csv", "~nobody-here/x.csv", "nul\0.csv"])
def test_names_that_no_file_can_have(name: str) -> None:
    for source in (name, Path(name), {"train": Path(name)}):
        with pytest.raises(DataError):
            load_data(source)
    with pytest.raises(DataError):
        load_texts(name)


def peak(path: Path) -> int:
    """The memory in bytes at which reading the file stops; it must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more than 4,194,304 bytes of content"), content_limit(4 * MB):
            for _ in read_rows(path):
                pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", ["csv.gz", "jsonl.zst", "tsv.gz", "json.gz", "txt.zst", "txt.gz"])
def test_compressed_bombs(tmp_path: Path, ending: str) -> None:
    import pyarrow as pa

    row = {"csv": b"some text,label\n", "tsv": b"some text\tlabel\n", "txt": b"\n"}.get(
        ending.partition(".")[0], b'{"text":"some text"}\n'
    )
    content = row * (40 * MB // len(row))
    path = tmp_path / f"x.{ending}"
    packed = gzip.compress(content) if ending.endswith("gz") else pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(packed)
    assert len(packed) < MB and peak(path) < 40 * MB


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_bombs(tmp_path: Path, nested: bool) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    text = "a" * MB
    index = pa.array(np.zeros(20_000, np.int32))
    column = pa.DictionaryArray.from_arrays(index, pa.array([[text]] if nested else [text]))
    if nested:
        column = pa.ListArray.from_arrays(
            pa.array(np.arange(20_001, dtype=np.int32)), pa.DictionaryArray.from_arrays(index, pa.array([text]))
        )
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"text": column}), path, compression="zstd")
    assert path.stat().st_size < MB  # of 20 GB
    assert peak(path) < 300 * MB
    with pytest.raises(DataError, match="max_bytes"):
        load_data(path, kind="words", max_bytes=4 * MB)


def test_the_limit_can_be_raised_and_lowered(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"text": f"text {i}", "label": "ny"[i % 2]} for i in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert len(load_data(path).train) == 32
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        load_data(path, max_bytes=1000)
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        load_examples(path, kind="label", labels=("n", "y"), max_bytes=1000)


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.symlink_to("/dev/zero")
    begun = time.perf_counter()
    with pytest.raises(DataError, match=f"longer than {LONGEST_LINE:,} bytes"):
        load_data(path)
    assert time.perf_counter() - begun < 30


def test_very_many_columns(tmp_path: Path) -> None:
    names = [f"column{i}" for i in range(100_000)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join([",".join(names), ",".join("1" for _ in names), "1,2"]))
    begun = time.perf_counter()
    with pytest.raises(DataError, match=r"too few fields.*100,000 in all") as caught:
        load_data(path)
    path.write_text("\n".join([",".join(names), ",".join("1" for _ in names)] * 1))
    with pytest.raises(IntarsiaError) as other:
        load_data(path)
    assert time.perf_counter() - begun < 20
    assert len(str(caught.value)) < 2000 and len(str(other.value)) < 2000


def test_very_many_labels() -> None:
    begun = time.perf_counter()
    rows = [{"text": f"text {i}", "label": f"label {i % 40_000}"} for i in range(100_000)]
    data = load_data(rows, kind="label")
    assert len(data.labels) == 40_000
    wrong = {"train": rows[:40_000], "test": [{"text": "x", "label": "unknown"}]}
    with pytest.raises(DataError, match=r"'unknown' does not occur.*40,000 in all"):
        load_data(wrong, kind="label")
    many = {
        "train": [{"text": f"text {i} {j}", "label": f"label {i}"} for i in range(60_000) for j in range(2)],
        "test": [{"text": f"other {i}", "label": f"label {i}"} for i in range(10_000)],
    }
    with pytest.raises(DataError, match=r"60,000 labels are too many for 12,000 rows in dev: .* 2\.9 GB"):
        load_data(many, kind="label")
    all_in_one = [{"text": f"text {i}", "label": [f"label {j}" for j in range(i % 2, 20_000)]} for i in range(20)]
    assert len(load_data(all_in_one, kind="labels").labels) == 20_000
    assert time.perf_counter() - begun < 60


@pytest.mark.parametrize("metric", ["accuracy", "f1-macro", "f1-micro", "matthews", "f1:label 7"])
def test_metrics_of_many_labels(metric: str) -> None:
    """The labels without rows do not count, in the value or in the memory."""
    few = [f"label {i}" for i in range(9)]
    draw = np.random.default_rng(0)
    gold, found = draw.integers(9, size=300), draw.integers(9, size=300)
    expected = bootstrap(metric, gold, found, labels=few, resamples=50)
    many = [*few, *(f"rare {i}" for i in range(100_000))]
    tracemalloc.start()
    result = bootstrap(metric, gold, found, labels=many, resamples=50)
    assert tracemalloc.get_traced_memory()[1] < 50 * MB
    tracemalloc.stop()
    assert np.allclose(result, expected, rtol=0, atol=1e-12)


def test_many_headings_take_linear_time() -> None:
    rows = [{"text": text} for _ in range(30_000) for text in ("= one =", "")]
    begun = time.perf_counter()
    made = documents(RawTable("x", "line", range(len(rows)), rows, lines=True))  # type: ignore[arg-type]
    assert len(made.rows) == 1 and time.perf_counter() - begun < 10
