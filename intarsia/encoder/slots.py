"""Slots of one shape: one buffer for the tensors of all resident inlays of that shape.

A slot is one row of the buffer [slots, parameters]. The named tensors are views of the buffer, [slots, …]. Putting an
inlay into a slot copies one row and does not touch the other slots. An optimizer step reads the buffer a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from intarsia.encoder.spec import Spec
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


class Slots:
    """`capacity` slots for tensors of the given specs."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        capacity: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.specs = dict(specs)
        self.capacity = capacity
        self.width = sum(s.size for s in self.specs.values())
        # Not initialised: the operating system allocates memory when a slot is first written.
        self.buffer = torch.empty(capacity, self.width, device=device, dtype=dtype)
        self.tensors = self.views(self.buffer)

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return the named tensors [rows, …] as views of a buffer with this layout [rows, parameters]."""
        views: dict[str, Tensor] = {}
        start = 0
        for name, spec in self.specs.items():
            views[name] = buffer[:, start : start + spec.size].view(buffer.shape[0], *spec.shape)
            start += spec.size
        return views

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the tensors of one inlay as a row of the buffer [parameters]. Their names and shapes must equal the
        specs, because a longer row would overwrite the next slot."""
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if given != (expected := {name: spec.shape for name, spec in self.specs.items()}):
            name = next(n for n in {**expected, **given} if expected.get(n) != given.get(n))
            raise IntarsiaError(
                f"the tensor {name!r} has the shape {given.get(name)}; its method on this base expects "
                f"{expected.get(name)} (None: no tensor). Use an inlay that was trained with this method on this base."
            )
        if not self.specs:
            return self.buffer.new_empty(0, device="cpu")
        return torch.cat([tensors[name].reshape(-1).to(self.buffer.dtype) for name in self.specs])

    def put(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors of one inlay into a slot."""
        self.put_row(slot, self.row(tensors))

    def put_row(self, slot: int, row: Tensor) -> None:
        """Copy the tensors of one inlay, as `row` returns them, into a slot."""
        self.buffer[slot].copy_(row, non_blocking=True)

    def get(self, slot: int) -> dict[str, Tensor]:
        """Return a copy of the tensors in a slot."""
        return {name: view[slot].detach().clone() for name, view in self.tensors.items()}

    def leaves(self) -> dict[str, Tensor]:
        """Return the tensors as autograd leaves that share the buffer's memory."""
        return {name: view.detach().requires_grad_(self.specs[name].trained) for name, view in self.tensors.items()}

    def gradient(self, loss: Tensor, leaves: Mapping[str, Tensor]) -> Tensor:
        """Return the gradient of `loss` by `leaves` in the buffer's layout [slots, parameters]; 0 for unused leaves."""
        trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return self.laid_out(leaves, iter(torch.autograd.grad(loss, trained, allow_unused=True)))

    def laid_out(self, leaves: Mapping[str, Tensor], gradients: Iterator[Tensor | None]) -> Tensor:
        """Return `gradients`, given in the order of the trained leaves, in the buffer's layout."""
        parts = [next(gradients) if leaf.requires_grad else None for leaf in leaves.values()]
        if self.capacity == 1:
            return self._one_row(parts)
        whole = (torch.zeros_like(leaf) if p is None else p for leaf, p in zip(leaves.values(), parts, strict=True))
        return torch.cat([part.reshape(self.capacity, -1) for part in whole], 1)

    def _one_row(self, parts: Sequence[Tensor | None]) -> Tensor:
        """Return the gradients of a single slot. Each tensor is contiguous, so one call for each dtype copies them."""
        row = torch.empty_like(self.buffer)
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        pieces = row[0].split([spec.size for spec in self.specs.values()])
        for piece, part in zip(pieces, parts, strict=True):
            if part is None:
                piece.zero_()
                continue
            targets, sources = by_dtype.setdefault(part.dtype, ([], []))
            targets.append(piece)
            sources.append(part.reshape(-1))
        for targets, sources in by_dtype.values():
            torch._foreach_copy_(targets, sources)
        return row

    def mask(self, which: str) -> Tensor:
        """Return [parameters]: the flag or factor (`decay`, `trained`, `rate`) of each parameter's spec."""
        parts = [torch.full((s.size,), float(getattr(s, which))) for s in self.specs.values()]
        return torch.cat(parts).to(self.buffer.device, self.buffer.dtype)


def start(specs: Mapping[str, Spec], encoder: Encoder, seed: int) -> dict[str, Tensor]:
    """Return new tensors for one inlay, initialised by its specs."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _start(spec, encoder, generator) for name, spec in specs.items()}


def _start(spec: Spec, encoder: Encoder, generator: torch.Generator) -> Tensor:
    if spec.start == "base":
        if spec.parameter is not None:
            tensor = encoder.weights[spec.parameter]
        else:
            assert spec.site is not None
            tensor = encoder.at_site(*spec.site, spec.tensor).tensor
        return tensor.detach().to(torch.float32, copy=True)
    if spec.start == "identity":
        return torch.full(spec.shape, spec.value).fill_diagonal_(1.0)
    tensor = torch.ones(spec.shape) if spec.start == "ones" else torch.full(spec.shape, spec.value)
    if spec.start == "normal" and spec.std > 0:
        torch.nn.init.trunc_normal_(tensor, 0.0, spec.std, -2 * spec.std, 2 * spec.std, generator=generator)
    return tensor
