"""Inlay files as an attacker writes them: any description and any tensors, with a right digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from intarsia import files
from intarsia.bank.container import canonical, digest_of, offsets, opening
from intarsia.bank.inlay import FIELDS, Inlay, _plain, _spec_of, _values_of

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def forged(inlay: Inlay, change: Change | None = None, *, header: str | None = None) -> bytes:
    """The bytes of a file whose form and digest are right. `change` alters the description and the tensors in place;
    `header` replaces the text of the description."""
    described = json.loads(json.dumps({name: _plain(getattr(inlay, name), name) for name in FIELDS}))
    tensors = dict(inlay.tensors)
    if change is not None:
        change(described, tensors)
    header = canonical(described) if header is None else header
    layout = {name: _spec_of(name, tensor) for name, tensor in tensors.items()}
    values = {name: _values_of(tensor) for name, tensor in tensors.items()}
    digest = digest_of(header, layout, {name: [value] for name, value in values.items()})
    return b"".join([opening(header, digest, layout), *(values[name] for name in offsets(layout))])


def plant(folder: Path, name: str, content: bytes, version: int = 1) -> Path:
    """Put a file into a bank, as a download or a colleague would."""
    path = folder / "inlays" / name / f"{version:04d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, [content])
    return path
