"""An inlay: the trained tensors of one task and their description, in one file.

The file is plain safetensors (`safetensors.torch.load_file` opens it). Its metadata hold a JSON description and a
digest of the whole content. The file contains no executable code.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

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
from intarsia.bank.description import FIELDS, TUPLE_FIELDS, Description
from intarsia.bank.schema import description_fault, parse_json
from intarsia.bank.usable import NOT_FINITE, all_finite, usable_fault
from intarsia.errors import BankError, DamagedInlay, IntarsiaError, Refused

if TYPE_CHECKING:
    import torch

    from intarsia.encoder.encoder import Encoder
    from intarsia.methods import Method
    from intarsia.tasks.learned import Learned


@dataclass(frozen=True, kw_only=True, eq=False)
class Inlay(Description):
    """The trained tensors of one task, with provenance. Tensor names start with "method." or "head."."""

    tensors: dict[str, torch.Tensor]
    digest: str = ""  # of the file that the inlay was read from

    def learned_on(
        self, encoder: Encoder, parents: Mapping[str, Learned] | None = None, *, method: Method | None = None
    ) -> Learned:
        """The part of the inlay that prediction needs, for use on `encoder`.

        A composed inlay needs its `parents`, by digest, which `bank/family.py` loads. `method` replaces the stored
        method if other parents were swapped in. Raises unless the inlay was made for this encoder, and has exactly the
        tensors that its method and head have there: a file must not reach beyond its own task.
        """
        from intarsia.bank.manifest import misfit
        from intarsia.methods import from_dict
        from intarsia.tasks.heads import Hidden
        from intarsia.tasks.learned import Learned

        difference = misfit(dict(self.encoder), encoder.description)
        if difference is not None:
            raise Refused(f"The inlay {self.name!r} cannot be used here: it was {difference}. Use its own base.")
        self.check()
        try:
            task_kind = self.interface.task_kind
            head = task_kind.head(self.head["pooling"], Hidden.of(self.head))
            learned = Learned(method or from_dict(self.method), head, task_kind, self.tensors, parents or {})
            learned.check(encoder.shape)
        except IntarsiaError as error:
            raise DamagedInlay(f"The inlay {self.name!r} does not fit its base: {error}") from error
        return learned

    def check(self, where: Path | None = None) -> None:
        """Raise, with the file's name if given, unless the inlay is consistent and all of its weights are finite."""
        fault = usable_fault(self, self.layout)
        if fault is None:
            infinite = [name for name, tensor in self.tensors.items() if not bool(tensor.isfinite().all())]
            fault = NOT_FINITE.format(infinite[0]) if infinite else None
        if fault is not None:
            raise damaged(where, fault) if where else DamagedInlay(f"The inlay {self.name!r} cannot be used: {fault}.")

    @property
    def layout(self) -> dict[str, TensorSpec]:
        return {name: _spec_of(name, tensor) for name, tensor in self.tensors.items()}


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
        """Return the header from the text that `to_json` wrote; raise `DamagedInlay` for any other text."""
        try:
            stored = parse_json(text)
            fault = description_fault(stored)
            if fault is not None:
                raise ValueError(fault)
            layout = {name: TensorSpec(dtype, tuple(shape)) for name, (dtype, shape) in stored["layout"].items()}
            return cls(**_fields(stored), digest=str(stored["digest"]), bytes=int(stored["bytes"]), layout=layout)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedInlay(
                f"The index holds a header that Intarsia did not write ({error}). Run `intarsia verify --rebuild`."
            ) from error


BLOCK = 1 << 20


def read_inlay(path: str | Path) -> Inlay:
    """Read a whole file, check its digest, and return the inlay."""
    path = Path(path)
    return decode(read_content(path), path)


def decode(content: bytes, where: Path) -> Inlay:
    """Return the inlay of a whole file's content, after checking its digest."""
    container = check_content(content, where)
    from safetensors.torch import load

    return Inlay(**_described(container, where), tensors=load(content), digest=container.digest)


def read_header(path: str | Path) -> InlayHeader:
    """Read only the header, without checking the digest: `check_file` and `read_inlay` check it."""
    path = Path(path)
    with _opened(path) as (file, size):
        return _header(parse(file, size, path), size, path)


def check_file(path: str | Path, *, finite: bool = False) -> InlayHeader:
    """Read a whole file, check its digest (and with `finite` its weights), and return its header.

    The file is read in blocks, so the memory does not depend on its size.
    """
    path = Path(path)
    with _opened(path) as (file, size):
        container = parse(file, size, path)
        infinite: list[str] = []
        values = {}
        for name, (start, end) in offsets(container.layout).items():
            blocks = _blocks(file, container.data_start + start, end - start)
            values[name] = _watched(blocks, container.layout[name], name, infinite)
        if digest_of(container.header, container.layout, values) != container.digest:
            raise damaged(path, "its content does not match its digest")
    if finite and infinite:
        raise damaged(path, NOT_FINITE.format(infinite[0]))
    return _header(container, size, path)


def read_content(path: Path) -> bytes:
    """Return the bytes of a file; raise `DamagedInlay` if it cannot be read."""
    with _opened(path) as (file, size):
        content = file.read(size + 1)
        if len(content) != size:
            raise damaged(path, f"it had {size} bytes when it was opened, but {len(content)} were read")
        return content


def check_content(content: bytes, where: Path) -> Container:
    """Parse the content of a whole file; raise `DamagedInlay` if the digest does not match."""
    container = parse(io.BytesIO(content), len(content), where)
    values = {name: [view] for name, view in container.slices(content).items()}
    if digest_of(container.header, container.layout, values) != container.digest:
        raise damaged(where, "its content does not match its digest")
    return container


def encode(inlay: Inlay) -> list[files.Chunk]:
    """Return the bytes of an inlay's file in parts, to avoid joining large tensors in memory."""
    layout = {name: _spec_of(name, tensor) for name, tensor in inlay.tensors.items()}
    values = {name: _values_of(tensor) for name, tensor in inlay.tensors.items()}
    described = {name: _plain(getattr(inlay, name), name) for name in FIELDS}
    header = canonical(described)
    try:
        digest = digest_of(header, layout, {name: [value] for name, value in values.items()})
    except UnicodeEncodeError as error:
        raise BankError(
            f"The inlay {inlay.name!r} cannot be written: its description contains invalid Unicode ({error.reason}: "
            f"{error.object[error.start : error.end]!r}). Check its labels and the other texts of the description."
        ) from error
    fault = description_fault(described)
    if fault is not None:
        raise BankError(
            f"The inlay {inlay.name!r} cannot be written: its description does not fit the schema: {fault}."
        )
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
    """Return the description's fields; raise unless they fit the schema."""
    try:
        stored = parse_json(container.header)
    except ValueError as error:
        raise damaged(where, f"its description is not JSON ({error})") from None
    fault = description_fault(stored)
    if fault is not None:
        raise damaged(where, f"its description does not fit the schema: {fault}")
    return _fields(stored)


def _fields(stored: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(stored[name]) if name in TUPLE_FIELDS else stored[name] for name in FIELDS}


def _header(container: Container, size: int, where: Path) -> InlayHeader:
    described = _described(container, where)
    return InlayHeader(**described, digest=container.digest, bytes=size, layout=container.layout)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file for reading, with its size; raise `DamagedInlay` if it cannot be read."""
    try:
        with files.open_regular(path) as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DamagedInlay(
            f"{path} cannot be read: {error.strerror or error}. Expected an inlay file with read permission."
        ) from error


def _blocks(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of a file from `start`, in blocks; fewer if the file has become shorter."""
    file.seek(start)
    while size > 0 and (block := file.read(min(size, BLOCK))):
        size -= len(block)
        yield block


def _watched(blocks: Iterable[bytes], spec: TensorSpec, name: str, infinite: list[str]) -> Iterator[bytes]:
    """Yield the blocks of a tensor; note its name if one holds NaN or infinity."""
    for block in blocks:
        if not all_finite(spec.dtype, block):
            infinite.append(name)
        yield block
