"""The schema of everything that a bank reads from JSON: inlay headers, descriptions, bank.json.

A file may come from a stranger. Types, ranges and lengths are checked here, before any value is used. Objects may have
further keys, which newer versions of Intarsia write; a reader ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from intarsia.tasks.examples import StoredKind

DEEPEST = 32  # levels of nested lists and objects in a description
MOST_DIMENSIONS = 8  # of a tensor
MOST_PARENTS = 256  # of a composed inlay, with their own

Size = Annotated[int, Meta(ge=0, le=2**53)]
Length = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TaskName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z")]
Text = Annotated[str, Meta(max_length=4096)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Fingerprint = Annotated[str, Meta(min_length=1, max_length=256)]

T = TypeVar("T")


class TensorEntry(Struct, forbid_unknown_fields=True):
    """A tensor in the header of the file."""

    data_offsets: tuple[int, int]
    dtype: Literal["F64", "I64", "F32", "I32", "BF16", "F16", "I16", "BOOL", "I8", "U8"]
    shape: Annotated[list[Size], Meta(max_length=MOST_DIMENSIONS)]


class FileMetadata(Struct):
    """The entry `__metadata__` in the header of the file."""

    format: str
    intarsia: str
    digest: Digest


class _Base(Struct):
    fingerprint: Fingerprint
    name: Text | None = None
    tokenizer: Fingerprint | None = None


class _Hidden(Struct, forbid_unknown_fields=True):
    activation: Text
    norm: bool = False


class _Head(Struct):
    pooling: Literal["mean", "cls", "pooler", "trained-pooler", "none"]
    outputs: Size | str | None = None
    temperature: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0
    thresholds: list[Annotated[float, Meta(ge=0, le=1)]] | None = None
    hidden: _Hidden | None = None


class _Parameters(Struct):
    method: Size
    head: Size
    total: Size
    base: Annotated[int, Meta(ge=1, le=2**53)]


class _TestScore(Struct):
    value: float | None
    low: float | None = None
    high: float | None = None
    examples: Size | None = None
    perplexity: float | None = None


class _Calibration(Struct):
    ece_before: float
    ece_after: float
    temperature: float
    part: Text


class _Metrics(Struct):
    calibration: _Calibration | None = None
    metric: Text | None = None
    dev: float | None = None
    best_epoch: Size | None = None
    test: _TestScore | None = None


class _Epoch(Struct):
    always: str | None = None


class _Part(Struct):
    name: Text
    version: Size
    digest: Digest
    weight: float


class _Merged(Struct):
    how: Text
    parts: list[_Part] = msgspec.field(name="from")
    head: Text
    relative_error: float | None = None


class _Moved(Struct):
    name: Text
    version: Size
    digest: Digest
    base: _Base = msgspec.field(name="from")
    metric: Text | None = None
    old_score: float | None = None
    new_score: float | None = None


class _Training(Struct):
    merged: _Merged | None = None
    moved: _Moved | None = None
    max_length: Length | None = None
    steps: Size | None = None
    seconds: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    history: list[_Epoch] | None = None
    adam: dict[str, Any] | None = None


class _Truncated(Struct):
    cut: Size
    of: Size
    max_length: Length
    mean_tokens: float
    longest: Size


class _Data(Struct):
    pairs: bool = False
    truncated: _Truncated | None = None
    notes: list[str] | None = None


class _Method(Struct):
    type: Text


class _Description(Struct):
    """The description of an inlay: docs/inlay-format.md."""

    name: TaskName
    kind: StoredKind
    labels: list[str]
    method: _Method
    head: _Head
    encoder: _Base
    parameters: _Parameters
    metrics: _Metrics
    training: _Training
    data: _Data
    versions: dict[str, Any]
    parents: Annotated[list[Digest], Meta(max_length=MOST_PARENTS)]
    created: Text


class _ManifestBase(_Base):
    parameters: Size = 0


class _Manifest(Struct):
    encoder: _ManifestBase


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text; raise `ValueError` if it is malformed or nested too deeply."""
    try:
        value = msgspec.json.decode(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(value)
    return value


def description_fault(described: Any) -> str | None:
    """Return the difference between a parsed description and the schema, or None."""
    return _fault(described, _Description)


def manifest_fault(manifest: Any) -> str | None:
    """Return the difference between a parsed bank.json and the schema, or None."""
    return _fault(manifest, _Manifest)


def tensor_entries(content: bytes) -> dict[str, msgspec.Raw]:
    """Return the entries of a file's header by name, each as unparsed JSON; raise `ValueError` if it is not an object.

    Parsing each entry in its own type keeps the memory in proportion to the file.
    """
    try:
        entries: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return entries


def decoded(raw: msgspec.Raw, kind: type[T]) -> T:
    """Return an entry in its type; raise `ValueError` if it does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _fault(value: Any, schema: type[Any]) -> str | None:
    try:
        msgspec.convert(value, schema)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error).replace("`", "")
    return None


def _check_depth(value: Any, left: int = DEEPEST) -> None:
    if isinstance(value, Mapping | list):
        if not left:
            raise ValueError(f"more than {DEEPEST} levels of lists and objects")
        for item in value.values() if isinstance(value, Mapping) else value:
            if isinstance(item, Mapping | list):
                _check_depth(item, left - 1)
