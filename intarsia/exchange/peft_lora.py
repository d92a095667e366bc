"""LoRA of peft, with its relatives: rsLoRA, rank and alpha patterns, DoRA, trained biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.folding import HIGHEST_RANK, Key, LowRank, as_lora, split
from intarsia.exchange.modules import Modules
from intarsia.exchange.patterns import ByModule, Targets
from intarsia.exchange.peft_parts import PeftTensors, Read
from intarsia.methods import DoRA, LoRA

TRAINING_ONLY = (
    "lora_dropout", "init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "velora_config", "runtime_config", "megatron_core", "ensure_weight_tying", "qalora_group_size",
)  # fmt: skip
UNSUPPORTED = (  # flags that change what is computed; null or false where they are not used
    "fan_in_fan_out", "megatron_config", "trainable_token_indices", "alora_invocation_tokens", "use_qalora",
    "monteclora_config", "layer_replication", "lora_bias", "target_parameters", "use_bdlora", "arrow_config",
    "kasa_config",
)  # fmt: skip


def read_lora(flags: Flags, tensors: PeftTensors, modules: Modules) -> Read:
    """Return LoRA or DoRA of a `LORA` configuration."""
    check_lora_flags(flags)
    r, alpha = flags.whole("r", least=1, most=HIGHEST_RANK), flags.number("lora_alpha", most=2**24)
    rslora, dora = flags.yes("use_rslora"), flags.yes("use_dora")
    ranks = ByModule(flags.where, flags.take("rank_pattern", None) or {}, r)
    alphas = ByModule(flags.where, flags.take("alpha_pattern", None) or {}, alpha)

    def difference(module: str, weight: Tensor) -> LowRank:
        path = tensors.path(module)
        rank = ranks.of(path)
        a = tensors.take(module, "lora_A.weight", (int(rank), weight.shape[1]))
        b = tensors.take(module, "lora_B.weight", (weight.shape[0], int(rank)))
        scale = alphas.of(path) / (math.sqrt(rank) if rslora else rank)
        return LowRank(a, b, scale, _magnitude(tensors, module, weight.shape[0]) if dora else None)

    return read_low_rank(flags, tensors, modules, "lora_A.weight", difference, DoRA if dora else LoRA)


def check_lora_flags(flags: Flags) -> None:
    """Take the flags that LoRA and AdaLoRA share and that compute nothing here; raise if one is used."""
    flags.no_effect(*TRAINING_ONLY)
    for name in UNSUPPORTED:
        flags.expect(name, None, False, [], {}, because="no method of Intarsia computes it")


def read_low_rank(
    flags: Flags,
    tensors: PeftTensors,
    modules: Modules,
    first: str,
    difference: Callable[[str, Tensor], LowRank],
    kind: type[LoRA] = LoRA,
    folded: tuple[str, ...] = (),
) -> Read:
    """Return one method from the differences of all target modules. `first`: a tensor that each of them has."""
    check_targets(flags, tensors, modules, first)
    found: dict[Key, LowRank] = {}
    pooler: dict[str, Tensor] = {}
    for module in tuple(tensors.having(first)):
        weight = modules.weight(module)
        own = difference(module, weight)
        if module == modules.pooler:
            pooler["weight"] = own.merged(weight)
            continue
        modules.check_own(module, flags.where)
        found |= split(own, modules.linears[module])
    biases, trained = read_biases(flags, tensors, modules, set(found), pooler)
    method, lowrank, notes = as_lora(found, modules.encoder.shape, kind, **biases)
    if kind is DoRA:
        lowrank |= _stored_magnitudes(lowrank, found, modules)
    notes = (*folded, *notes)
    notes += ("the difference of the pooler merged into the head's own pooler",) if pooler else ()
    return Read(method, {**lowrank, **filled_biases(method, trained, modules)}, notes, pooler)


def check_targets(
    flags: Flags, tensors: PeftTensors, modules: Modules, tensor: str, among: Mapping[str, Any] | None = None
) -> None:
    """Raise unless exactly the target modules of the configuration have tensors. `among`: the modules that can be
    targets; by default the linear layers."""
    given = flags.take("target_modules", None)
    targets = Targets(
        flags.where,
        given,
        flags.take("exclude_modules", None),
        flags.take("layers_to_transform", None),
        flags.take("layers_pattern", None),
        tensors.saved,
    )
    among = modules.linears if among is None else among
    have = set(tensors.having(tensor))
    for module in have:
        if module not in among and module != modules.pooler:
            raise ExchangeError(
                f"{tensors.weights.where} has {tensor} for {module!r}, where this method of Intarsia cannot act: it is "
                "at no site. Embeddings and layers outside the sites cannot be changed."
            )
    if given is None:
        return
    for module in (*among, *filter(None, (modules.pooler,))):
        named = given == "all-linear" or tensors.path(module) in targets
        if named and module not in have and module != modules.pooler:
            raise ExchangeError(
                f"{tensors.weights.where} has no {tensor} for {tensors.path(module)!r}, which target_modules names. "
                "The file is incomplete, or was made for a base with fewer layers."
            )
        if module in have and not named:
            raise ExchangeError(
                f"{tensors.weights.where} has {tensor} for {tensors.path(module)!r}, which target_modules does not "
                "name."
            )


def read_biases(
    flags: Flags, tensors: PeftTensors, modules: Modules, targets: set[Key], pooler: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the option of LoRA for trained biases, and the biases by Intarsia's names."""
    which = flags.take("bias", "none")
    which = "lora_only" if which == "vera_only" else which
    if which not in ("none", "lora_only", "all"):
        raise ExchangeError(f"{flags.where}: bias is {which!r:.60}; expected none, lora_only or all.")
    if which == "none":
        return {}, {}
    found: dict[str, Tensor] = {}
    for module, parts in {**modules.linears, **modules.norms}.items():
        bias = modules.bias(module)
        if bias is None or (which == "lora_only" and not any((p.site, p.layer) in targets for p in parts)):
            continue
        tensor = _bias(tensors, module, tuple(bias.shape))
        if module in modules.linears and not torch.equal(tensor, bias.detach().float().cpu()):
            modules.check_own(module, flags.where)
        for part in parts:
            found[f"{part.layer}.{part.site}.bias"] = tensor[part.rows].clone()
    for name in tuple(tensors.weights):
        path = modules.pooler
        if path is not None and name in (tensors.name(path, "bias"), tensors.name(path, "base_layer.bias")):
            pooler["bias"] = tensors.weights.take(name, (modules.encoder.shape.width,))
    if "bias" in pooler and "weight" not in pooler and torch.equal(pooler["bias"], _plain(modules, modules.pooler)):
        del pooler["bias"]  # saved, but unchanged: without a head nothing trains it
    return {"biases": "targets" if which == "lora_only" else "all"}, found


def filled_biases(method: Any, found: dict[str, Tensor], modules: Modules) -> dict[str, Tensor]:
    """Return the biases that the method has; places that the file does not cover have the base's."""
    specs = method.stored(modules.encoder.shape)
    wanted = {name: spec for name, spec in specs.items() if name.endswith(".bias")}
    extra = sorted(set(found) - set(wanted))
    if extra:
        raise ExchangeError(f"the adapter trains the bias {extra[0]}, which the method {method.name} does not have.")
    base = modules.of_the_base(method)
    return {name: found.get(name, base[name]) for name in wanted}


def _bias(tensors: PeftTensors, module: str, shape: tuple[int, ...]) -> Tensor:
    for name in ("base_layer.bias", "bias"):
        found = tensors.weights.take_if(tensors.name(module, name), shape)
        if found is not None:
            return found
    raise ExchangeError(f"{tensors.weights.where} has no trained bias of {module!r}, which its configuration needs.")


def _plain(modules: Modules, path: str | None) -> Tensor:
    bias = None if path is None else modules.bias(path)
    return torch.zeros(0) if bias is None else bias.detach().float().cpu()


def _magnitude(tensors: PeftTensors, module: str, outputs: int) -> Tensor:
    for name in ("lora_magnitude_vector", "lora_magnitude_vector.weight"):
        found = tensors.weights.take_if(tensors.name(module, name), (outputs,))
        if found is not None:
            return found
    raise ExchangeError(f"{tensors.weights.where} has no lora_magnitude_vector of {module!r}, which DoRA needs.")


def _stored_magnitudes(lowrank: dict[str, Tensor], found: dict[Key, LowRank], modules: Modules) -> dict[str, Tensor]:
    """DoRA stores the magnitude minus the norm of the base's rows."""
    stored = {}
    for name in [name for name in lowrank if name.endswith(".a.weight")]:
        layer, _, site = name.removesuffix(".a.weight").partition(".")
        key = (site, int(layer))
        norm = modules.encoder.at_site(site, int(layer), "weight").tensor.detach().float().cpu().norm(dim=1)
        magnitude = found[key].magnitude if key in found else norm
        assert magnitude is not None
        stored[f"{layer}.{site}.magnitude"] = magnitude - norm
    return stored
