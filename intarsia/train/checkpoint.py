"""The checkpoint file of a training run, from which a killed run resumes.

Batch order is a function of (seed, epoch) and dropout of (seed, step). Therefore a checkpoint holds only tensors and a
few numbers: no generator state and no pickled objects.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from intarsia import files


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


def write(path: Path, state: State, tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint; an existing file is replaced in one step."""
    content = save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, {"state": json.dumps(asdict(state))})
    files.replace(path, [content])


def read(path: Path) -> tuple[State, dict[str, Tensor]] | None:
    """Return the checkpoint's state and tensors; None if the file is missing or damaged (the run then starts anew)."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            known = json.loads(file.metadata()["state"])
            state = State(**{"own_seconds": known["seconds"], **known})  # states written before were of runs alone
            return state, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None
