"""The layers of a CPU pass in one compiled function (`kernels/cpu/pass.c`), without gradients.

PyTorch spends more time between the operations of a small pass than in them. The compiled function runs all layers with
the methods in them, on all threads, while Python may do other work. It knows families whose LayerNorms stand behind the
sub-layers (BERT, RoBERTa, XLM-R, ELECTRA, MPNet, DistilBERT) and methods that describe themselves by `Method.compiled`.
Everything else runs in PyTorch, in passes of its own, so that a row always has the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_int32, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.encoder import pass_threads
from intarsia.encoder.compiled_structures import (
    CompiledPass,
    FusionTensors,
    Layer,
    Linear,
    LinearTensors,
    Owner,
    PrefixTensors,
    SiteTensors,
    Use,
)
from intarsia.encoder.compiled_tables import ACTIVATIONS, BEHIND, Table
from intarsia.encoder.parts import Part
from intarsia.encoder.routed import Gelu, Group, Pass
from intarsia.encoder.shape import Shape
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.kernels import cpu_library

Modules = Mapping[tuple[str, int], Any]  # of a model, by site and layer
_TABLES = 64  # tables of slots whose addresses are kept


def can_compile(shape: Shape, method: Any) -> bool:
    """Return whether compiled passes can have a method, on a base that they can have."""
    parts = None if method.changes_base else method.compiled_parts(shape)
    return parts is not None and all(site.activation in ACTIVATIONS for part in parts for site in part.values())


class CompiledLayers:
    """The layers of one base, with its weights laid out for the compiled function."""

    def __init__(self, model: Any, modules: Modules, shape: Shape, library: ctypes.CDLL, *, int8: bool) -> None:
        self._functions, self._modules, self.shape, self.int8 = library, modules, shape, int8
        self._panel = library.intarsia_panel()
        self._kept: list[Tensor] = []  # what the structures point to
        self._relative = getattr(getattr(model, "encoder", None), "intarsia_bias", None)  # MPNet's bias of the scores
        norms = [modules[f"{name}.norm", layer] for layer in range(shape.layers) for name in BEHIND]
        self._eps = float(norms[0].eps)
        self._layers = (Layer * self.shape.layers)(*[self._layer(modules, layer) for layer in range(shape.layers)])
        self._inner = self._layers[0].up.outputs
        self._work = torch.empty(0, dtype=torch.uint8)
        self._tables: dict[tuple[Any, ...], Table] = {}

    @classmethod
    def of(cls, model: Any, modules: Modules, shape: Shape, *, int8: bool = False) -> CompiledLayers | None:
        """Return the layers of an attached float32 model, given its modules at the sites; None if this base or this
        machine cannot have them."""
        if not _fits(model, modules, shape):
            return None
        library = cpu_library.load()
        if library is None or not _divides(library, modules, shape) or (int8 and not library.intarsia_int8()):
            return None
        return cls(model, modules, shape, library, int8=int8)

    def __call__(self, current: Pass, states: Tensor) -> Tensor:
        """Return the states [1, N, d] after the layers of the pass's span."""
        batch, span = current.packed, current.span
        out = states.detach().clone(memory_format=torch.contiguous_format)
        offsets = (c_int32 * len(batch.offsets))(*batch.offsets)
        tables = [table for group in current.groups for table in self._tables_of(group)]
        owners, uses = _owners(current.groups, batch.offsets)

        def joined(kind: Any, name: str) -> Any:
            return _joined(kind, [getattr(table, name) for table in tables])

        used = frozenset().union(*(table.used for table in tables))
        relative = None if self._relative is None else self._relative(batch.longest, current)
        given = CompiledPass(
            layers=self._layers, sites=joined(SiteTensors, "sites"), owners=owners, uses=uses, offsets=offsets,
            fusions=joined(FusionTensors, "fusions") if "fusions" in used else None,
            changes=joined(LinearTensors, "changes") if "changes" in used else None,
            prefixes=joined(PrefixTensors, "prefixes") if "prefixes" in used else None,
            relative=None if relative is None else relative.data_ptr(), states=out.data_ptr(),
            layer_count=self.shape.layers, first=max(span.first, 0),
            last=self.shape.layers if span.end is None else span.end,
            width=self.shape.width, inner=self._inner, heads=self.shape.heads, owner_count=len(owners),
            segments=batch.rows, middle=0 if relative is None else relative.shape[1] // 2,
            distances=0 if relative is None else relative.shape[1], activation=ACTIVATIONS["gelu_exact"],
            int8=self.int8, threads=pass_threads.count(), scales_up=any(table.scales_up for table in tables),
            scale=(self.shape.width // self.shape.heads) ** -0.5, eps=self._eps,
        )  # fmt: skip
        needed = self._functions.intarsia_work_bytes(ctypes.byref(given))
        if self._work.numel() < needed:
            self._work = torch.empty(needed, dtype=torch.uint8)
        given.work = self._work.data_ptr()
        if self._functions.intarsia_run(ctypes.byref(given)):
            raise MemoryError("there is no memory for the states of a pass")
        return out

    def _tables_of(self, group: Group) -> list[Table]:
        """Return the addresses of the tensors of a group's method, or of each of its parts."""
        found = []
        for number, part in enumerate(_parts(group)):
            tensors = list(part.tensors.values())  # of one buffer: its ends tell where all of them lie
            key = (group.method, number, *(tensor.data_ptr() for tensor in (*tensors[:1], *tensors[-1:])))
            if key not in self._tables:
                if len(self._tables) >= _TABLES:
                    self._tables.clear()
                self._tables[key] = Table.of(group.method, number, part.tensors, self.shape, self._weight_at)
            table = self._tables[key]
            if table.magnitudes is not None:
                table.magnitudes.update(self._functions, part.tensors, part.slots)
            found.append(table)
        return found

    def _weight_at(self, site: str, layer: int) -> Tensor:
        weight: Tensor = self._modules[site, layer].weight
        return weight.detach().contiguous()

    def _layer(self, modules: Modules, layer: int) -> Layer:
        def linear(*sites: str) -> Linear:
            linears = [modules[site, layer] for site in sites]
            weight = torch.cat([one.weight.detach() for one in linears])
            bias = self._keep(torch.cat([one.bias.detach() for one in linears]))
            laid_out, scales, sums = (_quantized if self.int8 else _plain)(weight, self._panel)
            return Linear(
                self._keep(laid_out), bias, None if scales is None else self._keep(scales),
                None if sums is None else self._keep(sums), weight.shape[1], weight.shape[0],
            )  # fmt: skip

        norms = [modules[f"{name}.norm", layer] for name in BEHIND]
        return Layer(
            linear("query", "key", "value"), linear("attention.dense"), linear("ffn.up"), linear("ffn.down"),
            (c_void_p * 2)(*[self._keep(norm.weight.detach()) for norm in norms]),
            (c_void_p * 2)(*[self._keep(norm.bias.detach()) for norm in norms]),
        )  # fmt: skip

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()


def _fits(model: Any, modules: Modules, shape: Shape) -> bool:
    """Return whether the compiled function computes what this base computes."""
    if shape.pre_norm or shape.shared_layers or shape.disentangled_attention or shape.layers == 0:
        return False
    if shape.width % shape.heads:
        return False
    gelus = [module for module in model.modules() if isinstance(module, Gelu)]
    if not gelus or not all(gelu.is_exact for gelu in gelus):
        return False
    for layer in range(shape.layers):
        linears = {site: modules[site, layer] for site in LINEAR_SITES}
        norms = [modules[f"{name}.norm", layer] for name in BEHIND]
        if any(getattr(one, "bias", None) is None for one in (*linears.values(), *norms)):
            return False
        if {tuple(linears[site].weight.shape) for site in ("query", "key", "value")} != {(shape.width, shape.width)}:
            return False
        if not all(isinstance(norm, nn.LayerNorm) for norm in norms) or len({norm.eps for norm in norms}) > 1:
            return False
    return True


def _divides(library: ctypes.CDLL, modules: Modules, shape: Shape) -> bool:
    """Return whether heads are whole vectors, and layers whole panels, of the compiled function."""
    linears = [modules[site, layer] for layer in range(shape.layers) for site in LINEAR_SITES]
    sizes = {size for linear in linears for size in (linear.in_features, linear.out_features)}
    heads_fit = shape.width // shape.heads % library.intarsia_lanes() == 0
    return heads_fit and all(size % library.intarsia_panel() == 0 for size in sizes)


def _parts(group: Group) -> list[Part]:
    """Return the method itself as its only part; or the parts of a composition that are none, and compositions with
    tensors of their own behind their parts."""
    return list(_acting(Part(group.places, group.tensors, group.slots, group.parts)))


def _acting(part: Part) -> Iterator[Part]:
    for inner in part.parts:
        yield from _acting(inner)
    if not part.parts or any(name.startswith("fusion.") for name in part.tensors):
        yield part


def _joined(kind: Any, parts: Sequence[Any]) -> Any:
    """Return arrays of structures as one array."""
    if len(parts) == 1:
        return parts[0]
    whole = (kind * sum(map(len, parts)))()
    for number, part in enumerate(parts):
        size = ctypes.sizeof(part)
        ctypes.memmove(ctypes.byref(whole, number * size), part, size)
    return whole


def _owners(groups: Sequence[Group], offsets: Sequence[int]) -> tuple[Any, Any]:
    """Return who owns which tokens, and the slots that each owner uses; rows of no group belong to the plain base."""
    owners: list[Owner] = []
    uses: list[Use] = []
    row = tables = 0
    for group in groups:
        if group.first > row:
            owners.append(Owner(offsets[row], offsets[group.first], 0, 0))
        row = group.first
        parts = _parts(group)
        for number, rows in enumerate(group.rows):
            first_use = len(uses)
            uses += [Use(tables + table, part.slots[number]) for table, part in enumerate(parts)]
            owners.append(Owner(offsets[row], offsets[row + rows], first_use, len(uses)))
            row += rows
        tables += len(parts)
    if row < len(offsets) - 1:
        owners.append(Owner(offsets[row], offsets[-1], 0, 0))
    return (Owner * len(owners))(*owners), (Use * max(1, len(uses)))(*uses)


def _plain(weight: Tensor, panel: int) -> tuple[Tensor, None, None]:
    """Return a weight [out, in] as panels [out / panel, in, panel], without scales and sums."""
    return weight.view(-1, panel, weight.shape[1]).transpose(1, 2).contiguous(), None, None


def _quantized(weight: Tensor, panel: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 panels [out / panel, in / 4, panel, 4] of a weight [out, in], its scales and 128 times its sums."""
    from intarsia.encoder.int8 import quantize_weight

    quantized, scales = quantize_weight(weight)
    panels = quantized.view(-1, panel, weight.shape[1] // 4, 4).transpose(1, 2).contiguous()
    return panels, scales, (128 * quantized.sum(1, dtype=torch.int32))
