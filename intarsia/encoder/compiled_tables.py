"""The addresses of the tensors of methods in slots, for the compiled function of CPU passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.compiled_structures import FusionTensors, LinearTensors, PrefixTensors, SiteTensors
from intarsia.encoder.magnitudes import Magnitudes, WeightAt
from intarsia.encoder.shape import Shape
from intarsia.encoder.site_method import SiteMethod
from intarsia.encoder.sites import LINEAR_SITES, PREFIX

BEHIND = ("attention", "ffn")
INPUT = ".input"  # behind a linear site: the input of the linear layer
ACTIVATIONS = {"linear": 0, "gelu_exact": 1, "gelu": 2, "relu": 3, "swish": 4, "tanh": 5}
_READS = {"output": 0, "input": 1, "normalised": 2}


class Table(NamedTuple):
    """The addresses of the tensors of one table of slots."""

    sites: Any  # [layer, sub-layer]
    fusions: Any  # [layer, sub-layer]
    changes: Any  # [layer, linear]
    prefixes: Any  # [layer]
    used: frozenset[str]  # the names of the arrays above that are not empty
    scales_up: bool  # the input of `ffn.up`
    magnitudes: Magnitudes | None

    @classmethod
    def of(
        cls, method: SiteMethod, number: int, tensors: Mapping[str, Tensor], shape: Shape, weight_at: WeightAt
    ) -> Table:
        """`number`: of the part of the method."""
        parts = method.compiled_parts(shape)
        assert parts is not None, "only methods that can be compiled are in compiled passes"
        sites = (SiteTensors * (shape.layers * len(BEHIND)))()
        fusions = (FusionTensors * (shape.layers * len(BEHIND)))()
        changes = (LinearTensors * (shape.layers * len(LINEAR_SITES)))()
        prefixes = (PrefixTensors * shape.layers)()
        used = set()
        for (name, layer), site in parts[number].items():
            if name == PREFIX:
                used.add("prefixes")
                prefixes[layer] = _prefix(tensors, f"{layer}.{name}")
            elif site.fusion:
                used.add("fusions")
                fusions[layer * len(BEHIND) + BEHIND.index(name)] = _fusion(tensors, f"{layer}.{name}", site)
            elif name in BEHIND:
                used.add("sites")
                sites[layer * len(BEHIND) + BEHIND.index(name)] = _site(tensors, f"{layer}.{name}", site)
            else:
                used.add("changes")
                place = layer * len(LINEAR_SITES) + LINEAR_SITES.index(name.removesuffix(INPUT))
                _add_change(changes[place], tensors, f"{layer}.{name}", site)
        scaled = {place: site.difference for place, site in parts[number].items() if site.magnitude}
        magnitudes = Magnitudes.of(scaled, tensors, weight_at) if scaled else None
        if magnitudes is not None:
            for (name, layer), gain in magnitudes.gains.items():
                change = changes[layer * len(LINEAR_SITES) + LINEAR_SITES.index(name)]
                change.gain, change.gain_stride, change.magnitudes = gain.data_ptr(), gain.stride(0), True
        scales_up = any(name == f"ffn.up{INPUT}" for name, _ in parts[number])
        return cls(sites, fusions, changes, prefixes, frozenset(used), scales_up, magnitudes)


def _site(tensors: Mapping[str, Tensor], name: str, site: CompiledSite) -> SiteTensors:
    found = SiteTensors(mean=site.mean, norm_mean=site.norm_mean, fused=site.fused, weight=site.weight, rest=site.rest)
    if site.adapter:
        names = [f"{name}.output.{part}" for part in ("down.weight", "down.bias", "up.weight", "up.bias")]
        found.down, found.down_bias, found.up, found.up_bias = (tensors[n].data_ptr() for n in names)
        found.size, found.stride = tensors[names[0]].shape[1], tensors[names[0]].stride(0)
        found.activation, found.reads = ACTIVATIONS[site.activation], _READS[site.reads]
        found.restarts = site.restarts
    if site.norm != "base":
        bias = tensors[f"{name}.norm.bias"]
        found.bias, found.stride = bias.data_ptr(), bias.stride(0)
    if site.norm == "own":
        found.gain = tensors[f"{name}.norm.weight"].data_ptr()
    return found


def _fusion(tensors: Mapping[str, Tensor], name: str, site: CompiledSite) -> FusionTensors:
    query, bias, key, value = (
        tensors.get(f"fusion.{name}.output.{part}")
        for part in ("query.weight", "query.bias", "key.weight", "value.weight")
    )
    assert query is not None and bias is not None and key is not None, "only the value may be left out"
    addresses = (query.data_ptr(), bias.data_ptr(), key.data_ptr(), None if value is None else value.data_ptr())
    return FusionTensors(*addresses, query.stride(0), _READS[site.reads])


def _prefix(tensors: Mapping[str, Tensor], name: str) -> PrefixTensors:
    keys, values = tensors[f"{name}.key"], tensors[f"{name}.value"]
    return PrefixTensors(keys.data_ptr(), values.data_ptr(), keys.stride(0), keys.shape[1])


def _add_change(found: LinearTensors, tensors: Mapping[str, Tensor], name: str, site: CompiledSite) -> None:
    """Add what a method does at a linear site, or to the input of a linear layer."""
    if site.difference:  # a scale of 0 adds nothing
        a, b = tensors[f"{name}.a.weight"], tensors[f"{name}.b.weight"]
        found.a, found.b, found.rank, found.stride = a.data_ptr(), b.data_ptr(), a.shape[1], a.stride(0)
        found.scale = site.difference * site.weight
    if site.bias:
        bias = tensors[f"{name}.bias"]
        found.bias, found.stride, found.weight = bias.data_ptr(), bias.stride(0), site.weight
    if site.gain:
        gain = tensors[f"{name}.gain"]
        found.stride = found.gain_stride = gain.stride(0)
        setattr(found, "input_gain" if name.endswith(INPUT) else "gain", gain.data_ptr())
