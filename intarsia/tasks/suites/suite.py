"""What is known of a public task before any of it is here: where it comes from, how it is written, how large it is.

A data folder holds `<suite>/<task>/<split>.jsonl.zst`. What has fewer (or more) rows than the official task is a sample
and lies under `<suite>_partial/<task>`, so that no path with the official name ever leads to something else.
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
class Layout:
    """How the official download is written. `columns` leads from our names to theirs; texts and label must be there."""

    format: Format
    files: Mapping[str, tuple[str, ...]]  # split -> patterns below the given folder; the first that matches is taken
    columns: Mapping[str, str] = field(default_factory=dict)
    no_header: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # split -> names, where no line gives them
    encodings: tuple[str, ...] = ("utf-8-sig",)  # tried in turn
    skip_short: bool = False  # rows with too few fields are left out, as the official readers do


@dataclass(frozen=True)
class Hub:
    """A data set of the hub. `splits` leads from our names to theirs."""

    name: str
    config: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "dev": "validation", "test": "test"})
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.config}" if self.config else self.name


@dataclass(frozen=True)
class SuiteTask:
    """One task: a declaration, and nothing that reads or writes."""

    suite: str
    name: str
    title: str
    kind: SuiteKind
    metrics: tuple[str, ...]  # official; the first is the one that is reported
    rows: Mapping[str, int | None]  # official rows of each split; None where that is not known
    layout: Layout
    source: str  # where a person gets it
    labels: tuple[str, ...] = ()  # in official order
    pairs: bool = False
    hub: Hub | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)  # label as written -> our name; `X*`: begins with X
    drop: tuple[str | None, ...] = ()  # labels whose rows are stored and left out when the task is loaded
    hidden_test: bool = False  # the official test part comes without labels
    strip: bool = False  # white space around texts goes
    mend: bool = False  # the release garbled characters beyond ASCII: undo it where that is certain
    empty: Literal["refused", "skipped", "kept"] = "refused"  # rows without a text; what is kept is not loaded
    pooled: bool = False  # the paper put the parts together and split at random
    paper: tuple[int, int, int] | None = None  # train, validation and test in Houlsby et al. 2019; None: not checked
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
        """Our name of a label as a source writes it; None where that says that there is none."""
        written = written.strip()
        if written in self.labels or written in self.drop:
            return written
        for key, name in self.values.items():
            if written == key or (key.endswith("*") and written.startswith(key[:-1])):
                return name
        if not self.labels:  # too many to list
            return written
        known = [*self.labels, *(key for key in self.values if key)]
        raise DataError(
            f"{where}: {written!r} is not a label of {self.full_name}. Expected one of {', '.join(known[:24])}. "
            f"Is this the file of another task, or of another release?"
        )


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    tasks: tuple[SuiteTask, ...]
