"""Declarations of public tasks: their sources, formats and official sizes.

A data folder has `<suite>/<task>/<split>.jsonl.zst`. A split with fewer or more rows than the official one is a sample
and is stored under `<suite>_partial/<task>`. A path with the official name therefore always has the official data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from intarsia.errors import DataError

SuiteKind = Literal["label", "score", "span", "tags"]
Format = Literal["tsv", "csv", "folders", "squad", "conll", "conllu"]
PARTIAL = "_partial"


@dataclass(frozen=True)
class FileLayout:
    """The format of the official download. `columns` maps our names to theirs; texts and label are required."""

    format: Format
    files: Mapping[str, tuple[str, ...]]  # split -> patterns below the given folder; the first match is used
    columns: Mapping[str, str] = field(default_factory=dict)
    no_header: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # split -> columns, for files without header
    encodings: tuple[str, ...] = ("utf-8-sig",)  # tried in turn
    skip_short: bool = False  # skip rows with too few fields, as the official readers do


@dataclass(frozen=True)
class Hub:
    """A data set of the hub. `columns` and `splits` map our names to theirs."""

    name: str
    config: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "dev": "validation", "test": "test"})
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.config}" if self.config else self.name


@dataclass(frozen=True)
class SuiteTask:
    """The declaration of one task. It does not read or write files."""

    suite: str
    name: str
    title: str
    kind: SuiteKind
    metrics: tuple[str, ...]  # official; the first is reported
    rows: Mapping[str, int | None]  # official rows of each split; None if unknown
    layout: FileLayout
    source: str  # where to download it
    labels: tuple[str, ...] = ()  # in official order
    pairs: bool = False
    hub: Hub | None = None
    # The source's label -> our name. `X*` matches any label that begins with X.
    values: Mapping[str, str | None] = field(default_factory=dict)
    drop: tuple[str | None, ...] = ()  # rows with these labels are stored, but not loaded
    hidden_test: bool = False  # the official test part has no labels
    strip: bool = False  # remove white space around texts
    mend: bool = False  # repair the non-ASCII characters that the release garbled
    # Rows without a text: an error (refused), not stored (skipped), or stored but not loaded (kept).
    empty: Literal["refused", "skipped", "kept"] = "refused"
    pooled: bool = False  # the paper joined the parts and split at random
    # The sizes of train, validation and test in Houlsby et al. 2019. None: not checked.
    paper: tuple[int, int, int] | None = None
    note: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.suite}/{self.name}"

    @property
    def texts(self) -> tuple[str, ...]:
        return ("text_a", "text_b") if self.pairs else ("text",)

    def file(self, split: str) -> str:
        """The split's file in a data folder. SQuAD keeps its official JSON, under its official name."""
        return f"{split}-{self.name}.json.zst" if self.kind == "span" else f"{split}.jsonl.zst"

    def label(self, written: str, where: str) -> str | None:
        """Our name of a source's label; None if the source's value means "no label". Raises for unknown labels."""
        written = written.strip()
        if written in self.labels or written in self.drop:
            return written
        for key, name in self.values.items():
            if written == key or (key.endswith("*") and written.startswith(key[:-1])):
                return name
        if not self.labels:  # the task has too many labels to declare
            return written
        expected = [*self.labels, *(key for key in self.values if key)]
        raise DataError(
            f"{where}: {written!r} is not a label of {self.full_name}. Expected one of {', '.join(expected[:24])}. "
            f"Is this the file of another task, or of another release?"
        )


@dataclass(frozen=True)
class Suite:
    """A named group of tasks."""

    name: str
    title: str
    tasks: tuple[SuiteTask, ...]
