"""The configurations and tensors with which AdapterHub computes a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT, OUTSIDE, PREFIX
from intarsia.errors import ExchangeError
from intarsia.exchange.activations import THEIRS
from intarsia.exchange.adapterhub_lora import ATTENTION
from intarsia.exchange.adapterhub_names import HubNames, Own
from intarsia.methods import IA3, Bottleneck, LoRA, Method, Pfeiffer, Prefix, Stack
from intarsia.methods.compose import Parent

Tensors = Mapping[str, Tensor]


@dataclass
class Written:
    """A configuration, and tensors by their names in the file."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def written(method: Method, tensors: Tensors, names: HubNames) -> Written:
    """Return what AdapterHub needs for a method; raise with the reason if it cannot compute it."""
    if type(method) is Pfeiffer:
        return _bottleneck(_as_bottleneck(method, names), tensors, names)
    if type(method) is Bottleneck:
        return _bottleneck(method, tensors, names)
    if type(method) is LoRA:
        return _lora(method, tensors, names)
    if type(method) is IA3:
        return _gains(method, tensors, names)
    if type(method) is Prefix:
        return _prefix(method, tensors, names)
    if type(method) is Stack:
        return _union(method, tensors, names)
    raise ExchangeError(
        f"adapters has no method that computes {method.name}. It can take pfeiffer, houlsby and its variants with "
        "norms=no, lora, ia3 with sites=key,value,ffn.up, prefix, and stacks of them at different places. Other "
        "formats: --format peft, sft, merged or inlay."
    )


def _as_bottleneck(method: Pfeiffer, names: HubNames) -> Bottleneck:
    invertible = {"invertible": method.invertible, "invertible_reduction": method.invertible_reduction}
    return Bottleneck(
        method.width(names.modules.encoder.shape), "ffn", layers=method.layers, activation=method.activation,
        norms=False, base_norm_before=True, **invertible,  # type: ignore[arg-type]
    )  # fmt: skip


def _bottleneck(method: Bottleneck, tensors: Tensors, names: HubNames) -> Written:
    _check_form(method, names)
    shape = names.modules.encoder.shape
    attention, ffn = method.places_in_layer != "ffn", method.places_in_layer != "attention"
    if shape.family == "albert" and attention:  # adapters exchanges input and output of ALBERT's attention
        if ffn:
            parts = [
                replace(method, places_in_layer="attention", invertible=False),
                replace(method, places_in_layer="ffn"),
            ]
            return _joined([_bottleneck(part, tensors, names) for part in parts])
        if not method.base_norm_after or method.norm_after == "sum" or method.residual != "output":
            raise ExchangeError("adapters cannot compute this form of adapters in ALBERT's attention.")
        method = method if method.base_norm_before else replace(method, parallel=not method.parallel)
    layers = _layers(method.layers, names)
    own = _own(layers, names)
    sizes = dict(zip(layers, method.sizes or [method.size] * len(layers), strict=True))
    found = Written(_bottleneck_config(method, own, sizes, names))
    found.config |= {"mh_adapter": attention, "output_adapter": ffn}
    for o in own:
        for site in (ATTENTION_OUTPUT,) * attention + (FFN_OUTPUT,) * ffn:
            _adapter(found, method, f"{o.layers[0]}.{site}.", _equal(o, site, tensors, names.bottleneck(o, site)))
    if method.invertible:
        found.config |= {"inv_adapter": "nice", "inv_adapter_reduction_factor": method.invertible_reduction}
        for net in "FG":
            for layer, part in ((0, "down"), (2, "up")):
                for kind in ("weight", "bias"):
                    tensor = tensors[f"{OUTSIDE}.embedding.output.{net.lower()}.{part}.{kind}"]
                    found.tensors[names.invertible(f"{net}.{layer}.{kind}")] = tensor
    return found


def _check_form(method: Bottleneck, names: HubNames) -> None:
    shape = names.modules.encoder.shape
    faults = {
        "trained LayerNorms of the base (learn with --set norms=no)": method.norms or bool(method.embedding_norm),
        "more than one hidden layer (depth)": method.depth > 1,
        "a norm of the hidden units (inner_norm)": method.inner_norm != "none",
        "multiplicative adapters": method.multiplicative,
        "sum_before on this family": method.sum_before and (not shape.pre_norm or method.places_in_layer != "ffn"),
    }
    for fault, present in faults.items():
        if present:
            raise ExchangeError(f"adapters has no bottleneck adapters with {fault}.")


def _bottleneck_config(method: Bottleneck, own: list[Own], sizes: Mapping[int, int], names: HubNames) -> dict[str, Any]:
    by_module = {o.number: sizes[o.layers[0]] for o in own}
    factors = {number: _factor(names.modules.encoder.shape.width, size) for number, size in by_module.items()}
    same = len(set(factors.values())) == 1
    scaling = {"none": float(method.scaling), "scalar": "learned", "channel": "channel"}[method.learned_scaling]
    return {
        "reduction_factor": factors[own[0].number] if same else {str(n): f for n, f in factors.items()},
        "non_linearity": THEIRS[method.activation],
        "original_ln_before": method.base_norm_before or method.sum_before,
        "original_ln_after": method.base_norm_after,
        "ln_before": method.norm_before,
        "ln_after": method.norm_after != "none",
        "adapter_residual_before_ln": method.norm_after == "sum",
        "residual_before_ln": _residual(method),
        "is_parallel": method.parallel,
        "scaling": scaling,
        "dropout": method.dropout,
        "leave_out": _left_out(own, names),
        "init_weights": "bert", "use_gating": False, "phm_layer": False, "inv_adapter": None,
        "inv_adapter_reduction_factor": None, "cross_adapter": False,
    }  # fmt: skip


def _residual(method: Bottleneck) -> bool | str:
    if method.base_norm_before:
        return "post_add" if method.residual == "sum" else method.residual == "output"
    return method.residual == "output"


def _factor(width: int, size: int) -> int | float:
    """Return a reduction factor from which the library computes this size: int(width // factor)."""
    return width // size if width % size == 0 else width / (size + 0.5)


def _adapter(found: Written, method: Bottleneck, ours: str, place: tuple[str, Tensors]) -> None:
    theirs, own = place
    down = f"adapter_down.{int(method.norm_before)}"
    pairs = [("down", down), ("up", "adapter_up")]
    if method.norm_before:
        pairs += [("norm_before", "adapter_norm_before"), ("norm_before", "adapter_down.0")]
    if method.norm_after != "none":
        pairs.append(("norm_after", "adapter_norm_after"))
    for part, name in pairs:
        for kind in ("weight", "bias"):
            found.tensors[f"{theirs}{name}.{kind}"] = own[f"{ours}{part}.{kind}"]
    if method.learned_scaling != "none":
        found.tensors[f"{theirs}scaling"] = own[f"{ours}scaling"] * method.scaling


def _lora(method: LoRA, tensors: Tensors, names: HubNames) -> Written:
    if method.biases != "none":
        raise ExchangeError("adapters has no LoRA with trained biases. peft has: --format peft.")
    config, sites, own = _linear_config(method.targets, method.layers, names)
    config |= {"r": method.rank, "alpha": method.alpha, "composition_mode": "add", "init_weights": "lora"}
    found = Written({**config, "dropout": method.dropout})
    for o, path, chosen in names.linears(sites):
        if o in own:
            names.modules.check_own(path, "the adapter")
            for letter, part in (("A", "a"), ("B", "b")):
                values = [_one(o, f"{site}.{part}.weight", tensors) for site in chosen]
                found.tensors[f"{names.lora(path)}lora_{letter}"] = torch.cat(values)
    return found


def _gains(method: IA3, tensors: Tensors, names: HubNames) -> Written:
    config, sites, own = _linear_config(method.sites, method.layers, names)
    found = Written({**config, "r": 1, "alpha": 1, "composition_mode": "scale", "init_weights": "ia3"})
    for o, path, chosen in names.linears(sites):
        if o in own:
            names.modules.check_own(path, "the adapter")
            gains = torch.cat([_one(o, f"{site}.gain", tensors) for site in chosen])
            found.tensors[f"{names.lora(path)}lora_B"] = gains[:, None]
    return found


def _linear_config(
    sites: tuple[str, ...], layers: Any, names: HubNames
) -> tuple[dict[str, Any], tuple[str, ...], list[Own]]:
    known = (*ATTENTION.values(), "ffn.up", "ffn.down")
    other = [site for site in sites if site not in known]
    if other:
        raise ExchangeError(
            f"adapters cannot act at {other[0]}. It can act on the outputs of {', '.join(known)}: learn the task with "
            "these (--set targets=… or sites=…)."
        )
    own = _own(_layers(layers, names), names)
    letters = [letter for letter, site in ATTENTION.items() if site in sites]
    config = {"architecture": "lora", "attn_matrices": letters, "selfattn_lora": bool(letters),
              "intermediate_lora": "ffn.up" in sites, "output_lora": "ffn.down" in sites, "use_gating": False,
              "use_dora": False, "leave_out": _left_out(own, names)}  # fmt: skip
    return config, tuple(site for site in known if site in sites), own


def _prefix(method: Prefix, tensors: Tensors, names: HubNames) -> Written:
    if method.offset:
        raise ExchangeError("a prefix of adapters does not move the positions of the text; this one has an offset.")
    if names.modules.encoder.shape.pre_norm:
        raise ExchangeError(f"adapters has no prefix tuning for {names.modules.encoder.shape.family}.")
    own = _own(_layers(method.layers, names), names)
    parts = [_one(o, f"{PREFIX}.{kind}", tensors) for o in own for kind in ("key", "value")]
    values = torch.stack(parts, 1).reshape(-1)  # [size, 2 · layers, d]
    config = {"architecture": "prefix_tuning", "flat": True, "prefix_length": method.size, "use_gating": False,
              "leave_out": _left_out(own, names)}  # fmt: skip
    return Written(config, {f"{name}control_trans": values.clone() for name in names.prefixes()})


def _union(method: Stack, tensors: Tensors, names: HubNames) -> Written:
    shape, seen = names.modules.encoder.shape, set[tuple[str, int]]()
    for part in method.methods:
        if isinstance(part, Parent) or seen & part.places(shape):
            raise ExchangeError(
                "a stack is exported to adapters only if its parts are methods of its own that act at different places."
            )
        seen |= part.places(shape)
    return _joined([written(p, method.part_tensors(i, tensors), names) for i, p in enumerate(method.methods)])


def _joined(parts: Iterable[Written]) -> Written:
    configs: list[dict[str, Any]] = []
    found: dict[str, Tensor] = {}
    for part in parts:
        configs += part.config["configs"] if part.config.get("architecture") == "union" else [part.config]
        found |= part.tensors
    return Written({"architecture": "union", "configs": configs}, found)


def _layers(layers: Any, names: HubNames) -> tuple[int, ...]:
    from intarsia.methods.method import chosen_layers

    return chosen_layers(layers, names.modules.encoder.shape)


def _own(layers: tuple[int, ...], names: HubNames) -> list[Own]:
    """Return the layer modules of these layers; raise if the method acts in some of the layers that share one."""
    own = [o for o in names.own if set(o.layers) & set(layers)]
    if any(not set(o.layers) <= set(layers) for o in own):
        raise ExchangeError("layers share their weights here, and adapters has one adapter for all that share.")
    return own


def _left_out(own: list[Own], names: HubNames) -> list[int]:
    return [o.number for o in names.own if o not in own]


def _one(own: Own, name: str, tensors: Tensors) -> Tensor:
    """Return a tensor that all layers of a module have; raise if theirs differ."""
    first = tensors[f"{own.layers[0]}.{name}"]
    if any(not torch.equal(tensors[f"{layer}.{name}"], first) for layer in own.layers[1:]):
        raise ExchangeError(
            f"the layers {own.layers} share one module, but the task has different tensors for them; adapters has one "
            "adapter for a shared module."
        )
    return first


def _equal(own: Own, site: str, tensors: Tensors, name: str) -> tuple[str, Tensors]:
    """Return the name of a place and the tensors, after checking that all layers of the module have the same."""
    start = f"{own.layers[0]}."
    for key in tensors:
        if key.startswith(f"{start}{site}."):
            _one(own, key.removeprefix(start), tensors)
    return name, tensors
