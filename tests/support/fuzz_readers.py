"""Damaged and absurd data files for the readers. Every file must be read, or refused with an `IntarsiaError`.

`python -m tests.support.fuzz_readers SEED COUNT` prints what was tried, and the failures with their seeds.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from intarsia.errors import IntarsiaError
from intarsia.tasks.content import content_limit
from intarsia.tasks.data import load_data, load_examples, load_questions, load_sentences, load_texts

LIMIT = 1 << 22  # bytes of content
SLOW = 20.0  # seconds
NASTY = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\r", b"\n\n", b'"', b'""', b"'", b",", b"\t",
    b";", b"|", b"[", b"]", b"{", b"}", b"[" * 5000, b'{"a":' * 3000, b"9" * 5000, b"1e999", b"-1e400", b"NaN",
    b"null", b"true", b"\\ud800", b'\\"', b"\xe2\x80\xa8", b"\x1b[2J", b"0" * 400, b"1" + b"0" * 400, b"Infinity",
    b"1." + b"1" * 5000, b"-0", b"label", b"text", b"=cmd|' /C calc'!A0", b"A" * 70_000,
)  # fmt: skip


@cache
def samples() -> dict[str, bytes]:
    """One intact file of each format, by its ending."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [
        {"text": f'a text {i} é, of "{"good" if i % 2 else "bad"}" things', "label": "ny"[i % 2]} for i in range(14)
    ]
    made = io.StringIO()
    writer = csv.DictWriter(made, ["text", "label"])
    writer.writeheader()
    writer.writerows(rows)
    table = io.BytesIO()
    nested = [{**row, "labels": [row["label"], "x"], "n": i, "box": {"a": i}} for i, row in enumerate(rows)]
    parquet.write_table(pa.Table.from_pylist(nested), table)
    asked = [{"id": f"{i}", "question": "Which?", "answers": [{"text": "sun", "answer_start": 4}]} for i in range(2)]
    about = [{"context": f"The sun {i} is hot and the day is long.", "qas": asked} for i in range(30)]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": about}]}
    tags = [{"tokens": ["a", "day", str(i)], "tags": ["O", "B-X", "O"]} for i in range(12)]
    scores = [{"text_a": f"one {i}", "text_b": "two", "score": i / 3} for i in range(40)]
    plain = {
        "csv": made.getvalue().encode(),
        "tsv": "\n".join(["text\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)]).encode(),
        "jsonl": "\n".join(json.dumps(row) for row in rows).encode(),
        "tags.jsonl": "\n".join(json.dumps(row) for row in tags).encode(),
        "scores.jsonl": "\n".join(json.dumps(row) for row in scores).encode(),
        "json": json.dumps(squad).encode(),
        "parquet": table.getvalue(),
        "txt": "\n".join(row["text"] for row in rows).encode(),
    }
    packed = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in plain.items()}
    zstd = {f"{name}.zst": pa.compress(content, codec="zstd", asbytes=True) for name, content in plain.items()}
    return {**plain, **packed, **zstd}


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with one to six changes."""
    made = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 6])):
        place = draw.randrange(len(made) + 1)
        match draw.randrange(7):
            case 0 if made:
                made[place % len(made)] ^= 1 << draw.randrange(8)
            case 1 if made:
                made[place % len(made)] = draw.randrange(256)
            case 2:
                del made[place : place + draw.choice([1, 2, 8, 64, 1000])]
            case 3:
                made[place:place] = draw.choice(NASTY)
            case 4:
                made[place:place] = made[draw.randrange(len(made) + 1) :][: draw.choice([1, 10, 300])]
            case 5:
                made = made[:place]
            case _:
                made[place:place] = draw.randbytes(draw.choice([1, 4, 40]))
    return bytes(made)


def one(seed: int, folder: Path) -> str:
    """Try one file: "read", "refused", or the traceback of a failure."""
    draw = random.Random(seed)
    name = draw.choice(sorted(samples()))
    content = samples()[name]
    inner = name.endswith((".gz", ".zst")) and draw.random() < 0.4  # change what is inside the compressed file
    content = samples()[name.rpartition(".")[0]] if inner else content
    content = mutated(content, draw)
    if inner:
        import pyarrow as pa

        content = gzip.compress(content) if name.endswith(".gz") else pa.compress(content, codec="zstd", asbytes=True)
    path = folder / f"x.{name}"
    path.write_bytes(content)
    kind = draw.choice([*[None] * 8, "label", "labels", "score", "tags", "span", "words"])
    ways: list[Callable[[], object]] = [
        *[lambda: load_data(path, kind=kind)] * 8,  # type: ignore[arg-type]
        lambda: load_texts(path),
        lambda: load_questions(path),
        lambda: load_sentences(path),
        lambda: load_examples(path, kind=kind or "label", labels=("n", "y")),  # type: ignore[arg-type]
    ]
    begun = time.perf_counter()
    try:
        with content_limit(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draw.choice(ways)()
        outcome = "read"
    except IntarsiaError as error:
        outcome = "refused" if len(str(error)) < 20_000 else f"a message of {len(str(error))} characters"
    except Exception:
        outcome = traceback.format_exc()
    finally:
        path.unlink()
    return outcome if time.perf_counter() - begun < SLOW else f"slow: {time.perf_counter() - begun:.1f} s; {outcome}"


def fuzz(seed: int, count: int) -> tuple[Counter[str], dict[int, str]]:
    """Try `count` files from `seed` on; return how many were read and refused, and the failures by seed."""
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + count):
            outcome = one(number, Path(folder))
            if outcome not in ("read", "refused"):
                failures[number], outcome = outcome, "failed"
            counts[outcome] += 1
    return counts, failures


if __name__ == "__main__":
    counts, failures = fuzz(int(sys.argv[1]), int(sys.argv[2]))
    for number, failure in failures.items():
        print(f"seed {number}: {failure}")
    print(dict(counts))
