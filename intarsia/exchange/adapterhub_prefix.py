"""Prefix tuning of AdapterHub: flat, or with the network that reparameterises it evaluated."""

from __future__ import annotations

import torch
from torch import Tensor

from intarsia.encoder.activations import activate
from intarsia.encoder.sites import PREFIX
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.activations import activation_of
from intarsia.exchange.adapterhub_names import HubTensors
from intarsia.exchange.adapterhub_parts import GATING, HubPart, layers_of, not_left_out, repeated
from intarsia.methods import Prefix

TRAINING_ONLY = ("dropout", "init_weights_seed", "encoder_prefix", "cross_prefix", "shared_gating")


def read_prefix(flags: Flags, tensors: HubTensors) -> HubPart:
    """Return the method of a `prefix_tuning` configuration, with its tensors."""
    flags.no_effect(*TRAINING_ONLY)
    flags.expect("use_gating", False, None, because=GATING)
    own = not_left_out(flags, tensors.own)
    shape = tensors.modules.encoder.shape
    size, hidden = flags.whole("prefix_length", least=1, most=4096), flags.whole("bottleneck_size", 512, least=1)
    method = Prefix(size, layers=layers_of(own, tensors.own))
    method.check(shape)
    if shape.pre_norm:
        raise ExchangeError(f"{flags.where}: adapters has no prefix tuning for the family {shape.family}.")
    found, d = tensors.prefix(), shape.width
    length = 2 * len(own) * d
    flat = flags.yes("flat")
    activation = activation_of(flags.take("non_linearity", "tanh"), flags.where)
    if flat:
        values = _taken(found, "control_trans", (size * length,), tensors).view(size, length)
    else:
        words = _taken(found, "wte.weight", (size, d), tensors)
        first = _linear(found, "control_trans.0", words, hidden, tensors)
        values = _linear(found, "control_trans.2", activate(first, activation), length, tensors)
    if found:
        raise ExchangeError(f"{tensors.weights.where} has a prefix tensor {next(iter(found))!r}, which is not known.")
    values = values.view(size, 2 * len(own), d)
    keys = {}
    for number, o in enumerate(own):
        for layer in o.layers:
            keys[f"{layer}.{PREFIX}.key"] = values[:, 2 * number].clone()
            keys[f"{layer}.{PREFIX}.value"] = values[:, 2 * number + 1].clone()
    folded = () if flat else ("the network of the prefix evaluated",)
    return HubPart(method, keys, (*folded, *repeated(own)))


def _linear(found: dict[str, Tensor], name: str, x: Tensor, outputs: int, tensors: HubTensors) -> Tensor:
    weight = _taken(found, f"{name}.weight", (outputs, x.shape[1]), tensors)
    return torch.nn.functional.linear(x, weight, _taken(found, f"{name}.bias", (outputs,), tensors))


def _taken(found: dict[str, Tensor], name: str, shape: tuple[int, ...], tensors: HubTensors) -> Tensor:
    have = tuple(found[name].shape) if name in found else "missing"
    if have != shape:
        raise ExchangeError(
            f"{tensors.weights.where}: the prefix tensor {name!r} is {have}; this base and its flags need {shape}."
        )
    return found.pop(name)
