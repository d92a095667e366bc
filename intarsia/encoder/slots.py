"""Slots: the tensors of all resident inlays of one shape, as one stack.

A slot is one row of a flat buffer [slots, parameters]; the named tensors are views of it, [slots, …]. Putting an inlay
into a slot is a copy into one row, whatever else is resident, and an optimizer step is a handful of sweeps over the
buffer.
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
    """A stack of `capacity` rows for tensors of the given specs."""

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
        # Not filled: the operating system hands out pages as slots are first written.
        self.buffer = torch.empty(capacity, self.width, device=device, dtype=dtype)
        self.tensors = self.views(self.buffer)

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """The named tensors [rows, …] in a buffer of this layout [rows, parameters]."""
        views: dict[str, Tensor] = {}
        at = 0
        for name, spec in self.specs.items():
            views[name] = buffer[:, at : at + spec.size].view(buffer.shape[0], *spec.shape)
            at += spec.size
        return views

    def put(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy one inlay's tensors into a slot. They must be exactly those of the specs: a longer row would reach into
        the next slot."""
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if given != (wanted := {name: spec.shape for name, spec in self.specs.items()}):
            name = next(n for n in {**wanted, **given} if wanted.get(n) != given.get(n))
            raise IntarsiaError(
                f"the tensor {name!r} has the shape {given.get(name)}, and its method wants {wanted.get(name)} on this "
                "base (None: no such tensor). The file was not made by this method over this base."
            )
        if self.specs:
            row = [tensors[name].to(self.buffer.device).reshape(-1) for name in self.specs]
            torch.cat(row, out=self.buffer[slot])

    def get(self, slot: int) -> dict[str, Tensor]:
        """A copy of what a slot holds."""
        return {name: view[slot].detach().clone() for name, view in self.tensors.items()}

    def leaves(self) -> dict[str, Tensor]:
        """The tensors as autograd leaves that share the buffer's memory."""
        return {name: view.detach().requires_grad_(self.specs[name].trained) for name, view in self.tensors.items()}

    def gradient(self, loss: Tensor, leaves: Mapping[str, Tensor]) -> Tensor:
        """The gradient of `loss` by `leaves`, laid out as the buffer [slots, parameters]; 0 where nothing flows."""
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return self.laid_out(leaves, iter(torch.autograd.grad(loss, wanted, allow_unused=True)))

    def laid_out(self, leaves: Mapping[str, Tensor], found: Iterator[Tensor | None]) -> Tensor:
        """Gradients of the leaves that take one, in their order, laid out as the buffer."""
        parts = [next(found) if leaf.requires_grad else None for leaf in leaves.values()]
        if self.capacity == 1:
            return self._one_row(parts)
        whole = (torch.zeros_like(leaf) if p is None else p for leaf, p in zip(leaves.values(), parts, strict=True))
        return torch.cat([part.reshape(self.capacity, -1) for part in whole], 1)

    def _one_row(self, parts: Sequence[Tensor | None]) -> Tensor:
        """Where every tensor is one piece of the buffer: copies all at once, one for each type of number."""
        row = torch.empty_like(self.buffer)
        kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        pieces = row[0].split([spec.size for spec in self.specs.values()])
        for piece, part in zip(pieces, parts, strict=True):
            if part is None:
                piece.zero_()
                continue
            into, of = kinds.setdefault(part.dtype, ([], []))
            into.append(piece)
            of.append(part.reshape(-1))
        for into, of in kinds.values():
            torch._foreach_copy_(into, of)
        return row

    def mask(self, which: str) -> Tensor:
        """[parameters] the spec's flag or factor (`decay`, `trained`, `rate`) of each."""
        parts = [torch.full((s.size,), float(getattr(s, which))) for s in self.specs.values()]
        return torch.cat(parts).to(self.buffer.device, self.buffer.dtype)


def start(specs: Mapping[str, Spec], encoder: Encoder, seed: int) -> dict[str, Tensor]:
    """Fresh tensors for one inlay, as its specs say."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _start(spec, encoder, generator) for name, spec in specs.items()}


def _start(spec: Spec, encoder: Encoder, generator: torch.Generator) -> Tensor:
    if spec.start == "base":
        if spec.parameter is not None:
            found = encoder.weights[spec.parameter]
        else:
            assert spec.site is not None
            found = encoder.at_site(*spec.site, spec.tensor).tensor
        return found.detach().to(torch.float32, copy=True)
    if spec.start == "identity":
        return torch.eye(*spec.shape)
    tensor = torch.ones(spec.shape) if spec.start == "ones" else torch.full(spec.shape, spec.value)
    if spec.start == "normal" and spec.std > 0:
        torch.nn.init.trunc_normal_(tensor, 0.0, spec.std, -2 * spec.std, 2 * spec.std, generator=generator)
    return tensor
