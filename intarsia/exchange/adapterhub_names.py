"""The tensor names of AdapterHub's files, for the layers of the bank's base.

A name is the path of a module in the task class, the kind of module, the adapter's name and the tensor:
`bert.encoder.layer.0.output.adapters.sst.adapter_up.weight`. Files of a bare base have no class prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT, layer_paths
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Weights
from intarsia.exchange.modules import Modules
from intarsia.exchange.source import Source

FAMILIES = ("albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
OLD_NAMES = {  # of adapter-transformers 1
    "attention_text_task_adapters": "adapters",
    "attention_text_lang_adapters": "adapters",
    "layer_text_task_adapters": "adapters",
    "layer_text_lang_adapters": "adapters",
    "invertible_lang_adapters": "invertible_adapters",
}
_PLACES = {ATTENTION_OUTPUT: "attention.output", FFN_OUTPUT: "output"}
_OTHER_PLACES = {
    "distilbert": {ATTENTION_OUTPUT: "attention_adapters", FFN_OUTPUT: "output_adapters"},
    "modernbert": {ATTENTION_OUTPUT: "attention_adapters", FFN_OUTPUT: "output_adapters"},
    "albert": {ATTENTION_OUTPUT: "attention.attention_adapters", FFN_OUTPUT: "output_adapters"},
}


@dataclass(frozen=True)
class Own:
    """A layer module. `number` is its number in AdapterHub's configurations; `layers` are the layers that use it."""

    number: int
    path: str
    layers: tuple[int, ...]


def current_name(name: str) -> str:
    """Return a tensor's name as newer files have it."""
    return ".".join(OLD_NAMES.get(part, part) for part in name.split("."))


def own_layers(modules: Modules) -> tuple[Own, ...]:
    """Return the layer modules of the base. ALBERT's are used by several layers each."""
    encoder = modules.encoder
    return tuple(Own(i, *found) for i, found in enumerate(layer_paths(encoder.family, encoder.model)))


def module_of(site: str, family: str) -> str:
    """Return the path, inside a layer, of the module that holds the adapters of an output site."""
    return _OTHER_PLACES.get(family, _PLACES)[site]


class HubNames:
    """The tensor names of one adapter, by the places that the tensors belong to."""

    def __init__(self, modules: Modules, name: str, *, prefixed: bool = True) -> None:
        """`prefixed`: with the prefix of the task class."""
        self.modules, self.name, self.before = modules, name, f"{modules.prefix}." * prefixed
        self.own = own_layers(modules)

    def bottleneck(self, own: Own, site: str) -> str:
        """Return the beginning of the names of a bottleneck adapter's tensors."""
        inside = module_of(site, self.modules.encoder.shape.family)
        return f"{self.before}{own.path}.{inside}.adapters.{self.name}."

    def lora(self, module: str) -> str:
        """Return the beginning of the names of the tensors of LoRA or (IA)³ on a linear layer."""
        return f"{self.before}{module}.loras.{self.name}."

    def prefixes(self) -> Iterator[str]:
        """Yield the beginnings of the names of a prefix's tensors: they are repeated for each layer."""
        place = "self" if self.modules.encoder.shape.family == "distilbert" else "self_prefix"
        attention = self.modules.encoder.family.attention
        for path in ("prefix_tuning", *(f"{own.path}.{attention}.prefix_tuning.pool" for own in self.own)):
            yield f"{self.before}{path}.prefix_tunings.{self.name}.{place}."

    def shared(self, tensor: str) -> str:
        return f"{self.before}shared_parameters.{self.name}.{tensor}"

    def invertible(self, tensor: str) -> str:
        return f"{self.before}invertible_adapters.{self.name}.{tensor}"

    def linears(self, chosen: Iterable[str]) -> Iterator[tuple[Own, str, tuple[str, ...]]]:
        """Yield (layer module, path, sites) of each linear layer of these sites. A fused layer has several."""
        family = self.modules.encoder.family
        for own in self.own:
            by_path: dict[str, list[str]] = {}
            for site in chosen:
                by_path.setdefault(f"{own.path}.{family.within[site]}", []).append(site)
            for path, sites in by_path.items():
                yield own, path, tuple(sites)


class HubTensors(HubNames):
    """The tensors of one adapter in a file."""

    def __init__(self, weights: Weights, modules: Modules, name: str, old: bool = False) -> None:
        """`old`: the file was written before files had a version."""
        super().__init__(modules, name, prefixed=any(key.startswith(f"{modules.prefix}.") for key in weights))
        self.weights, self.old = weights, old

    def prefix(self) -> dict[str, Tensor]:
        """Return the tensors of a prefix. The file repeats them for each layer: all copies must be equal."""
        marker = f".prefix_tunings.{self.name}."
        first: dict[str, str] = {}
        for key in self.weights:
            rest = f".{key}".partition(marker)[2]
            tensor = rest.partition(".")[2]  # behind the place: `self_prefix`, or `self` in DistilBERT
            if tensor in first:
                self.weights.copy_of(key, first[tensor])
            elif tensor:
                first[tensor] = key
        return {tensor: self.weights.take(key) for tensor, key in first.items()}


INTERFACE = "adapter_interface.json"  # in folders of families that adapters has by a plug-in
MODERNBERT = {
    "model_embeddings": "embeddings", "model_layers": "layers", "layer_self_attn": "attn", "attn_qkv_proj": "Wqkv",
    "attn_o_proj": "Wo", "layer_intermediate_proj": "mlp.Wi", "layer_output_proj": "mlp.Wo",
    "layer_pre_self_attn": "attn", "layer_pre_ffn": "mlp", "layer_ln_1": "mlp_norm",
}  # fmt: skip


def check_interface(source: Source) -> None:
    """Raise if the adapter was made through another interface than that of adapters itself: then it acts elsewhere."""
    if INTERFACE not in source.files:
        return
    found = source.json(INTERFACE)
    interface = found.get("interface")
    stated = {k: v for k, v in interface.items() if k != "adapter_methods" and v} if isinstance(interface, dict) else {}
    if found.get("model_type") != "modernbert" or stated != MODERNBERT:
        raise ExchangeError(
            f"{INTERFACE}: made through another interface than that of adapters for modernbert: the adapter "
            "may act at other places, so it cannot be imported."
        )


def check_names(family: str) -> None:
    if family not in FAMILIES:
        raise ExchangeError(
            f"adapters of AdapterHub can be exchanged for the families {', '.join(FAMILIES)}; this base is of the "
            f"family {family}."
        )
