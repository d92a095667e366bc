"""The layers of a CPU pass in one compiled function (`kernels/cpu/pass.c`), without gradients.

PyTorch spends more time between the operations of a small pass than in them. The compiled function runs all layers with
the methods in them, on all threads, while Python may do other work. It knows families whose LayerNorms stand behind the
sub-layers (BERT, RoBERTa, XLM-R, ELECTRA, MPNet, DistilBERT) and methods that describe themselves by `Method.compiled`.
Everything else runs in PyTorch, in passes of its own, so that a row always has the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from intarsia.encoder import pass_threads
from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.parts import Part, leaves
from intarsia.encoder.routed import Gelu, Group, Pass
from intarsia.encoder.shape import Shape
from intarsia.encoder.site_method import SiteMethod
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.kernels import cpu_library

BEHIND = ("attention", "ffn")
_ACTIVATIONS = {"linear": 0, "gelu_exact": 1, "gelu": 2, "relu": 3, "swish": 4, "tanh": 5}
_READS = {"output": 0, "input": 1, "normalised": 2}
Modules = Mapping[tuple[str, int], Any]  # of a model, by site and layer
_TABLES = 64  # tables of slots whose addresses are kept


class _Linear(Structure):
    _fields_ = (
        ("weight", c_void_p), ("bias", c_void_p), ("scales", c_void_p), ("sums", c_void_p),
        ("inputs", c_int32), ("outputs", c_int32),
    )  # fmt: skip


class _Layer(Structure):
    _fields_ = (
        ("qkv", _Linear), ("dense", _Linear), ("up", _Linear), ("down", _Linear),
        ("gain", c_void_p * 2), ("bias", c_void_p * 2),
    )  # fmt: skip


class _Site(Structure):
    _fields_ = (
        ("down", c_void_p), ("down_bias", c_void_p), ("up", c_void_p), ("up_bias", c_void_p),
        ("gain", c_void_p), ("bias", c_void_p), ("stride", c_int64),
        ("size", c_int32), ("activation", c_int32), ("reads", c_int32), ("restarts", c_int32),
    )  # fmt: skip


class _Change(Structure):
    _fields_ = (
        ("a", c_void_p), ("b", c_void_p), ("bias", c_void_p), ("stride", c_int64),
        ("rank", c_int32), ("scale", c_float),
    )  # fmt: skip


class _Use(Structure):
    _fields_ = (("table", c_int32), ("slot", c_int32))


class _Owner(Structure):
    _fields_ = (("first", c_int32), ("last", c_int32), ("first_use", c_int32), ("last_use", c_int32))


class _Pass(Structure):
    _fields_ = (
        ("layers", POINTER(_Layer)), ("sites", POINTER(_Site)), ("changes", POINTER(_Change)), ("uses", POINTER(_Use)),
        ("owners", POINTER(_Owner)), ("offsets", POINTER(c_int32)), ("relative", c_void_p), ("states", c_void_p),
        ("work", c_void_p), ("layer_count", c_int32), ("first", c_int32), ("last", c_int32),
        ("width", c_int32), ("inner", c_int32), ("heads", c_int32), ("owner_count", c_int32), ("segments", c_int32),
        ("middle", c_int32), ("distances", c_int32), ("activation", c_int32), ("int8", c_int32), ("threads", c_int32),
        ("scale", c_float), ("eps", c_float),
    )  # fmt: skip


def can_compile(shape: Shape, method: Any) -> bool:
    """Return whether compiled passes can have a method, on a base that they can have."""
    parts = None if method.changes_base or method.position_offset else method.compiled_parts(shape)
    return parts is not None and all(site.activation in _ACTIVATIONS for part in parts for site in part.values())


class CompiledLayers:
    """The layers of one base, with its weights laid out for the compiled function."""

    def __init__(self, model: Any, modules: Modules, shape: Shape, library: ctypes.CDLL, *, int8: bool) -> None:
        self._functions, self.shape, self.int8 = library, shape, int8
        self._panel = library.intarsia_panel()
        self._kept: list[Tensor] = []  # what the structures point to
        self._relative = getattr(getattr(model, "encoder", None), "intarsia_bias", None)  # MPNet's bias of the scores
        norms = [modules[f"{name}.norm", layer] for layer in range(shape.layers) for name in BEHIND]
        self._eps = float(norms[0].eps)
        self._layers = (_Layer * self.shape.layers)(*[self._layer(modules, layer) for layer in range(shape.layers)])
        self._inner = self._layers[0].up.outputs
        self._work = torch.empty(0, dtype=torch.uint8)
        self._tables: dict[tuple[Any, ...], _Table] = {}

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
        sites = _joined(_Site, [table.sites for table in tables])
        changes = _joined(_Change, [table.changes for table in tables])
        relative = None if self._relative is None else self._relative(batch.longest, current)
        given = _Pass(
            layers=self._layers, sites=sites, owners=owners, uses=uses,
            changes=changes if any(table.has_changes for table in tables) else None, offsets=offsets,
            relative=None if relative is None else relative.data_ptr(), states=out.data_ptr(),
            layer_count=self.shape.layers, first=max(span.first, 0),
            last=self.shape.layers if span.end is None else span.end,
            width=self.shape.width, inner=self._inner, heads=self.shape.heads, owner_count=len(owners),
            segments=batch.rows, middle=0 if relative is None else relative.shape[1] // 2,
            distances=0 if relative is None else relative.shape[1], activation=_ACTIVATIONS["gelu_exact"],
            int8=self.int8, threads=pass_threads.count(), scale=(self.shape.width // self.shape.heads) ** -0.5,
            eps=self._eps,
        )  # fmt: skip
        needed = self._functions.intarsia_work_bytes(ctypes.byref(given))
        if self._work.numel() < needed:
            self._work = torch.empty(needed, dtype=torch.uint8)
        given.work = self._work.data_ptr()
        if self._functions.intarsia_run(ctypes.byref(given)):
            raise MemoryError("there is no memory for the states of a pass")
        return out

    def _tables_of(self, group: Group) -> list[_Table]:
        """Return the addresses of the tensors of a group's method, or of each of its parts."""
        found = []
        for number, part in enumerate(_parts(group)):
            tensors = list(part.tensors.values())  # of one buffer: its ends tell where all of them lie
            key = (group.method, number, *(tensor.data_ptr() for tensor in (*tensors[:1], *tensors[-1:])))
            if key not in self._tables:
                if len(self._tables) >= _TABLES:
                    self._tables.clear()
                self._tables[key] = _Table.of(group.method, number, part.tensors, self.shape)
            found.append(self._tables[key])
        return found

    def _layer(self, modules: Modules, layer: int) -> _Layer:
        def linear(*sites: str) -> _Linear:
            linears = [modules[site, layer] for site in sites]
            weight = torch.cat([one.weight.detach() for one in linears])
            bias = self._keep(torch.cat([one.bias.detach() for one in linears]))
            laid_out, scales, sums = (_quantized if self.int8 else _plain)(weight, self._panel)
            return _Linear(
                self._keep(laid_out), bias, None if scales is None else self._keep(scales),
                None if sums is None else self._keep(sums), weight.shape[1], weight.shape[0],
            )  # fmt: skip

        norms = [modules[f"{name}.norm", layer] for name in BEHIND]
        return _Layer(
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


class _Table(NamedTuple):
    """The addresses of the tensors of one table of slots."""

    sites: Any  # [layer, sub-layer]
    changes: Any  # [layer, linear]
    has_changes: bool

    @classmethod
    def of(cls, method: SiteMethod, number: int, tensors: Mapping[str, Tensor], shape: Shape) -> _Table:
        """`number`: of the part of the method."""
        parts = method.compiled_parts(shape)
        assert parts is not None, "only methods that can be compiled are in compiled passes"
        sites = (_Site * (shape.layers * len(BEHIND)))()
        changes = (_Change * (shape.layers * len(LINEAR_SITES)))()
        for (name, layer), site in parts[number].items():
            if name in BEHIND:
                sites[layer * len(BEHIND) + BEHIND.index(name)] = _site(tensors, f"{layer}.{name}", site)
            else:
                place = layer * len(LINEAR_SITES) + LINEAR_SITES.index(name)
                changes[place] = _change(tensors, f"{layer}.{name}", site)
        return cls(sites, changes, any(name not in BEHIND for name, _ in parts[number]))


def _parts(group: Group) -> list[Part]:
    """Return the parts of a composition that are none, or the method itself as its only part."""
    return list(leaves(group.parts)) or [Part(group.places, group.tensors, group.slots)]


def _joined(kind: Any, parts: Sequence[Any]) -> Any:
    """Return arrays of structures as one array."""
    if len(parts) == 1:
        return parts[0]
    whole = (kind * sum(map(len, parts)))()
    for number, part in enumerate(parts):
        size = ctypes.sizeof(part)
        ctypes.memmove(ctypes.byref(whole, number * size), part, size)
    return whole


def _site(tensors: Mapping[str, Tensor], name: str, site: CompiledSite) -> _Site:
    found = _Site()
    if site.adapter:
        names = [f"{name}.output.{part}" for part in ("down.weight", "down.bias", "up.weight", "up.bias")]
        found.down, found.down_bias, found.up, found.up_bias = (tensors[n].data_ptr() for n in names)
        found.size, found.stride = tensors[names[0]].shape[1], tensors[names[0]].stride(0)
        found.activation, found.reads = _ACTIVATIONS[site.activation], _READS[site.reads]
        found.restarts = site.restarts
    if site.norm != "base":
        bias = tensors[f"{name}.norm.bias"]
        found.bias, found.stride = bias.data_ptr(), bias.stride(0)
    if site.norm == "own":
        found.gain = tensors[f"{name}.norm.weight"].data_ptr()
    return found


def _change(tensors: Mapping[str, Tensor], name: str, site: CompiledSite) -> _Change:
    found = _Change()
    if site.difference is not None:
        a, b = tensors[f"{name}.a.weight"], tensors[f"{name}.b.weight"]
        found.a, found.b, found.rank, found.stride = a.data_ptr(), b.data_ptr(), a.shape[1], a.stride(0)
        found.scale = site.difference
    if site.bias:
        bias = tensors[f"{name}.bias"]
        found.bias, found.stride = bias.data_ptr(), bias.stride(0)
    return found


def _owners(groups: Sequence[Group], offsets: Sequence[int]) -> tuple[Any, Any]:
    """Return who owns which tokens, and the slots that each owner uses; rows of no group belong to the plain base."""
    owners: list[_Owner] = []
    uses: list[_Use] = []
    row = tables = 0
    for group in groups:
        if group.first > row:
            owners.append(_Owner(offsets[row], offsets[group.first], 0, 0))
        row = group.first
        parts = _parts(group)
        for number, rows in enumerate(group.rows):
            first_use = len(uses)
            uses += [_Use(tables + table, part.slots[number]) for table, part in enumerate(parts)]
            owners.append(_Owner(offsets[row], offsets[row + rows], first_use, len(uses)))
            row += rows
        tables += len(parts)
    if row < len(offsets) - 1:
        owners.append(_Owner(offsets[row], offsets[-1], 0, 0))
    return (_Owner * len(owners))(*owners), (_Use * max(1, len(uses)))(*uses)


def _plain(weight: Tensor, panel: int) -> tuple[Tensor, None, None]:
    """Return a weight [out, in] as panels [out / panel, in, panel], without scales and sums."""
    return weight.view(-1, panel, weight.shape[1]).transpose(1, 2).contiguous(), None, None


def _quantized(weight: Tensor, panel: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 panels [out / panel, in / 4, panel, 4] of a weight [out, in], its scales and 128 times its sums."""
    from intarsia.encoder.int8 import quantize_weight

    quantized, scales = quantize_weight(weight)
    panels = quantized.view(-1, panel, weight.shape[1] // 4, 4).transpose(1, 2).contiguous()
    return panels, scales, (128 * quantized.sum(1, dtype=torch.int32))
