"""Attaching to a base: replaces the submodules at its sites and changes nothing else."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers.activations import GELUActivation

from intarsia.encoder import attention_registry, cores
from intarsia.encoder.frozen import FrozenLinear, Projections
from intarsia.encoder.routed import Dropout, Gelu, Site, Switchboard
from intarsia.encoder.sites import LAYER_OUTPUT, Family, layer_paths, places
from intarsia.encoder.trunk import replace_forward, skip_embeddings


def attach(model: Any, family: Family) -> Switchboard:
    """Replace the submodules at the sites of `model` and return the switchboard that they share.

    The model computes the same outputs as before, except in a pass in which methods act.
    """
    switchboard = Switchboard()
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Dropout):
            _replace(model, path, Dropout(module.p, switchboard))
        elif isinstance(module, nn.Linear):
            _replace(model, path, FrozenLinear(module))
        elif isinstance(module, GELUActivation):
            _replace(model, path, Gelu(module, switchboard))
    for prefix, _ in layer_paths(family, model):
        qkv = [model.get_submodule(f"{prefix}.{family.within[site]}") for site in ("query", "key", "value")]
        if not family.fused_query_key_value and all(isinstance(linear, FrozenLinear) for linear in qkv):
            Projections((qkv[0], qkv[1], qkv[2]))
    for place in list(places(family, model)):
        inner = model.get_submodule(place.path)
        switchboard.modules |= {(site, layer): inner for site in place.sites for layer in place.layers}
        _replace(model, place.path, Site(inner, place.sites, place.layers, switchboard, family.fused_query_key_value))
    _make_packed(model, family, switchboard)
    for prefix, _ in layer_paths(family, model):
        _record_input(model.get_submodule(f"{prefix}.{family.attention}"), switchboard, "sublayer_input", "layer_input")
        _record_input(model.get_submodule(f"{prefix}.{family.within['ffn.up']}"), switchboard, "sublayer_input")
        replace_forward(model.get_submodule(prefix), switchboard)
        _hook_output(model.get_submodule(prefix), switchboard)
    if getattr(model.config, "embedding_size", model.config.hidden_size) == model.config.hidden_size:
        skip_embeddings(model.get_submodule("embeddings"), switchboard)
    model.requires_grad_(False)
    # `transformers` passes the attention dropout to the registered attention in train mode only. The pass decides
    # whether dropout is applied, as for every other dropout here.
    model.train()
    return switchboard


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _record_input(module: nn.Module, switchboard: Switchboard, *names: str) -> None:
    """Store the input of a module in the pass if a method in the pass wants it."""

    def store(_: nn.Module, args: tuple[Any, ...]) -> None:
        current = switchboard.current
        if current is not None:
            for name in names:
                if any(name in g.method.wants for g in current.groups):
                    setattr(current, name, args[0])

    module.register_forward_pre_hook(store)


def _hook_output(module: nn.Module, switchboard: Switchboard) -> None:
    """Let methods act on the output of a whole layer."""

    def act(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        current = switchboard.current
        if current is None or current.span.left_out:
            return None
        if switchboard.on_layer_output is not None:
            switchboard.on_layer_output(output[0] if isinstance(output, tuple) else output)
        if not current.groups:
            return None
        if isinstance(output, tuple):
            return (switchboard.act(None, LAYER_OUTPUT, current.span.now, output[0]), *output[1:])
        return switchboard.act(None, LAYER_OUTPUT, current.span.now, output)

    module.register_forward_hook(act)


def _make_packed(model: Any, family: Family, switchboard: Switchboard) -> None:
    """Make the attention of the model work on packed batches."""
    if family.core == "registry":
        attention_registry.register()
        _own_config(model)._attn_implementation = attention_registry.NAME
        for prefix, layers in layer_paths(family, model):
            module = model.get_submodule(f"{prefix}.{family.attention}")
            module.intarsia_switchboard, module.intarsia_layers = switchboard, layers
        return
    if family.core == "mpnet":  # avoids a mask [N, N], which its core does not read
        attention_registry.register()
        _own_config(model)._attn_implementation = attention_registry.NAME
    for prefix, layers in layer_paths(family, model):
        path = f"{prefix}.{family.attention}"
        plain = model.get_submodule(path)
        if family.core == "mpnet":
            _replace(model, path, cores.MPNetCore(plain, _shared_bias(model), switchboard, layers[0]))
        else:
            _hide_positions(plain, switchboard)
            _replace(model, path, cores.PaddedIsland(plain, switchboard))
    if family.core == "deberta":
        _skip_square_masks(model.encoder, switchboard)


def _own_config(model: Any) -> Any:
    """Give this model its own copy of the configuration, because other models may share the object; return it."""
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own
    return own


def _shared_bias(model: Any) -> cores.MPNetBias:
    """Return the bias table that all layers share, and stop the encoder from building its own [N, N] bias."""
    encoder = model.encoder
    if not hasattr(encoder, "intarsia_bias"):
        encoder.intarsia_bias = cores.MPNetBias(encoder)
        encoder.compute_position_bias = lambda *_, **__: None
    return encoder.intarsia_bias


def _hide_positions(module: Any, switchboard: Switchboard) -> None:
    """Pause the methods while DeBERTa projects its relative positions, which no slot owns, through query and key."""
    plain = module.disentangled_attention_bias

    def bias(*args: Any, **kwargs: Any) -> Any:
        if switchboard.current is None:
            return plain(*args, **kwargs)
        with switchboard.current.pause():
            return plain(*args, **kwargs)

    module.disentangled_attention_bias = bias


def _skip_square_masks(encoder: Any, switchboard: Switchboard) -> None:
    """Stop DeBERTa's encoder from building [N, N] masks and positions over the whole packed batch."""
    if encoder.conv is not None:
        encoder.conv = cores.PaddedIsland(encoder.conv, switchboard, convolution=True)
    plain_mask, plain_positions = encoder.get_attention_mask, encoder.get_rel_pos

    def packed() -> bool:
        return switchboard.current is not None and not switchboard.current.padded

    encoder.get_attention_mask = lambda mask: mask if packed() else plain_mask(mask)
    encoder.get_rel_pos = lambda *a, **k: None if packed() else plain_positions(*a, **k)
