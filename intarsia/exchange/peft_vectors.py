"""(IA)³ and LayerNorm tuning of peft: vectors that multiply, and norms of the task's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from intarsia.encoder.sites import OUTSIDE
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.modules import Modules, Part
from intarsia.exchange.patterns import compiled
from intarsia.exchange.peft_lora import check_targets
from intarsia.exchange.peft_parts import PeftTensors, Read
from intarsia.methods import IA3, LayerNorms

INPUT = ".input"


def read_ia3(flags: Flags, tensors: PeftTensors, modules: Modules) -> Read:
    """Return (IA)³: gains of outputs, and for `feedforward_modules` of inputs."""
    flags.no_effect("init_ia3_weights")
    flags.expect("fan_in_fan_out", False, None)
    on_input = _feed_forward(flags)
    check_targets(flags, tensors, modules, "ia3_l")
    shape = modules.encoder.shape
    found: dict[tuple[str, int], Tensor] = {}
    pooler: dict[str, Tensor] = {}
    for module in tuple(tensors.having("ia3_l")):
        weight = modules.weight(module)
        reads = on_input(tensors.path(module))
        gain = tensors.take(module, "ia3_l", (1, weight.shape[1]) if reads else (weight.shape[0], 1)).flatten()
        if module == modules.pooler:
            pooler |= _pooler(modules, module, gain, reads)
            continue
        modules.check_own(module, flags.where)
        for part in modules.linears[module]:
            key = (part.site + INPUT if reads else part.site, part.layer)
            found[key] = gain if reads else gain[part.rows]
    if not found:
        raise ExchangeError(f"{flags.where}: no linear layer of this base has a gain.")
    layers = sorted({layer for _, layer in found})
    method = IA3(
        layers=None if layers == list(range(shape.layers)) else tuple(layers),
        sites=tuple(dict.fromkeys(site for site, _ in found)),
    )
    stored, absent = {}, 0
    for name, spec in method.tensors(shape).items():
        layer, _, site = name.removesuffix(".gain").partition(".")
        gain_or_none = found.get((site, int(layer)))
        absent += gain_or_none is None
        stored[name] = torch.ones(spec.shape) if gain_or_none is None else gain_or_none.clone()
    notes: tuple[str, ...] = (f"{absent} layers and sites without a gain hold ones",) if absent else ()
    notes += ("the gains of the pooler merged into the head's own pooler",) if pooler else ()
    return Read(method, stored, notes, pooler)


def read_norms(flags: Flags, tensors: PeftTensors, modules: Modules) -> Read:
    """Return LayerNorm tuning: the file has whole weights and biases, not differences."""
    norm = "ln_tuning_layers"
    check_targets(flags, tensors, modules, f"{norm}.weight", modules.norms)
    found: dict[str, Tensor] = {}
    for module in tuple(tensors.having(f"{norm}.weight")):
        for kind, base in (("weight", modules.weight(module)), ("bias", modules.bias(module))):
            if base is not None:
                tensor = tensors.take(module, f"{norm}.{kind}", tuple(base.shape))
                found |= {f"{part.layer}.{part.site}.{kind}": tensor.clone() for part in modules.norms[module]}
    layers = sorted({part.layer for part in _parts(modules, found)} - {OUTSIDE})
    if not found:
        raise ExchangeError(f"{flags.where}: no LayerNorm of this base is trained.")
    every = tuple(range(modules.encoder.shape.layers))
    method = LayerNorms(
        layers=None if not layers or tuple(layers) == every else tuple(layers),
        embedding_norm=f"{OUTSIDE}.embedding.norm.weight" in found,
    )
    stored = modules.of_the_base(method) | found
    rest = len(stored) - len(found)
    return Read(method, stored, (f"{rest} weights and biases of other norms hold the base's",) if rest else ())


def _parts(modules: Modules, found: Mapping[str, Tensor]) -> Iterable[Part]:
    return (p for parts in modules.norms.values() for p in parts if f"{p.layer}.{p.site}.weight" in found)


def _feed_forward(flags: Flags) -> Callable[[str], bool]:
    """Return whether a module has its gain on the input, as peft decides it: by the end of its name."""
    given = flags.take("feedforward_modules", None)
    if isinstance(given, str):
        pattern = compiled(given, flags.where)
        return lambda path: pattern.fullmatch(path) is not None
    names = given or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ExchangeError(f"{flags.where}: feedforward_modules is {given!r:.80}; expected names or a pattern.")
    return lambda path: any(path.endswith(name) for name in names)


def _pooler(modules: Modules, path: str, gain: Tensor, reads: bool) -> dict[str, Tensor]:
    weight, bias = modules.weight(path).detach().float().cpu(), modules.bias(path)
    if reads:
        return {"weight": weight * gain}
    scaled = {} if bias is None else {"bias": bias.detach().float().cpu() * gain}
    return {"weight": weight * gain[:, None], **scaled}
