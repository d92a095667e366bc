"""Bottleneck adapters of AdapterHub, with all their flags, as `Pfeiffer` or `Bottleneck`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT, OUTSIDE
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.activations import activation_of
from intarsia.exchange.adapterhub_names import HubTensors, Own
from intarsia.exchange.adapterhub_parts import GATING, HubPart, joined, layers_of, not_left_out, repeated
from intarsia.exchange.compacter import PHM_FLAGS, Compacter
from intarsia.methods import Bottleneck, Method, Pfeiffer

TRAINING_ONLY = ("init_weights", "init_weights_seed", "stochastic_depth", "cross_adapter", "attention_type")
PLACES = {(True, True): "both", (True, False): "attention", (False, True): "ffn"}


@dataclass(frozen=True)
class Form:
    """What a configuration says about the computation; the names are those of `Bottleneck`'s options."""

    sites: tuple[str, ...]
    sizes: dict[int, int]  # hidden units, by the numbers of the layer modules
    factor: float | str  # of the adapter's output: a number, or which factor is learned
    options: dict[str, Any]


@dataclass(frozen=True)
class Invertible:
    """The invertible adapter at the embeddings."""

    reduction: int
    tensors: dict[str, Tensor]


def read_bottleneck(flags: Flags, tensors: HubTensors) -> HubPart:
    """Return the method of a bottleneck configuration, with its tensors."""
    flags.no_effect(*TRAINING_ONLY)
    flags.expect("use_gating", False, None, because=GATING)
    flags.expect("new_attention_norm", False, None)
    own = not_left_out(flags, tensors.own)
    compacter = Compacter(flags, tensors) if flags.yes("phm_layer") else None
    flags.no_effect(*PHM_FLAGS)
    invertible = _invertible(flags, tensors)
    notes = ("the hypercomplex matrices of Compacter multiplied out",) if compacter else ()
    form = _form(flags, own, tensors)
    parts = [_part(part, own, tensors, compacter) for part in _exchanged(form, tensors)]
    if invertible:
        last = replace(parts[-1].method, invertible=True, invertible_reduction=invertible.reduction)  # type: ignore[type-var]
        parts[-1] = replace(parts[-1], method=last, tensors={**parts[-1].tensors, **invertible.tensors})
    for part in parts:
        part.method.check(tensors.modules.encoder.shape)
    found = joined(parts)
    return replace(found, folded=(*notes, *found.folded, *repeated(own)))


def _part(form: Form, own: tuple[Own, ...], tensors: HubTensors, compacter: Compacter | None) -> HubPart:
    found: dict[str, Tensor] = {}
    for o in own:
        for site in form.sites:
            one = _adapter(tensors, tensors.bottleneck(o, site), form, form.sizes[o.number], compacter)
            for layer in o.layers:
                found |= {f"{layer}.{site}.{name}": tensor.clone() for name, tensor in one.items()}
    folded: tuple[str, ...] = ()
    if form.factor not in (1.0, "learned", "channel"):
        folded = (f"the scaling {form.factor:g} multiplied into the way up",)
    return HubPart(_method(form, own, tensors), found, folded)


def _exchanged(form: Form, tensors: HubTensors) -> list[Form]:
    """Return the forms at the places. In ALBERT's attention, adapters exchanges the sub-layer's input x and its output
    h: an adapter on h reads x, a parallel one reads h. The sum LN(h + x + u) is the same."""
    options = form.options
    if tensors.modules.encoder.shape.family != "albert" or ATTENTION_OUTPUT not in form.sites:
        return [form]
    symmetric = options["base_norm_after"] and options["norm_after"] != "sum"
    if not symmetric or options.get("residual", "output") != "output":
        raise ExchangeError(
            "adapters exchanges the input and the output of ALBERT's attention, so with these flags of mh_adapter "
            "(original_ln_after, ln_after, residual_before_ln) it computes what no method of Intarsia computes."
        )
    parallel = options["parallel"] if options.get("base_norm_before") else not options["parallel"]
    attention = replace(
        form, sites=(ATTENTION_OUTPUT,), options={**options, "parallel": parallel, "places_in_layer": "attention"}
    )
    rest = replace(form, sites=(FFN_OUTPUT,), options={**options, "places_in_layer": "ffn"})
    return [attention, rest] if FFN_OUTPUT in form.sites else [attention]


def _form(flags: Flags, own: tuple[Own, ...], tensors: HubTensors) -> Form:
    attention, ffn = flags.yes("mh_adapter"), flags.yes("output_adapter")
    sites = (ATTENTION_OUTPUT,) * attention + (FFN_OUTPUT,) * ffn
    if not sites:
        raise ExchangeError(f"{flags.where}: mh_adapter and output_adapter are both false: the adapter has no place.")
    sizes = _sizes(flags.take("reduction_factor"), flags.where, own, tensors.modules.encoder.shape.width)
    factor = flags.take("scaling", 1.0)
    if factor not in ("learned", "channel"):
        factor = float(flags.number("scaling", 1.0, least=-(2**20), most=2**20))
    options: dict[str, Any] = {
        "places_in_layer": PLACES[attention, ffn],
        "activation": activation_of(flags.take("non_linearity"), flags.where),
        "dropout": flags.number("dropout", 0.0, most=0.999),
        "norm_before": flags.yes("ln_before"),
        **_residuals(flags, attention, tensors),
    }
    return Form(sites, sizes, factor, options)


def _residuals(flags: Flags, attention: bool, tensors: HubTensors) -> dict[str, Any]:
    """Return the options for what the adapter reads and what its output is added to."""
    parallel, before, after = (flags.yes(n) for n in ("is_parallel", "original_ln_before", "ln_after"))
    residual, inside = flags.take("residual_before_ln", True), flags.yes("adapter_residual_before_ln")
    options: dict[str, Any] = {"base_norm_after": flags.yes("original_ln_after", True), "parallel": parallel}
    if parallel:
        return {**options, "norm_after": "change" if after else "none"}
    options["norm_after"] = ("sum" if inside else "change") if after else "none"
    if residual not in (True, False, "post_add"):
        raise ExchangeError(
            f"{flags.where}: residual_before_ln is {residual!r:.60}; expected true, false or 'post_add'."
        )
    if not before:
        if residual == "post_add":
            raise ExchangeError(
                f"{flags.where}: residual_before_ln = 'post_add' needs original_ln_before; adapters fails too."
            )
        return options
    if not tensors.modules.encoder.shape.pre_norm:
        return {**options, "base_norm_before": True, "residual": {True: "output", False: "read"}.get(residual, "sum")}
    if attention:
        raise ExchangeError(
            f"{flags.where}: original_ln_before with mh_adapter cannot be imported for "
            f"{tensors.modules.encoder.shape.family}: adapters normalises every layer with the LayerNorm of the last "
            "layer, which no method computes."
        )
    if residual == "post_add":
        raise ExchangeError(
            f"{flags.where}: residual_before_ln = 'post_add' cannot be imported for "
            f"{tensors.modules.encoder.shape.family}: it has no LayerNorm behind the "
            "feed-forward, and adapters fails too."
        )
    return {**options, "sum_before": True, "residual": "output" if residual else "sum"}


def _sizes(factor: Any, where: str, own: tuple[Own, ...], width: int) -> dict[int, int]:
    """Return the hidden units of each layer module: the width divided by its reduction factor."""
    found = {}
    for o in own:
        value = factor
        if isinstance(factor, dict):
            value = factor.get(str(o.number), factor.get("default"))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-3 <= value <= 1e6:
            raise ExchangeError(
                f"{where}: reduction_factor is {value!r:.60} for the layer {o.number}; expected a number from 0.001 to "
                "1000000, or one for each layer with a default."
            )
        found[o.number] = max(1, int(width // value))
    return found


def _adapter(tensors: HubTensors, name: str, form: Form, size: int, compacter: Compacter | None) -> dict[str, Tensor]:
    """Take the tensors of one adapter, by the method's names."""
    weights, d = tensors.weights, tensors.modules.encoder.shape.width
    found: dict[str, Tensor] = {}
    down, up = f"{name}adapter_down.{int(form.options['norm_before'])}", f"{name}adapter_up"
    if form.options["norm_before"]:
        for kind in ("weight", "bias"):
            weights.copy_of(f"{name}adapter_down.0.{kind}", f"{name}adapter_norm_before.{kind}")
            found[f"norm_before.{kind}"] = weights.take(f"{name}adapter_norm_before.{kind}", (d,))
    if compacter:
        found["down.weight"], found["down.bias"] = compacter.matrix(down, "down", d, size)
        found["up.weight"], found["up.bias"] = compacter.matrix(up, "up", size, d)
    else:
        for part, path, shape in (("down", down, (size, d)), ("up", up, (d, size))):
            found[f"{part}.weight"] = weights.take(f"{path}.weight", shape)
            found[f"{part}.bias"] = weights.take(f"{path}.bias", shape[:1])
    if form.options["norm_after"] != "none":
        for kind in ("weight", "bias"):
            found[f"norm_after.{kind}"] = weights.take(f"{name}adapter_norm_after.{kind}", (d,))
    if isinstance(form.factor, str):
        found["scaling"] = weights.take(f"{name}scaling", (1 if form.factor == "learned" else d,))
    elif form.factor != 1.0:
        found["up.weight"], found["up.bias"] = (found[f"up.{kind}"] * form.factor for kind in ("weight", "bias"))
    return found


def _invertible(flags: Flags, tensors: HubTensors) -> Invertible | None:
    """Take the tensors of the invertible adapter, if there is one."""
    kind, factor = flags.take("inv_adapter", None), flags.take("inv_adapter_reduction_factor", None)
    has = any(name.startswith(tensors.invertible("")) for name in tensors.weights)
    if kind is None or (not has and tensors.old):
        return None  # old files of tasks name an invertible adapter that they do not have
    if kind != "nice":
        raise ExchangeError(f"{flags.where}: inv_adapter is {kind!r:.40}; only 'nice' can be imported.")
    if (
        isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or factor != int(factor)
        or not 1 <= factor <= 4096
    ):
        raise ExchangeError(f"{flags.where}: inv_adapter_reduction_factor is {factor!r:.40}; expected a whole number.")
    norm = tensors.modules.encoder.shape.norm("embedding.norm", OUTSIDE)
    assert norm is not None
    first = norm.width // 2
    found = {}
    for net, inputs, outputs in (("F", norm.width - first, first), ("G", first, norm.width - first)):
        hidden = max(1, inputs // int(factor))
        for layer, part, shape in ((0, "down", (hidden, inputs)), (2, "up", (outputs, hidden))):
            name, own = tensors.invertible(f"{net}.{layer}."), f"{OUTSIDE}.embedding.output.{net.lower()}.{part}."
            found[f"{own}weight"] = tensors.weights.take(f"{name}weight", shape)
            found[f"{own}bias"] = tensors.weights.take(f"{name}bias", shape[:1])
    return Invertible(int(factor), found)


def _method(form: Form, own: tuple[Own, ...], tensors: HubTensors) -> Method:
    """Return `Pfeiffer` if its form fits, else `Bottleneck`."""
    layers, options = layers_of(own, tensors.own), form.options
    sizes = tuple(size for _, size in sorted((layer, form.sizes[o.number]) for o in own for layer in o.layers))
    same = len(set(sizes)) == 1
    usual = {"base_norm_before": True, "residual": "output", "base_norm_after": True, "norm_before": False,
             "norm_after": "none", "parallel": False, "dropout": 0.0, "places_in_layer": "ffn"}  # fmt: skip
    if same and not isinstance(form.factor, str) and all(options.get(name) == value for name, value in usual.items()):
        return Pfeiffer(sizes[0], layers=layers, activation=options["activation"])
    return Bottleneck(
        sizes[0],
        layers=layers,
        sizes=None if same else sizes,
        learned_scaling={"learned": "scalar", "channel": "channel"}.get(str(form.factor), "none"),  # type: ignore[arg-type]
        norms=False,
        **options,
    )
