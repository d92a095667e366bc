"""LoRA, DoRA, VeRA and (IA)³ of AdapterHub, which are one configuration there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.adapterhub_names import HubTensors, Own
from intarsia.exchange.adapterhub_parts import GATING, HubPart, layers_of, not_left_out, repeated
from intarsia.exchange.folding import Key, LowRank, as_lora
from intarsia.exchange.modules import Part
from intarsia.methods import IA3, DoRA, LoRA

ATTENTION = {"q": "query", "k": "key", "v": "value"}
TRAINING_ONLY = ("dropout", "init_weights", "init_weights_seed", "dtype")


def read_lora(flags: Flags, tensors: HubTensors) -> HubPart:
    """Return the method of a `lora` configuration, with its tensors."""
    flags.no_effect(*TRAINING_ONLY)
    flags.expect("use_gating", False, None, because=GATING)
    mode = flags.take("composition_mode", "add")
    if mode not in ("add", "scale"):
        raise ExchangeError(f"{flags.where}: composition_mode is {mode!r:.60}; expected 'add' or 'scale'.")
    sites = _sites(flags)
    own = not_left_out(flags, tensors.own)
    for _, path, _ in tensors.linears(sites):
        tensors.modules.check_own(path, flags.where)
    rank, alpha = flags.whole("r", least=1, most=4096), float(flags.number("alpha", least=-(2**24)))
    return (_gains if mode == "scale" else _differences)(flags, tensors, sites, own, rank, alpha)


def _sites(flags: Flags) -> tuple[str, ...]:
    matrices = flags.names("attn_matrices", ["q", "v"]) or ()
    unknown = sorted(set(matrices) - set(ATTENTION))
    if unknown:
        raise ExchangeError(f"{flags.where}: attn_matrices has {unknown[0]!r:.60}; expected q, k or v.")
    attention = flags.yes("selfattn_lora", True)
    chosen = [site for letter, site in ATTENTION.items() if attention and letter in matrices]
    chosen += ["ffn.up"] * flags.yes("intermediate_lora") + ["ffn.down"] * flags.yes("output_lora")
    if not chosen:
        raise ExchangeError(f"{flags.where} selects no linear layer.")
    return tuple(chosen)


def _parts(tensors: HubTensors, own: tuple[Own, ...], sites: tuple[str, ...]) -> Iterator[tuple[str, list[list[Part]]]]:
    """Yield (path, the parts of the module that are chosen, each once for each layer that uses the module)."""
    for o, path, chosen in tensors.linears(sites):
        if o in own:
            parts = tensors.modules.linears[path]
            yield path, [[part for part in parts if part.site == site] for site in chosen]


def _differences(
    flags: Flags, tensors: HubTensors, sites: tuple[str, ...], own: tuple[Own, ...], rank: int, alpha: float
) -> HubPart:
    weights, dora = tensors.weights, flags.yes("use_dora")
    vera = float in [type(flags.take(name, None)) for name in ("vera_d", "vera_b")]  # as adapters decides
    if tensors.modules.encoder.family.fused_query_key_value and (dora or vera) and set(sites) & set(ATTENTION.values()):
        raise ExchangeError(
            f"{flags.where}: {'DoRA' if dora else 'VeRA'} on query, key or value cannot be imported for "
            f"{tensors.modules.encoder.shape.family}: adapters does not compute it in a fused layer."
        )
    scale = alpha / rank
    shared = {name: weights.take(tensors.shared(f"lora_{name}")) for name in "AB"} if vera else {}
    found: dict[Key, LowRank] = {}
    magnitudes: dict[Key, Tensor] = {}
    for path, chosen in _parts(tensors, own, sites):
        name, weight = tensors.lora(path), tensors.modules.weight(path).detach().float().cpu()
        outputs = sum(len(range(*parts[0].rows.indices(weight.shape[0]))) for parts in chosen)
        if vera:
            a, b = _vera(tensors, name, shared, rank, (outputs, weight.shape[1]))
        else:
            a = weights.take(f"{name}lora_A", (rank * len(chosen), weight.shape[1]))
            b = weights.take(f"{name}lora_B", (outputs, rank))
        factor = scale
        if dora:
            magnitude = weights.take(f"{name}m.weight", (outputs, 1))[:, 0] / (weight + b @ a).norm(dim=1)
        first = 0
        for number, parts in enumerate(chosen):
            rows = len(range(*parts[0].rows.indices(weight.shape[0])))
            one = LowRank(a[number * rank : (number + 1) * rank], b[first : first + rows], factor)
            for part in parts:
                found[part.site, part.layer] = one
                if dora:
                    magnitudes[part.site, part.layer] = magnitude
            first += rows
    folded: tuple[str, ...] = ("the matrices of VeRA multiplied into A and B",) if vera else ()
    shape = tensors.modules.encoder.shape
    with_bias = dora and any(shape.linear(*key).bias for key in found)
    method, lowrank, notes = as_lora(
        found, shape, DoRA if dora else LoRA, **({"biases": "targets"} if with_bias else {})
    )
    if dora:
        lowrank |= _dora(tensors, found, magnitudes)
        folded += ("the factor of DoRA's rows multiplied into the biases too",) if with_bias else ()
    return HubPart(method, lowrank, (*folded, *notes, *repeated(own)))


def _vera(
    tensors: HubTensors, name: str, shared: dict[str, Tensor], rank: int, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return A and B of VeRA: the shared matrices, each multiplied by a matrix of the layer."""
    outputs, inputs = shape
    if tuple(shared["A"].shape) != (rank, inputs) or tuple(shared["B"].shape) != (outputs, rank):
        raise ExchangeError(
            f"{tensors.weights.where}: the shared matrices of VeRA have the shapes {tuple(shared['A'].shape)} and "
            f"{tuple(shared['B'].shape)}; {name} needs {(rank, inputs)} and {(outputs, rank)}."
        )
    d = tensors.weights.take(f"{name}vera_D", (rank, rank))
    b = tensors.weights.take(f"{name}vera_B", (outputs, outputs))
    return d @ shared["A"], b @ shared["B"]


def _dora(tensors: HubTensors, found: dict[Key, LowRank], magnitudes: dict[Key, Tensor]) -> dict[str, Tensor]:
    """Return the magnitudes and biases of our DoRA.

    With the factor f = m / ‖W + BA‖ of a row, adapters computes f (W x + b + s B A x): the norm is that of the unscaled
    difference, and the bias is multiplied too. Ours computes m' / ‖W + s B A‖ (W + s B A) x + b'.
    """
    stored: dict[str, Tensor] = {}
    for (site, layer), difference in found.items():
        base = tensors.modules.encoder.at_site(site, layer, "weight").tensor.detach().float().cpu()
        factor = magnitudes[site, layer]
        scaled = (base + difference.scale * (difference.b @ difference.a)).norm(dim=1)
        stored[f"{layer}.{site}.magnitude"] = factor * scaled - base.norm(dim=1)
        if tensors.modules.encoder.shape.linear(site, layer).bias:
            bias = tensors.modules.encoder.at_site(site, layer, "bias").tensor.detach().float().cpu()
            stored[f"{layer}.{site}.bias"] = factor * bias
    return stored


def _gains(
    flags: Flags, tensors: HubTensors, sites: tuple[str, ...], own: tuple[Own, ...], rank: int, alpha: float
) -> HubPart:
    """Return (IA)³: gains of the outputs, in front of the activation."""
    flags.expect("use_dora", False, None)
    flags.expect("vera_d", None)
    flags.expect("vera_b", None)
    if rank != 1:
        raise ExchangeError(f"{flags.where}: composition_mode 'scale' needs r = 1, not {rank}.")
    fused = tensors.modules.encoder.family.fused_query_key_value and set(sites) & set(ATTENTION.values())
    if fused and alpha != 1:
        raise ExchangeError(
            f"{flags.where}: alpha = {alpha:g} with composition_mode 'scale' cannot be imported for a fused layer: "
            "adapters multiplies its other outputs too."
        )
    found: dict[str, Tensor] = {}
    for path, chosen in _parts(tensors, own, sites):
        size = tensors.modules.weight(path).shape[0]
        rows = [len(range(*parts[0].rows.indices(size))) for parts in chosen]
        gain = alpha * tensors.weights.take(f"{tensors.lora(path)}lora_B", (sum(rows), 1))[:, 0]
        for parts, own_gain in zip(chosen, torch.split(gain, rows), strict=True):
            found |= {f"{part.layer}.{part.site}.gain": own_gain.clone() for part in parts}
    folded = () if alpha == 1 else (f"the factor {alpha:g} multiplied into the gains",)
    return HubPart(IA3(layers_of(own, tensors.own), sites), found, (*folded, *repeated(own)))
