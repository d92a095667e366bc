"""The bytes of an inlay file: a safetensors file in one canonical form, with a digest over all it says.

The canonical form means that the same content always gives the same bytes, so a reader can demand exactly those bytes:
no altered byte goes unnoticed, not even a space. docs/inlay-format.md describes the format for other readers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
DTYPE_NAMES = {  # as torch calls them
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
# The limit that safetensors itself sets, so that a wrong length cannot make a reader ask for all memory.
LONGEST_HEADER = 100_000_000
PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class TensorSpec(NamedTuple):
    """What a tensor looks like, without its values; dtypes as safetensors spells them ("F32", "BF16" …)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Container:
    """The opening of an inlay file, taken apart."""

    header: str
    digest: str
    layout: dict[str, TensorSpec]
    data_start: int

    def slices(self, content: bytes) -> dict[str, memoryview]:
        """Each tensor's bytes within the whole file's content."""
        data = memoryview(content)[self.data_start :]
        return {name: data[start:end] for name, (start, end) in offsets(self.layout).items()}


def canonical(value: Any) -> str:
    """JSON in one spelling: sorted keys, no spaces, characters as themselves."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def offsets(layout: Mapping[str, TensorSpec]) -> dict[str, tuple[int, int]]:
    """Where each tensor's bytes lie, in the order of the file: wide types first, so that all of them are aligned."""
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name in sorted(layout, key=lambda name: (-DTYPE_BYTES[layout[name].dtype], name)):
        start, end = end, end + layout[name].size
        places[name] = (start, end)
    return places


def opening(header: str, digest: str, layout: Mapping[str, TensorSpec]) -> bytes:
    """All bytes before the tensors' values: the length, then the JSON, padded with spaces to a multiple of eight."""
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT, "intarsia": header, "digest": digest}}
    for name, place in offsets(layout).items():
        entries[name] = {"dtype": layout[name].dtype, "shape": list(layout[name].shape), "data_offsets": list(place)}
    text = canonical(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def digest_of(header: str, layout: Mapping[str, TensorSpec], values: Mapping[str, memoryview]) -> str:
    """SHA-256 over the header and, in the order of their names, each tensor's name, dtype, shape and values."""
    total = hashlib.sha256(header.encode() + b"\n")
    for name in sorted(layout):
        total.update(canonical([name, layout[name].dtype, list(layout[name].shape)]).encode() + b"\n")
        total.update(values[name])
    return total.hexdigest()


def parse(file: BinaryIO, size: int, where: Path) -> Container:
    """Read the opening of a file of `size` bytes; every deviation from the canonical form is an error."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if length > LONGEST_HEADER and start.startswith(PICKLE_STARTS):
        raise DamagedInlay(
            f"{where} is a pickle (as torch.save writes), not an inlay. Pickles can run any code and are never opened; "
            "a safetensors file written by Intarsia was expected."
        )
    if len(start) < 8 or length > LONGEST_HEADER:
        raise DamagedInlay(
            f"{where} is not an inlay: it does not begin as a safetensors file does, or has been cut short or altered. "
            "A file written by Intarsia was expected; restore it from a copy or learn the task again."
        )
    text = file.read(length)
    if len(text) < length:
        raise damaged(where, f"it has {size} bytes, but its header alone should have {8 + length}")
    try:
        entries = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise damaged(where, "its header is not JSON") from None
    container = _take_apart(entries, 8 + length, where)
    try:
        intact = opening(container.header, container.digest, container.layout) == start + text
    except UnicodeEncodeError:  # an escape in the JSON that stands for half a character
        intact = False
    if not intact:
        raise damaged(where, "its header has been altered")
    whole = container.data_start + sum(spec.size for spec in container.layout.values())
    if size != whole:
        raise damaged(where, f"it has {size} bytes, but should have {whole}")
    return container


def damaged(where: Path, what: str) -> DamagedInlay:
    return DamagedInlay(
        f"{where} is damaged: {what}. The bytes that Intarsia wrote were expected; "
        "restore the file from a copy or learn the task again."
    )


def _take_apart(entries: Any, data_start: int, where: Path) -> Container:
    metadata = entries.pop("__metadata__", None) if isinstance(entries, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    stated = metadata.get("format")
    if not isinstance(stated, str) or not stated.startswith(FORMAT_NAME + "/"):
        raise DamagedInlay(
            f"{where} is not an inlay: it does not say that it is of the format {FORMAT}. "
            "A file written by Intarsia was expected."
        )
    if stated != FORMAT:
        raise DamagedInlay(
            f"{where} is of the format {stated!r}, and this version of Intarsia reads {FORMAT}. "
            "Update Intarsia if the file comes from a newer version; otherwise the file has been altered."
        )
    header, digest = metadata.get("intarsia"), metadata.get("digest")
    if not isinstance(header, str) or not isinstance(digest, str):
        raise damaged(where, "its header lacks the description or the digest")
    layout = {name: _spec(entry, name, where) for name, entry in entries.items()}
    return Container(header, digest, layout, data_start)


def _spec(entry: Any, name: str, where: Path) -> TensorSpec:
    fields = entry if isinstance(entry, dict) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    known = isinstance(dtype, str) and isinstance(shape, list) and dtype in DTYPE_BYTES
    # `type` and not `isinstance`: JSON's `true` would pass for the number one.
    if not known or not all(type(size) is int and size >= 0 for size in shape):
        raise damaged(where, f"the type or shape of tensor {name!r} is unreadable")
    return TensorSpec(dtype, tuple(shape))
