"""composable-sft's file, as its published functions encode and decode it. Needs no Intarsia.

The library is on no package index, so its functions are written here again, with numpy, independently of Intarsia's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = "pytorch_diff.bin"


def encoded(tensor: torch.Tensor) -> dict[str, Any]:
    """Encode a difference: column-major numbers of its entries as steps; the first step is a numpy scalar."""
    coordinates = tensor.nonzero().numpy()
    multipliers = np.cumprod([1, *tensor.shape[:-1]], dtype=np.int64)
    numbers = coordinates @ multipliers
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    values = tensor[tuple(coordinates.T)][torch.from_numpy(order)]
    steps = [numbers[0], *np.diff(numbers).tolist()] if len(numbers) else []
    return {"size": tensor.size(), "index_steps": steps, "values": values}


def decoded(entry: dict[str, Any]) -> torch.Tensor:
    """Return the dense difference of an encoded one."""
    size = list(entry["size"])
    numbers = np.cumsum(entry["index_steps"], dtype=np.int64)
    modulos = np.cumprod(size, dtype=np.int64)
    divisors = np.concatenate([[1], modulos[:-1]])
    coordinates = numbers[None] // divisors[:, None] % np.array(size)[:, None]
    return torch.sparse_coo_tensor(torch.from_numpy(coordinates), entry["values"], size=size).to_dense()


def save(folder: Path, diffs: dict[str, torch.Tensor], whole: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"diffs": {name: encoded(tensor) for name, tensor in diffs.items()}, "abs": whole}, folder / FILE)


def apply(model: torch.nn.Module, folder: Path) -> None:
    """Add the differences to a model, and copy the whole tensors into it."""
    content = torch.load(folder / FILE, weights_only=False)
    with torch.no_grad():
        for name, entry in content["diffs"].items():
            model.get_parameter(name).add_(decoded(entry))
        for name, tensor in content["abs"].items():
            model.get_parameter(name).copy_(tensor)
