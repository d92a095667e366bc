"""An inlay: the trained tensors of one task and their description, in one file.

The file is plain safetensors (`safetensors.torch.load_file` opens it). Its metadata hold a JSON description and a
digest of the whole content. The file contains no executable code.
"""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.bank.container import (
    DTYPE_NAMES,
    LONGEST_HEADER,
    Container,
    TensorSpec,
    canonical,
    damaged,
    digest_of,
    offsets,
    opening,
    parse,
)
from intarsia.errors import BankError, DamagedInlay

if TYPE_CHECKING:
    import torch

    from intarsia.tasks.learned import Interface, Learned


@dataclass(frozen=True, kw_only=True, eq=False)
class Description:
    """All fields of an inlay except its tensors, as plain JSON values."""

    name: str
    kind: str
    labels: tuple[str, ...]
    method: dict[str, Any]
    head: dict[str, Any]
    encoder: dict[str, str]
    parameters: dict[str, int]
    metrics: dict[str, Any]
    training: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, str]
    parents: tuple[str, ...]  # digests of the inlays that this inlay is composed of
    created: str  # ISO 8601, UTC

    @property
    def interface(self) -> Interface:
        """The task's interface: how texts become inputs and how outputs become predictions."""
        from intarsia.tasks.kind_registry import stored_kind
        from intarsia.tasks.learned import Interface

        task_kind = stored_kind(self.kind, tuple(self.labels), self.head)  # type: ignore[arg-type]
        return Interface(task_kind, bool(self.data.get("pairs")), self.training.get("max_length"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Inlay(Description):
    """The trained tensors of one task, with provenance. Tensor names start with "method." or "head."."""

    tensors: dict[str, torch.Tensor]
    digest: str = ""  # of the file that the inlay was read from

    @property
    def learned(self) -> Learned:
        """The part of the inlay that prediction needs."""
        from intarsia.methods import from_dict
        from intarsia.tasks.learned import Learned

        task_kind = self.interface.task_kind
        return Learned(from_dict(self.method), task_kind.head(self.head["pooling"]), task_kind, self.tensors)


@dataclass(frozen=True, kw_only=True)
class InlayHeader(Description):
    """The header of an inlay file: its description and layout, without the tensors' values."""

    digest: str
    bytes: int  # size of the whole file
    layout: dict[str, TensorSpec]

    def to_json(self) -> str:
        return json.dumps(vars(self))  # faster than `asdict`, which copies every value

    @classmethod
    def from_json(cls, text: str) -> InlayHeader:
        """Return the header from the text that `to_json` wrote."""
        stored = json.loads(text)
        layout = {name: TensorSpec(dtype, tuple(shape)) for name, (dtype, shape) in stored["layout"].items()}
        described = {**stored, "labels": tuple(stored["labels"]), "parents": tuple(stored["parents"])}
        return cls(**{**described, "layout": layout})


TEXT_FIELDS = ("name", "kind", "created")
TUPLE_FIELDS = ("labels", "parents")
FIELDS = tuple(field.name for field in fields(Description))


def read_inlay(path: str | Path) -> Inlay:
    """Read a whole file, check its digest, and return the inlay."""
    path = Path(path)
    content = read_content(path)
    container = check_content(content, path)
    from safetensors.torch import load

    return Inlay(**_described(container, path), tensors=load(content), digest=container.digest)


def read_header(path: str | Path) -> InlayHeader:
    """Read only the header, without checking the digest: `check_file` and `read_inlay` check it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            container = parse(file, size, path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return _header(container, size, path)


def check_file(path: str | Path) -> InlayHeader:
    """Read a whole file, check its digest, and return its header, without creating tensors."""
    path = Path(path)
    content = read_content(path)
    return _header(check_content(content, path), len(content), path)


def read_content(path: Path) -> bytes:
    """Return the bytes of a file; raise `DamagedInlay` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def check_content(content: bytes, where: Path) -> Container:
    """Parse the content of a whole file; raise `DamagedInlay` if the digest does not match."""
    container = parse(io.BytesIO(content), len(content), where)
    if digest_of(container.header, container.layout, container.slices(content)) != container.digest:
        raise damaged(where, "its content does not match its digest")
    return container


def encode(inlay: Inlay) -> list[files.Chunk]:
    """Return the bytes of an inlay's file in parts, to avoid joining large tensors in memory."""
    layout = {name: _spec_of(name, tensor) for name, tensor in inlay.tensors.items()}
    values = {name: _values_of(tensor) for name, tensor in inlay.tensors.items()}
    described = {name: _plain(getattr(inlay, name), name) for name in FIELDS}
    header = canonical(described)
    try:
        digest = digest_of(header, layout, values)
    except UnicodeEncodeError as error:
        raise BankError(
            f"The inlay {inlay.name!r} cannot be written: its description contains invalid Unicode ({error.reason}: "
            f"{error.object[error.start : error.end]!r}). Check its labels and the other texts of the description."
        ) from error
    wrong = _wrong_field(described)
    if wrong is not None:
        raise BankError(f"The inlay {inlay.name!r} cannot be written: its description {wrong}.")
    start = opening(header, digest, layout)
    if len(start) > LONGEST_HEADER:
        raise BankError(
            f"The inlay {inlay.name!r} cannot be written: its description takes {len(start)} bytes; the limit is "
            f"{LONGEST_HEADER}. Shorten the `training` and `data` fields."
        )
    return [start, *(values[name] for name in offsets(layout))]


def _spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    if not name.startswith(("method.", "head.")):
        raise BankError(f'The tensor {name!r} cannot be stored: its name must start with "method." or "head.".')
    dtype = DTYPE_NAMES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise BankError(
            f"The tensor {name!r} has the dtype {tensor.dtype}, which an inlay cannot store; expected one of: "
            f"{', '.join(DTYPE_NAMES)}. Convert the tensor first, usually with .float()."
        )
    return TensorSpec(dtype, tuple(tensor.shape))


def _values_of(tensor: torch.Tensor) -> memoryview:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _plain(value: Any, where: str) -> Any:
    """Return `value` as JSON types. NaN becomes null: an undefined metric must not prevent storing the inlay."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
        return _plain(value.item(), where)
    raise BankError(
        f"{where} holds a {type(value).__name__}, which an inlay's description cannot store; "
        "expected str, int, float, bool, None, list, tuple or dict."
    )


def _described(container: Container, where: Path) -> dict[str, Any]:
    """Return the description's fields; raise if a field is missing or has the wrong type."""
    try:
        stored = json.loads(container.header)
    except (ValueError, RecursionError):
        raise damaged(where, "its description is not JSON") from None
    wrong = _wrong_field(stored)
    if wrong is not None:
        raise damaged(where, f"its description {wrong}")
    return {name: tuple(stored[name]) if name in TUPLE_FIELDS else stored[name] for name in FIELDS}


def _wrong_field(described: Any) -> str | None:
    """Return the problem with a parsed description, or None."""
    for name in FIELDS:
        value = described.get(name) if isinstance(described, dict) else None
        if name in TEXT_FIELDS:
            right, expected = isinstance(value, str), "text"
        elif name in TUPLE_FIELDS:
            right, expected = (
                isinstance(value, list) and all(isinstance(item, str) for item in value),
                "a list of texts",
            )
        else:
            right, expected = isinstance(value, dict), "a dictionary"
        if not right:
            return f"needs {name!r} as {expected}"
    return None


def _header(container: Container, size: int, where: Path) -> InlayHeader:
    described = _described(container, where)
    return InlayHeader(**described, digest=container.digest, bytes=size, layout=container.layout)


def _unreadable(path: Path, error: OSError) -> DamagedInlay:
    return DamagedInlay(
        f"{path} cannot be read: {error.strerror or error}. Expected an inlay file with read permission."
    )
