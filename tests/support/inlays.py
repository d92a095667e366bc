"""Small inlays for the bank's tests, and a process that adds them."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from intarsia import files
from intarsia.bank.inlay import Inlay, encode
from intarsia.bank.store import Store

BASE = {"name": "minilm", "fingerprint": "aa" * 32, "tokenizer": "bb" * 32}
OTHER_BASE = {"name": "mpnet", "fingerprint": "cc" * 32, "tokenizer": "bb" * 32}


def make_inlay(name: str = "sentiment", value: float = 1.0, **changes: Any) -> Inlay:
    fields: dict[str, Any] = {
        "name": name,
        "kind": "label",
        "labels": ("bad", "gut ✓"),
        "method": {"type": "bottleneck", "size": 2},
        "head": {"outputs": 2, "pooling": "mean"},
        "encoder": dict(BASE),
        "tensors": {
            "method.0.ffn.output.down": torch.full((2, 3), value),
            "method.0.ffn.output.down.bias": torch.tensor([-0.0, 1e-45]),
            "head.output.weight": torch.full((2, 3), value),
            "head.output.bias": torch.zeros(2),
        },
        "parameters": {"method": 8, "head": 8, "total": 16, "base": 1000},
        "metrics": {"accuracy": 0.1 + 0.2, "by label": {"bad": 1, "gut ✓": None}},
        "training": {"learning_rate": 1e-4, "seed": 7},
        "data": {"rows": {"train": 120}, "sha256": "dd" * 32},
        "versions": {"torch": "2"},
        "parents": (),
        "created": "2024-05-06T07:08:09+00:00",
    }
    return Inlay(**{**fields, **changes})


def write_inlay(inlay: Inlay, path: Path) -> None:
    files.replace(path, encode(inlay))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_tensors(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        other = right[name]
        assert (tensor.dtype, tensor.shape, bits(tensor)) == (other.dtype, other.shape, bits(other)), name


def flip(path: Path, position: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def add_many(folder: str, start: Barrier, first: float, count: int) -> None:
    """Run in a process of its own: add `count` versions of one task, beginning together with the others."""
    inlays = [make_inlay(value=first + number) for number in range(count)]
    store = Store(folder)
    start.wait(60)
    for inlay in inlays:
        store.add(inlay)
