"""One forward pass through the frozen base, in which each slot owns some of the tokens.

`attach.py` replaces the submodules at the sites of a `transformers` model with the modules of this file. During a pass
each module looks up in the shared `Switchboard` which method owns which tokens, and lets the method act on its slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.encoder import rowwise
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.owners import Owners
from intarsia.encoder.ownership import Ownership
from intarsia.encoder.packed import Batch
from intarsia.encoder.parts import Part
from intarsia.encoder.site_method import SiteMethod
from intarsia.encoder.site_view import GroupSegments, SiteView
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.encoder.span import LayerSpan
from intarsia.encoder.static_shape import StaticBatch

ALL = slice(None)


@dataclass(frozen=True)
class Group:
    """Consecutive rows of a batch, from row `first`, whose slots share one method and tensor shapes."""

    method: SiteMethod
    places: frozenset[tuple[str, int]]  # (site, layer) pairs where the method acts on this base
    tensors: Mapping[str, Tensor]  # each [slots, …]
    first: int
    slots: tuple[int, ...]  # the owners, in row order
    rows: tuple[int, ...]  # the number of rows of each owner
    parts: tuple[Part, ...] = ()  # if the method is a composition


@dataclass
class Pass:
    """The state of one forward pass."""

    batch: Batch | StaticBatch
    groups: Sequence[Group]
    noise: Noise | None = None  # set in training passes: turns dropout on
    training: bool = False
    padded: bool = False
    paused: bool = False  # the running module processes no tokens of the batch (DeBERTa's relative positions)
    sublayer_input: Tensor | None = None
    layer_input: Tensor | None = None
    span: LayerSpan = field(default_factory=LayerSpan)
    memory: dict[int, dict[Any, Any]] = field(default_factory=dict)  # by group: states that its method stores
    compiled: Callable[[Pass, Tensor], Tensor] | None = None  # computes all layers at once
    relative: Tensor | None = None  # MPNet's bias by distance for all layers, if this pass replaces its weight
    _owners: dict[tuple[int, bool], tuple[slice, Ownership]] = field(default_factory=dict)
    _segments: dict[tuple[int, bool], GroupSegments] = field(default_factory=dict)

    @cached_property
    def places(self) -> frozenset[tuple[str, int]]:
        """The (site, layer) pairs where a method acts in this pass."""
        return frozenset().union(*(group.places for group in self.groups))

    @property
    def packed(self) -> Batch:
        """The batch of a pass without fixed shape."""
        assert isinstance(self.batch, Batch)
        return self.batch

    def owners(self, index: int) -> tuple[slice, Ownership]:
        """Return the token slice of a group in the current layout, and the owners of its tokens."""
        if isinstance(self.batch, StaticBatch):
            return slice(0, self.batch.tokens), self.batch.owners
        key = (index, self.padded)
        if key not in self._owners:
            group = self.groups[index]
            edges = [group.first]
            for rows in group.rows:
                edges.append(edges[-1] + rows)
            step = self.batch.whole.length if self.padded else 0
            bounds = [r * step if self.padded else self.batch.offsets[r] for r in edges]
            sizes = tuple(b - a for a, b in zip(bounds, bounds[1:], strict=False))
            self._owners[key] = (slice(bounds[0], bounds[-1]), Owners(group.slots, sizes, str(self.batch.ids.device)))
        return self._owners[key]

    def segments(self, index: int) -> GroupSegments:
        """Return the segments of a group as a separate batch."""
        if isinstance(self.batch, StaticBatch):
            return GroupSegments(self.batch, self.batch.tokens, None)
        key = (index, self.padded)
        if key not in self._segments:
            group = self.groups[index]
            batch = self.batch.part(group.first, group.first + sum(group.rows))
            real, tokens = None, batch.tokens
            if self.padded:
                step = self.batch.whole.length
                tokens = batch.rows * step
                real = batch.positions + torch.arange(batch.rows, device=batch.ids.device).repeat_interleave(
                    batch.row_lengths
                ).mul_(step)
            self._segments[key] = GroupSegments(batch, tokens, real)
        return self._segments[key]

    def layer(self, layers: tuple[int, ...]) -> int:
        """Return the layer for which a module is running, out of the layers that use it."""
        return layers[0] if len(layers) == 1 else self.span.now

    @contextmanager
    def as_padded(self) -> Iterator[None]:
        """Use the padded layout in the `with` block."""
        self.padded = True
        try:
            yield
        finally:
            self.padded = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let no method act in the `with` block."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


class Switchboard:
    """The state that all replaced modules of one model share: the current pass, or None."""

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.on_layer_output: Callable[[Tensor], None] | None = None  # called with the output of every layer
        self.modules: dict[tuple[str, int], nn.Module] = {}  # the base's modules, by site and layer

    def act(
        self,
        inner: nn.Module | None,
        site: str,
        layer: int,
        y: Tensor,
        x: Tensor | None = None,
        columns: slice = ALL,
        undropped: float = 0.0,
    ) -> Tensor:
        """Return `y` after each method that acts at the site has changed its own tokens (only in `columns`).

        `x` is the input of the linear layer at the site. `undropped` is the dropout probability that the method must
        apply to `y`.
        """
        current = self.current
        assert current is not None
        changed: list[tuple[slice, Tensor]] = []
        flat = y.reshape(-1, y.shape[-1])  # [tokens, width]
        # Contiguous, because PyTorch rounds a view of columns by another code that depends on the number of rows.
        part = flat if columns is ALL else flat[:, columns].contiguous()
        for index, group in enumerate(current.groups):
            if (site, layer) in group.places:
                where, view = self.view(current, index, inner, site, layer, y.dtype)
                view.columns = None if columns is ALL else columns
                view.undropped = undropped
                if x is not None:
                    view.input = _cut(x.reshape(-1, x.shape[-1]), where)
                changed.append((where, group.method.output(view, _cut(part, where))))
        if not changed:
            return y
        part = _assemble(part, changed)
        if columns is not ALL:
            part = torch.cat([flat[:, : columns.start], part, flat[:, columns.stop :]], 1)
        return part.view(y.shape)

    def method_drops(self, sites: tuple[str, ...], layer: int) -> bool:
        """Return whether the only method that acts here also applies the dropout, in the same kernel."""
        current = self.current
        assert current is not None
        if not isinstance(current.batch, StaticBatch) or current.noise is None or not current.noise.dropout:
            return False
        (group,) = current.groups
        return len(sites) == 1 and (sites[0], layer) in group.places and group.method.takes_undropped

    def view(
        self, current: Pass, index: int, inner: nn.Module | None, site: str, layer: int, dtype: torch.dtype
    ) -> tuple[slice, SiteView]:
        """Return the token slice of a group, and the `SiteView` of its method."""
        where, owners = current.owners(index)
        group = current.groups[index]
        view = SiteView(
            site=site,
            layer=layer,
            tensors=group.tensors,
            owners=owners,
            parts=group.parts,
            module=inner,
            module_at=lambda other: self.modules[other, layer],
            segments=lambda: current.segments(index),
            memory=current.memory.setdefault(index, {}),
            noise=current.noise,
            training=current.training,
            dtype=dtype,
        )
        for wanted in group.method.wants:
            state: Tensor | None = getattr(current, wanted)
            if state is not None:
                setattr(view, wanted, _cut(state.reshape(-1, state.shape[-1]), where))
        return where, view


class Site(nn.Module):
    """Replaces a submodule of the base: runs it, and lets methods act on its inputs and outputs."""

    def __init__(
        self, inner: nn.Module, sites: tuple[str, ...], layers: tuple[int, ...], switchboard: Switchboard, fused: bool
    ) -> None:
        super().__init__()
        self.inner, self.sites, self.layers, self.switchboard = inner, sites, layers, switchboard
        self.is_norm = sites[0].endswith(".norm")
        self.inputs = tuple(f"{site}.input" for site in sites if site in LINEAR_SITES)
        self.everything = sites + self.inputs
        self.columns: dict[str, slice] = {}
        if fused and "query" in sites:
            third = int(inner.out_features) // 3  # type: ignore[arg-type]
            self.columns = {s: slice(i * third, (i + 1) * third) for i, s in enumerate(("query", "key", "value"))}

    def forward(self, x: Tensor) -> Tensor:
        board = self.switchboard
        current = board.current
        if current is None or not current.groups or current.paused or current.span.left_out:
            return self.inner(x)
        layer, places = current.layer(self.layers), current.places
        if not any((site, layer) in places for site in self.everything):
            return self.inner(x)
        if self.is_norm:
            return self._norm(current, layer, x)
        for site in self.inputs:
            x = board.act(self.inner, site, layer, x)
        if isinstance(self.inner, Dropout) and board.method_drops(self.sites, layer):
            return board.act(self.inner, self.sites[0], layer, x, undropped=self.inner.p)
        y = self.inner(x)
        for site in self.sites:
            y = board.act(self.inner, site, layer, y, x if self.inputs else None, self.columns.get(site, ALL))
        return y

    def _norm(self, current: Pass, layer: int, x: Tensor) -> Tensor:
        """Return `x` normalised: methods that act here normalise their own tokens, the base's norm all others."""
        flat = x.reshape(-1, x.shape[-1])
        changed: list[tuple[slice, Tensor]] = []
        for index, group in enumerate(current.groups):
            if (self.sites[0], layer) in group.places:
                where, view = self.switchboard.view(current, index, self.inner, self.sites[0], layer, x.dtype)
                changed.append((where, group.method.norm(view, _cut(flat, where))))
        if not changed:
            return self.inner(x)
        return _assemble(flat, changed, self.inner).view(x.shape)


def _cut(flat: Tensor, where: slice) -> Tensor:
    """Return a slice, or `flat` itself if the slice covers it: the backward of a slice fills zeros and copies."""
    return flat if where.start == 0 and where.stop == flat.shape[0] else flat[where]


def _assemble(flat: Tensor, changed: list[tuple[slice, Tensor]], rest: nn.Module | None = None) -> Tensor:
    """Return all tokens: the changed slices, and between them the unchanged tokens (through `rest`, if given)."""
    pieces: list[Tensor] = []
    done = 0  # tokens
    for where, piece in [*changed, (slice(flat.shape[0], flat.shape[0]), flat[:0])]:
        if where.start > done:
            between = flat[done : where.start]
            pieces.append(between if rest is None else rest(between))
        if piece.shape[0]:
            pieces.append(piece)
        done = where.stop
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class Dropout(nn.Module):
    """Replaces every `nn.Dropout` of the base: active only in training passes, with the noise of the pass."""

    def __init__(self, p: float, switchboard: Switchboard) -> None:
        super().__init__()
        self.p, self.switchboard = p, switchboard

    def forward(self, x: Tensor) -> Tensor:
        current = self.switchboard.current
        return x if current is None or current.span.left_out else drop(x, self.p, current.noise)


class Gelu(nn.Module):
    """Replaces the base's GELU: a kernel in recorded bf16 passes, in place in CPU passes without gradients, and the
    original module elsewhere."""

    def __init__(self, plain: nn.Module, switchboard: Switchboard) -> None:
        super().__init__()
        self.plain, self.switchboard = plain, switchboard
        self.is_exact = getattr(plain, "act", None) is nn.functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        current = self.switchboard.current
        if current is None or not isinstance(current.batch, StaticBatch) or x.dtype != torch.bfloat16:
            # The input is the output of a product, which nothing else reads: without gradients, no copy is needed.
            if torch.is_grad_enabled() or x.device.type != "cpu":
                return self.plain(x)
            # Columns of a wider product (ModernBERT) are copied: their rounding would depend on the number of rows.
            x = x.contiguous()
            return torch.ops.aten.gelu_(x) if self.is_exact else rowwise.elementwise(self.plain, x)
        from intarsia.kernels import gelu

        return gelu.gelu(x)
