"""Attaching to a base: the submodules at its sites are substituted, and nothing else is changed."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers.activations import GELUActivation

from intarsia.encoder import attention_registry, cores
from intarsia.encoder.frozen import FrozenLinear, Projections
from intarsia.encoder.routed import Dropout, Gelu, Site, Switchboard
from intarsia.encoder.sites import LAYER_OUTPUT, Family, layer_paths, places
from intarsia.encoder.trunk import stand_for


def attach(model: Any, family: Family) -> Switchboard:
    """Substitute the submodules at the sites of `model`; it then computes what it did before, until a pass says
    otherwise."""
    switchboard = Switchboard()
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Dropout):
            _put(model, path, Dropout(module.p, switchboard))
        elif isinstance(module, nn.Linear):
            _put(model, path, FrozenLinear(module))
        elif isinstance(module, GELUActivation):
            _put(model, path, Gelu(module, switchboard))
    for prefix, _ in layer_paths(family, model):
        three = [model.get_submodule(f"{prefix}.{family.within[site]}") for site in ("query", "key", "value")]
        if not family.fused_query_key_value and all(isinstance(one, FrozenLinear) for one in three):
            Projections((three[0], three[1], three[2]))
    for place in list(places(family, model)):
        inner = model.get_submodule(place.path)
        switchboard.modules |= {(site, layer): inner for site in place.sites for layer in place.layers}
        _put(model, place.path, Site(inner, place.sites, place.layers, switchboard, family.fused_query_key_value))
    _make_packed(model, family, switchboard)
    for prefix, _ in layer_paths(family, model):
        _watch(model.get_submodule(f"{prefix}.{family.attention}"), switchboard, "sublayer_input", "layer_input")
        _watch(model.get_submodule(f"{prefix}.{family.within['ffn.up']}"), switchboard, "sublayer_input")
        stand_for(model.get_submodule(prefix), switchboard)
        _watch_output(model.get_submodule(prefix), switchboard)
    model.requires_grad_(False)
    # `transformers` hands the attention dropout to the registered attention in train mode only; whether it is applied
    # is the pass's decision, as it is for every other dropout here.
    model.train()
    return switchboard


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _watch(module: nn.Module, switchboard: Switchboard, *names: str) -> None:
    """Remember what a module reads while a method in the pass wants it."""

    def remember(_: nn.Module, args: tuple[Any, ...]) -> None:
        current = switchboard.current
        if current is not None:
            for name in names:
                if any(name in g.method.wants for g in current.groups):
                    setattr(current, name, args[0])

    module.register_forward_pre_hook(remember)


def _watch_output(module: nn.Module, switchboard: Switchboard) -> None:
    """Let methods act on a whole layer's output."""

    def act(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        current = switchboard.current
        if current is None or current.span.left_out:
            return None
        if switchboard.behind_layer is not None:
            switchboard.behind_layer(output[0] if isinstance(output, tuple) else output)
        if not current.groups:
            return None
        if isinstance(output, tuple):
            return (switchboard.act(None, LAYER_OUTPUT, current.span.now, output[0]), *output[1:])
        return switchboard.act(None, LAYER_OUTPUT, current.span.now, output)

    module.register_forward_hook(act)


def _make_packed(model: Any, family: Family, switchboard: Switchboard) -> None:
    if family.core == "registry":
        attention_registry.register()
        _own_config(model)._attn_implementation = attention_registry.NAME
        for prefix, layers in layer_paths(family, model):
            module = model.get_submodule(f"{prefix}.{family.attention}")
            module.intarsia_switchboard, module.intarsia_layers = switchboard, layers
        return
    if family.core == "mpnet":  # it would have a mask [N, N] made, which its core does not read
        attention_registry.register()
        _own_config(model)._attn_implementation = attention_registry.NAME
    for prefix, layers in layer_paths(family, model):
        path = f"{prefix}.{family.attention}"
        plain = model.get_submodule(path)
        if family.core == "mpnet":
            _put(model, path, cores.MPNetCore(plain, _shared_bias(model), switchboard, layers[0]))
        else:
            _pause_for_positions(plain, switchboard)
            _put(model, path, cores.PaddedIsland(plain, switchboard))
    if family.core == "deberta":
        _spare_deberta_squares(model.encoder, switchboard)


def _own_config(model: Any) -> Any:
    """A copy of the configuration for this model alone: others may have been made from the same object."""
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own
    return own


def _shared_bias(model: Any) -> cores.MPNetBias:
    """One bias table for all layers; and the encoder no longer builds its own [N, N] one."""
    encoder = model.encoder
    if not hasattr(encoder, "intarsia_bias"):
        encoder.intarsia_bias = cores.MPNetBias(encoder)
        encoder.compute_position_bias = lambda *_, **__: None
    return encoder.intarsia_bias


def _pause_for_positions(module: Any, switchboard: Switchboard) -> None:
    """DeBERTa projects its relative positions through the query and key layers too: these are nobody's tokens."""
    plain = module.disentangled_attention_bias

    def bias(*args: Any, **kwargs: Any) -> Any:
        if switchboard.current is None:
            return plain(*args, **kwargs)
        with switchboard.current.pause():
            return plain(*args, **kwargs)

    module.disentangled_attention_bias = bias


def _spare_deberta_squares(encoder: Any, switchboard: Switchboard) -> None:
    """Keep DeBERTa's encoder from building [N, N] masks and positions over the whole packed stream."""
    if encoder.conv is not None:
        encoder.conv = cores.PaddedIsland(encoder.conv, switchboard, convolution=True)
    plain_mask, plain_positions = encoder.get_attention_mask, encoder.get_rel_pos

    def packed() -> bool:
        return switchboard.current is not None and not switchboard.current.padded

    encoder.get_attention_mask = lambda mask: mask if packed() else plain_mask(mask)
    encoder.get_rel_pos = lambda *a, **k: None if packed() else plain_positions(*a, **k)
