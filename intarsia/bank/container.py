"""The byte layout of an inlay file: safetensors in canonical form, with a SHA-256 digest of the content.

In the canonical form, equal content always gives equal bytes. The reader therefore detects every altered byte, even an
added space. docs/inlay-format.md specifies the format for other programs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from intarsia.bank.schema import FileMetadata, TensorEntry, decoded, tensor_entries
from intarsia.errors import DamagedInlay

FORMAT_NAME = "intarsia-inlay"
FORMAT_VERSION = 1
FORMAT = f"{FORMAT_NAME}/{FORMAT_VERSION}"

DTYPE_BYTES = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "BOOL": 1,
    "I8": 1,
    "U8": 1,
}
DTYPE_NAMES = {  # torch name → safetensors name
    "float64": "F64",
    "int64": "I64",
    "float32": "F32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int16": "I16",
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
}
# The limit of safetensors itself. It keeps a corrupt length field from causing a huge allocation.
LONGEST_HEADER = 100_000_000
PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


Block = bytes | memoryview


class TensorSpec(NamedTuple):
    """A tensor's dtype, as safetensors spells it ("F32", "BF16" …), and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of bytes of the values."""
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Container:
    """The parsed start of an inlay file: everything before the tensors' values."""

    header: str
    digest: str
    layout: dict[str, TensorSpec]
    data_start: int

    def slices(self, content: bytes) -> dict[str, memoryview]:
        """Return each tensor's bytes as a view of the whole file's content."""
        data = memoryview(content)[self.data_start :]
        return {name: data[start:end] for name, (start, end) in offsets(self.layout).items()}


def canonical(value: Any) -> str:
    """Return `value` as canonical JSON: sorted keys, no spaces, non-ASCII characters unescaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def offsets(layout: Mapping[str, TensorSpec]) -> dict[str, tuple[int, int]]:
    """Return each tensor's (start, end) in file order. Wide dtypes come first, which aligns every tensor."""
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name in sorted(layout, key=lambda name: (-DTYPE_BYTES[layout[name].dtype], name)):
        start, end = end, end + layout[name].size
        places[name] = (start, end)
    return places


def opening(header: str, digest: str, layout: Mapping[str, TensorSpec]) -> bytes:
    """Return all bytes before the tensors' values: the length, then JSON padded with spaces to a multiple of eight."""
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT, "intarsia": header, "digest": digest}}
    for name, place in offsets(layout).items():
        entries[name] = {"dtype": layout[name].dtype, "shape": list(layout[name].shape), "data_offsets": list(place)}
    text = canonical(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def digest_of(header: str, layout: Mapping[str, TensorSpec], values: Mapping[str, Iterable[Block]]) -> str:
    """Return the SHA-256 of the header and, sorted by name, of each tensor's name, dtype, shape and values (as blocks
    of bytes)."""
    total = hashlib.sha256(header.encode() + b"\n")
    for name in sorted(layout):
        total.update(canonical([name, layout[name].dtype, list(layout[name].shape)]).encode() + b"\n")
        for block in values[name]:
            total.update(block)
    return total.hexdigest()


def parse(file: BinaryIO, size: int, where: Path) -> Container:
    """Parse the start of a file of `size` bytes; raise at any deviation from the canonical form."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if length > LONGEST_HEADER and start.startswith(PICKLE_STARTS):
        raise DamagedInlay(
            f"{where} is a pickle (torch.save writes pickles), not an inlay. Intarsia does not open pickles, because "
            "they can run any code; expected a safetensors file written by Intarsia."
        )
    if len(start) < 8 or length > LONGEST_HEADER:
        raise DamagedInlay(
            f"{where} is not an inlay: it does not start like a safetensors file, or it was truncated or altered. "
            "Expected a file written by Intarsia; restore it from a backup or learn the task again."
        )
    text = file.read(min(length, size))
    if len(text) < length:
        raise damaged(where, f"it has {size} bytes, but its header alone needs {8 + length}")
    try:
        entries = tensor_entries(text)
    except ValueError:  # also malformed UTF-8
        raise damaged(where, "its header is not JSON") from None
    container = _container(entries, 8 + length, size, where)
    if opening(container.header, container.digest, container.layout) != start + text:
        raise damaged(where, "its header has been altered")
    whole = container.data_start + sum(spec.size for spec in container.layout.values())
    if size != whole:
        raise damaged(where, f"it has {size} bytes, but should have {whole}")
    return container


def damaged(where: Path, problem: str) -> DamagedInlay:
    """Return the error for a damaged file."""
    return DamagedInlay(f"{where} is damaged: {problem}. Restore it from a backup or learn the task again.")


def _container(entries: dict[str, Any], data_start: int, size: int, where: Path) -> Container:
    metadata = _metadata(entries.pop("__metadata__", None), where)
    layout: dict[str, TensorSpec] = {}
    left = size - data_start
    for name, raw in entries.items():
        try:
            entry = decoded(raw, TensorEntry)
        except ValueError:
            raise damaged(where, f"the type or shape of tensor {name[:100]!r} is unreadable") from None
        # Believe no size beyond the file's own: a few bytes of JSON can state any number.
        spec = layout[name] = TensorSpec(entry.dtype, tuple(entry.shape))
        left -= spec.size
        if left < 0 or any(extent > size for extent in spec.shape):
            raise damaged(where, f"it has {size} bytes, but should have more: its tensors need more than it holds")
    return Container(metadata.intarsia, metadata.digest, layout, data_start)


def _metadata(raw: Any, where: Path) -> FileMetadata:
    try:
        stated = decoded(raw, dict[str, Any]).get("format") if raw is not None else None
    except ValueError:
        stated = None
    if not isinstance(stated, str) or not stated.startswith(FORMAT_NAME + "/"):
        raise DamagedInlay(
            f"{where} is not an inlay: its metadata do not state the format {FORMAT}. "
            "Expected a file written by Intarsia."
        )
    if stated != FORMAT:
        raise DamagedInlay(
            f"{where} has the format {stated[:100]!r}, but this version of Intarsia reads {FORMAT}. "
            "Update Intarsia if a newer version wrote the file; otherwise the file has been altered."
        )
    try:
        return decoded(raw, FileMetadata)
    except ValueError:
        raise damaged(where, "its header lacks the description or the digest") from None
