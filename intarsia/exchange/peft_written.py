"""The tensors and the configuration with which peft computes a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.sites import PREFIX
from intarsia.errors import ExchangeError
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.modules import Modules, Part
from intarsia.methods import IA3, DoRA, LayerNorms, LoRA, Prefix

INPUT = ".input"
WITH_CACHE = ("bert", "roberta", "xlm-roberta", "electra")  # models that take the keys and values of a prefix


@dataclass
class Written:
    """A configuration without its common entries, and tensors by (module of the base, name)."""

    config: dict[str, Any]
    modules: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    others: dict[str, Tensor] = field(default_factory=dict)  # by their whole names


def written(adapter: Adapter, modules: Modules) -> Written:
    """Return what peft needs for a method; raise with the reason if it cannot compute it."""
    method = adapter.method
    if type(method) in (LoRA, DoRA):
        return _lora(method, adapter.tensors, modules)  # type: ignore[arg-type]
    if type(method) is IA3:
        return _ia3(method, adapter.tensors, modules)
    if type(method) is LayerNorms:
        return _norms(method, adapter.tensors, modules)
    if type(method) is Prefix:
        return _prefix(method, adapter.tensors, modules)
    raise ExchangeError(
        f"peft has no method that computes {method.name}. It can take lora, dora, ia3, layernorm, and prefix with an "
        "offset of its size. Other formats: --format adapterhub for adapters, --format merged for methods that can be "
        "merged into the base, --format inlay for any."
    )


def _lora(method: LoRA, tensors: Mapping[str, Tensor], modules: Modules) -> Written:
    found = Written({"peft_type": "LORA", "r": method.rank, "lora_alpha": method.alpha})
    dora, ranks = type(method) is DoRA, set()
    for path, parts in modules.linears.items():
        acting = [p for p in parts if f"{p.layer}.{p.site}.a.weight" in tensors]
        if not acting:
            continue
        modules.check_own(path, "the adapter")
        first = _of_one_layer(path, parts, acting, tensors, (".a.weight", ".b.weight", ".magnitude"))
        weight = modules.weight(path)
        a = torch.cat([tensors[f"{p.layer}.{p.site}.a.weight"] for p in first])
        b = torch.zeros(weight.shape[0], a.shape[0])
        for i, part in enumerate(first):  # of a fused layer, each part has its own rows and columns of B
            b[part.rows, i * method.rank : (i + 1) * method.rank] = tensors[f"{part.layer}.{part.site}.b.weight"]
        ranks.add(len(first))
        own = {"lora_A.weight": a, "lora_B.weight": b}
        if dora:
            norm = weight.detach().float().cpu().norm(dim=1)
            for part in first:
                norm[part.rows] += tensors[f"{part.layer}.{part.site}.magnitude"]
            own["lora_magnitude_vector"] = norm
        found.modules[path] = own
    wide = max(ranks)
    found.config |= {"r": method.rank * wide, "lora_alpha": method.alpha * wide, "use_dora": dora}
    if len(ranks) > 1:  # only some layers are fused
        pattern = {path: own["lora_A.weight"].shape[0] for path, own in found.modules.items()}
        found.config |= {
            "rank_pattern": pattern,
            "alpha_pattern": {path: method.alpha * rank / method.rank for path, rank in pattern.items()},
        }
    _biases(method, found, tensors, modules)
    return found


def _biases(method: LoRA, found: Written, tensors: Mapping[str, Tensor], modules: Modules) -> None:
    found.config["bias"] = {"none": "none", "targets": "lora_only", "all": "all"}[method.biases]
    for path, parts in {**modules.linears, **modules.norms}.items():
        own = [p for p in parts if f"{p.layer}.{p.site}.bias" in tensors]
        if not own:
            continue
        base = modules.bias(path)
        assert base is not None
        whole = base.detach().float().cpu().clone()
        for part in _of_one_layer(path, parts, own, tensors, (".bias",)):
            whole[part.rows] = tensors[f"{part.layer}.{part.site}.bias"]
        if path in modules.linears and not torch.equal(whole, base.detach().float().cpu()):
            modules.check_own(path, "the adapter")
        name = "base_layer.bias" if path in found.modules else "bias"
        found.modules.setdefault(path, {})[name] = whole


def _ia3(method: IA3, tensors: Mapping[str, Tensor], modules: Modules) -> Written:
    found = Written({"peft_type": "IA3"})
    on_inputs: list[str] = []
    for path, parts in modules.linears.items():
        outputs = [p for p in parts if f"{p.layer}.{p.site}.gain" in tensors]
        inputs = [p for p in parts if f"{p.layer}.{p.site}{INPUT}.gain" in tensors]
        if outputs and inputs:
            raise ExchangeError(f"peft cannot have a gain on the output and on the input of one layer ({path}).")
        if not outputs and not inputs:
            continue
        modules.check_own(path, "the adapter")
        if inputs:
            part = _of_one_layer(path, parts, inputs, tensors, (f"{INPUT}.gain",))[0]
            on_inputs.append(path)
            found.modules[path] = {"ia3_l": tensors[f"{part.layer}.{part.site}{INPUT}.gain"][None, :]}
            continue
        gain = torch.ones(modules.weight(path).shape[0])
        for part in _of_one_layer(path, parts, outputs, tensors, (".gain",)):
            gain[part.rows] = tensors[f"{part.layer}.{part.site}.gain"]
        found.modules[path] = {"ia3_l": gain[:, None]}
    found.config["feedforward_modules"] = on_inputs
    return found


def _norms(method: LayerNorms, tensors: Mapping[str, Tensor], modules: Modules) -> Written:
    found = Written({"peft_type": "LN_TUNING"})
    for path, parts in modules.norms.items():
        own = [p for p in parts if f"{p.layer}.{p.site}.weight" in tensors]
        if own:
            part = _of_one_layer(path, parts, own, tensors, (".weight", ".bias"))[0]
            names = {kind: f"{part.layer}.{part.site}.{kind}" for kind in ("weight", "bias")}
            found.modules[path] = {f"ln_tuning_layers.{k}": tensors[n] for k, n in names.items() if n in tensors}
    return found


def _prefix(method: Prefix, tensors: Mapping[str, Tensor], modules: Modules) -> Written:
    shape = modules.encoder.shape
    if shape.family not in WITH_CACHE:
        raise ExchangeError(
            f"peft cannot put a prefix before {shape.family}: its model takes no keys and values from outside. "
            f"Families that do: {', '.join(WITH_CACHE)}."
        )
    if method.offset != method.size or method.layers not in (None, tuple(range(shape.layers))):
        raise ExchangeError(
            f"peft moves the text's positions by the size of the prefix ({method.size}) and has a prefix in every "
            f"layer; the task has offset={method.offset} and layers={method.layers}. Learn it with "
            f"--set offset={method.size}."
        )
    parts = [tensors[f"{layer}.{PREFIX}.{kind}"] for layer in range(shape.layers) for kind in ("key", "value")]
    config = {
        "peft_type": "PREFIX_TUNING", "num_virtual_tokens": method.size, "token_dim": shape.width,
        "num_transformer_submodules": 1, "num_attention_heads": shape.heads, "num_layers": shape.layers,
        "encoder_hidden_size": shape.width, "prefix_projection": False,
    }  # fmt: skip
    return Written(config, others={"prompt_embeddings": torch.cat(parts, dim=1)})


def _of_one_layer(
    path: str, parts: Iterable[Part], acting: list[Part], tensors: Mapping[str, Tensor], names: tuple[str, ...]
) -> list[Part]:
    """Return the parts on which a method acts, of the first layer that uses a module; raise unless it acts in the same
    way in all layers that use it."""
    first = [p for p in acting if p.layer == acting[0].layer]
    for layer in dict.fromkeys(p.layer for p in parts):
        for twin in first:
            for name in names:
                mine, other = (tensors.get(f"{n}.{twin.site}{name}") for n in (layer, twin.layer))
                if (mine is None) != (other is None) or (mine is not None and not torch.equal(mine, other)):  # type: ignore[arg-type]
                    raise ExchangeError(
                        f"the layers {twin.layer} and {layer} share the module {path}, but the task has different "
                        "tensors for them. The other library has one set for a shared module."
                    )
    return first
