"""One forward through the frozen base, its tokens owned by many slots.

`attach` substitutes the submodules at the sites of an unmodified `transformers` model. During a pass each of them
looks up, on the shared `Switchboard`, which methods own which tokens, and lets each act on its own slice.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from intarsia.encoder import attention
from intarsia.encoder.frozen import FrozenLinear
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.owned import Owned, Runs
from intarsia.encoder.packed import Batch
from intarsia.encoder.sites import Family, layer_paths, places

if TYPE_CHECKING:
    from intarsia.methods import Method


@dataclass(frozen=True)
class Group:
    """A run of rows in a batch whose owners share one method (shape): rows `first` … of these slots, in order."""

    method: Method
    places: frozenset[tuple[str, int]]  # (site, layer) where the method acts on this base
    tensors: Mapping[str, Tensor]  # each [slots, …]
    first: int
    slots: tuple[int, ...]  # one owner after another
    rows: tuple[int, ...]  # how many rows each owns


@dataclass
class Pass:
    """The pass under way."""

    batch: Batch
    groups: Sequence[Group]
    noise: Noise | None = None  # set in training: dropout is on
    training: bool = False
    padded: bool = False
    sublayer_input: Tensor | None = None
    calls: dict[int, int] = field(default_factory=dict)  # of modules that serve several layers
    _owned: dict[tuple[int, bool], tuple[slice, Runs]] = field(default_factory=dict)

    def owned(self, index: int) -> tuple[slice, Runs]:
        """The token slice of a group in the present layout, and who owns what in it."""
        key = (index, self.padded)
        if key not in self._owned:
            group = self.groups[index]
            edges = [group.first]
            for rows in group.rows:
                edges.append(edges[-1] + rows)
            step = self.batch.whole.length
            bounds = [r * step if self.padded else self.batch.offsets[r] for r in edges]
            sizes = tuple(b - a for a, b in zip(bounds, bounds[1:], strict=False))
            self._owned[key] = (slice(bounds[0], bounds[-1]), Runs(group.slots, sizes, str(self.batch.ids.device)))
        return self._owned[key]

    @contextmanager
    def as_padded(self) -> Iterator[None]:
        self.padded = True
        try:
            yield
        finally:
            self.padded = False


class Switchboard:
    """Shared by all substituted modules of one model; holds the pass under way, or None."""

    def __init__(self) -> None:
        self.current: Pass | None = None


class Site(nn.Module):
    """A submodule of the base, with the methods that act there."""

    def __init__(
        self, inner: nn.Module, sites: tuple[str, ...], layers: tuple[int, ...], switchboard: Switchboard
    ) -> None:
        super().__init__()
        self.inner, self.sites, self.layers, self.switchboard = inner, sites, layers, switchboard
        self.is_norm = sites[0].endswith(".norm")

    def forward(self, x: Tensor) -> Tensor:
        current = self.switchboard.current
        if current is None or not current.groups:
            return self.inner(x)
        layer = self.layers[0]
        if len(self.layers) > 1:
            calls = current.calls.get(id(self), 0)
            current.calls[id(self)] = calls + 1
            layer = self.layers[calls]
        if self.is_norm:
            return self._norm(current, layer, x)
        y = self.inner(x)
        for site in self.sites:
            y = self._act(current, site, layer, y)
        return y

    def _owned(self, current: Pass, index: int, group: Group, site: str, layer: int) -> tuple[slice, Owned]:
        where, runs = current.owned(index)
        owned = Owned(site, layer, group.tensors, runs, current.training, self.inner)
        if current.sublayer_input is not None:
            owned.sublayer_input = current.sublayer_input.reshape(-1, current.sublayer_input.shape[-1])[where]
        return where, owned

    def _act(self, current: Pass, site: str, layer: int, y: Tensor) -> Tensor:
        """Let each method that acts here change its own tokens of the site's output."""
        changed: list[tuple[slice, Tensor]] = []
        flat = y.reshape(-1, y.shape[-1])  # [tokens, width]
        for index, group in enumerate(current.groups):
            if (site, layer) in group.places:
                where, owned = self._owned(current, index, group, site, layer)
                changed.append((where, group.method.output(owned, flat[where])))
        return _assemble(flat, changed).view(y.shape) if changed else y

    def _norm(self, current: Pass, layer: int, x: Tensor) -> Tensor:
        """Each method that has norms of its own normalises its own tokens; the base's norm does the rest."""
        flat = x.reshape(-1, x.shape[-1])
        changed: list[tuple[slice, Tensor]] = []
        for index, group in enumerate(current.groups):
            if (self.sites[0], layer) in group.places:
                where, owned = self._owned(current, index, group, self.sites[0], layer)
                changed.append((where, group.method.norm(owned, flat[where])))
        if not changed:
            return self.inner(x)
        return _assemble(flat, changed, self.inner).view(x.shape)


def _assemble(flat: Tensor, changed: list[tuple[slice, Tensor]], rest: nn.Module | None = None) -> Tensor:
    """The changed slices, and between them the untouched tokens (through `rest`, if given)."""
    pieces: list[Tensor] = []
    at = 0
    for where, piece in [*changed, (slice(flat.shape[0], flat.shape[0]), flat[:0])]:
        if where.start > at:
            between = flat[at : where.start]
            pieces.append(between if rest is None else rest(between))
        if piece.shape[0]:
            pieces.append(piece)
        at = where.stop
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class Dropout(nn.Module):
    """Stands for every `nn.Dropout` of the base: on in training passes only, with the pass's own noise."""

    def __init__(self, p: float, switchboard: Switchboard) -> None:
        super().__init__()
        self.p, self.switchboard = p, switchboard

    def forward(self, x: Tensor) -> Tensor:
        current = self.switchboard.current
        return x if current is None else drop(x, self.p, current.noise)


def attach(model: Any, family: Family) -> Switchboard:
    """Substitute the submodules at the sites of `model`; it then computes what it did before, until a pass says
    otherwise."""
    switchboard = Switchboard()
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Dropout):
            _put(model, path, Dropout(module.p, switchboard))
        elif isinstance(module, nn.Linear):
            _put(model, path, FrozenLinear(module))
    for place in list(places(family, model)):
        inner = model.get_submodule(place.path)
        _put(model, place.path, Site(inner, place.sites, place.layers, switchboard))
    _make_packed(model, family, switchboard)
    for prefix, _ in layer_paths(family, model):
        for path in (family.attention, family.within["ffn.up"]):
            _watch(model.get_submodule(f"{prefix}.{path}"), switchboard)
    model.requires_grad_(False)
    # `transformers` hands the attention dropout to the registered attention in train mode only; whether it is applied
    # is the pass's decision, as it is for every other dropout here.
    model.train()
    return switchboard


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _watch(module: nn.Module, switchboard: Switchboard) -> None:
    """Remember the sub-layer's input while a method in the pass wants it (adapters parallel to the sub-layer)."""

    def remember(_: nn.Module, args: tuple[Any, ...]) -> None:
        current = switchboard.current
        if current is not None and any(g.method.wants_sublayer_input for g in current.groups):
            current.sublayer_input = args[0]

    module.register_forward_pre_hook(remember)


def _make_packed(model: Any, family: Family, switchboard: Switchboard) -> None:
    if family.core == "registry":
        attention.register()
        _own_config(model)._attn_implementation = attention.NAME
        for prefix, _ in layer_paths(family, model):
            model.get_submodule(f"{prefix}.{family.attention}").intarsia_switchboard = switchboard
        return
    for prefix, _ in layer_paths(family, model):
        path = f"{prefix}.{family.attention}"
        plain = model.get_submodule(path)
        if family.core == "mpnet":
            _put(model, path, attention.MPNetCore(plain, _shared_bias(model), switchboard))
        else:
            _put(model, path, attention.PaddedIsland(plain, switchboard))
    if family.core == "deberta":
        _spare_deberta_squares(model.encoder, switchboard)


def _own_config(model: Any) -> Any:
    """A copy of the configuration for this model alone: others may have been made from the same object."""
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own
    return own


def _shared_bias(model: Any) -> attention.MPNetBias:
    """One bias table for all layers; and the encoder no longer builds its own [N, N] one."""
    encoder = model.encoder
    if not hasattr(encoder, "intarsia_bias"):
        encoder.intarsia_bias = attention.MPNetBias(encoder)
        encoder.compute_position_bias = lambda *_, **__: None
    return encoder.intarsia_bias


def _spare_deberta_squares(encoder: Any, switchboard: Switchboard) -> None:
    """Keep DeBERTa's encoder from building [N, N] masks and positions over the whole packed stream."""
    if encoder.conv is not None:
        encoder.conv = attention.PaddedIsland(encoder.conv, switchboard, convolution=True)
    plain_mask, plain_positions = encoder.get_attention_mask, encoder.get_rel_pos

    def packed() -> bool:
        return switchboard.current is not None and not switchboard.current.padded

    encoder.get_attention_mask = lambda mask: mask if packed() else plain_mask(mask)
    encoder.get_rel_pos = lambda *a, **k: None if packed() else plain_positions(*a, **k)
