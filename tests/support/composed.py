"""Frozen inlays with random tensors, and compositions over them, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import start
from intarsia.methods import Method, Parent
from intarsia.methods.held import Held, parts_of
from intarsia.tasks.heads import Head
from intarsia.tasks.learned import HEAD, METHOD, Learned
from intarsia.tasks.task_kind import TaskKind


def lively(method: Method, encoder: Encoder, seed: int, scale: float = 0.2) -> dict[str, Tensor]:
    """Random tensors around the starts of a method; sparse differences at random entries."""
    draw = torch.Generator().manual_seed(seed)
    specs = method.stored(encoder.shape)
    found = {name: tensor.cpu() for name, tensor in start(specs, encoder, seed).items()}
    for name, tensor in found.items():
        if specs[name].integer:
            available = sum(weight.size for weight in method.trained(encoder.shape))
            found[name] = torch.randperm(available, generator=draw)[: len(tensor)].sort()[0]
        else:
            tensor.add_(scale * torch.randn(tensor.shape, generator=draw))
    return found


def learned(
    method: Method, encoder: Encoder, seed: int = 0, parents: Mapping[str, Learned] | None = None, **changes: Any
) -> Learned:
    """A task with random tensors that answers yes or no."""
    head = Head(2, "mean")
    draw = torch.Generator().manual_seed(seed + 1000)
    tensors = {f"{METHOD}{name}": tensor for name, tensor in lively(method, encoder, seed).items()}
    for name, spec in head.tensors(encoder.shape).items():
        tensors[f"{HEAD}{name}"] = torch.randn(spec.shape, generator=draw)
    found = Learned(method, head, TaskKind("label", ("no", "yes")), tensors, parents or {})
    found.check(encoder.shape)
    return found


class Frozen:
    """A few frozen inlays over one encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.parents: dict[str, Learned] = {}

    def add(self, task: str, method: Method, seed: int = 0) -> Parent:
        """Add an inlay with random tensors, and return it as a part of compositions."""
        digest = hashlib.sha256(f"{task} {method} {seed}".encode()).hexdigest()
        self.parents[digest] = learned(method, self.encoder, seed, self.parents)
        return Parent(digest, task, 1, method)

    def held(self) -> dict[str, Held]:
        """Return all inlays, each in a slot of its own table."""
        found: dict[str, Held] = {}
        for digest, inlay in self.parents.items():
            tensors = {name: tensor[None] for name, tensor in inlay.method_tensors.items()}
            found[digest] = Held(inlay.method, tensors, 0, found)
        return found

    def group(self, method: Method, tensors: Mapping[str, Tensor], first: int, rows: int) -> Group:
        """Return a group of one owner with these tensors [1, …]."""
        shape = self.encoder.shape
        parts = parts_of([Held(method, tensors, 0, self.held())], shape)
        return Group(method, method.places(shape), tensors, first, (0,), (rows,), parts)
