"""The checkpoint file of a training run, from which a killed run resumes.

Batch order is a function of (seed, epoch) and dropout of (seed, step). Therefore a checkpoint holds only tensors and a
few numbers: no generator state and no pickled objects. A checksum covers all of it, because a run that resumes from
an altered checkpoint would end with other weights without a word.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from intarsia import files
from intarsia.errors import IntarsiaWarning

FORMAT, CHECKSUM = "format", "checksum"  # keys of the metadata; files without both were written before 0.2


@dataclass
class State:
    """The state of a run, except its tensors."""

    step: int = 0  # completed steps
    phase: int = 0
    phase_step: int = 0  # completed steps when the phase began
    phase_epoch: int = 0  # completed epochs when the phase began
    best: float | None = None  # best validation score
    best_epoch: int = 0
    seconds: float = 0.0  # from the start to the end, less interruptions
    own_seconds: float = 0.0  # of these the run's share, where other runs were in its passes
    tokens: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per epoch


def write(path: Path, state: State, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint; an existing file is replaced in one step."""
    write_tensors(path, tensors, {"state": json.dumps(asdict(state))})


def read(path: Path) -> tuple[State, dict[str, Tensor]] | None:
    """Return the checkpoint's state and tensors; None if the file is missing or damaged (the run then starts anew)."""
    found = read_tensors(path)
    if found is None:
        return None
    try:
        known = json.loads(found[0]["state"])
        return State(**{"own_seconds": known["seconds"], **known}), found[1]  # states written before were of runs alone
    except (KeyError, TypeError, ValueError):
        return None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata as safetensors with a checksum; an existing file is replaced in one step."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    marks = {FORMAT: "1", CHECKSUM: _checksum(kept, metadata)}
    files.replace(path, [save(kept, {**metadata, **marks})])


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]] | None:
    """Return metadata and tensors; None if the file is missing or, with a warning, if it is damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError):
        metadata = {FORMAT: ""}
    marks = [metadata.pop(mark, None) for mark in (FORMAT, CHECKSUM)]
    if marks != [None, None] and (marks[0] != "1" or marks[1] != _checksum(tensors, metadata)):
        message = f"{path} is damaged and is not used: the training run starts again."
        warnings.warn(message, IntarsiaWarning, stacklevel=2)
        return None
    return metadata, tensors


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return SHA-256 over the metadata and, sorted by name, each tensor's name, type, shape and bytes."""
    total = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
