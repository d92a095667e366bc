"""Whole setups of AdapterHub: `adapter_setup.json` with a folder for each adapter, fusion and head, as compositions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.adapterhub_names import current_name, module_of, own_layers
from intarsia.exchange.modules import Modules
from intarsia.exchange.source import Source
from intarsia.methods import Fuse, Method, Stack

SETUP = "adapter_setup.json"
FUSION = "adapter_fusion_config.json"
FUSION_WEIGHTS = ("model_adapter_fusion.safetensors", "pytorch_model_adapter_fusion.bin")
DEEPEST = 8
REFUSED = {
    "Average": "adapters divides the average by the number of its parts once more, and with it the residual",
    "Parallel": "it has several outputs; import each adapter by itself, they share passes",
    "BatchSplit": "it names rows of one batch; import each adapter by itself, they share passes",
    "MultiTask": "it chooses by the task of a row; import each adapter by itself, they share passes",
    "Split": "it cuts texts at fixed numbers of tokens",
}


@dataclass
class Setup:
    """A composition whose parts are names of adapters, and the tensors of the composition itself."""

    source: Source
    modules: Modules
    names: list[str] = field(default_factory=list)  # in the order of the setup
    fused: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)

    def method(self, tree: Any, place: str = "", level: int = 0) -> Method | str:
        """Return the method of a part of the setup. `place` begins the names of its tensors."""
        if not isinstance(tree, dict) or not isinstance(tree.get("children"), list) or level > DEEPEST:
            raise ExchangeError(f"{SETUP} has {tree!r:.80}; expected a type with children.")
        kind, children = tree.get("type"), tree["children"]
        if kind == "single" and len(children) == 1 and isinstance(children[0], str):
            self.names.append(children[0])
            return children[0]
        if kind not in ("Stack", "Fuse") or tree.get("kwargs"):
            reason = f": {REFUSED[kind]}" if kind in REFUSED else ""
            raise ExchangeError(f"{SETUP}: {kind!r:.60} cannot be imported{reason}. Expected Stack or Fuse.")
        if kind == "Stack" and len(children) == 1:
            return self.method(children[0], place, level + 1)
        parts = [self.method(child, f"{place}{i}.", level + 1) for i, child in enumerate(children)]
        if kind == "Stack":
            return Stack(*parts)
        if not all(isinstance(part, str) for part in parts):
            raise ExchangeError(
                f"{SETUP}: Fuse over stacks cannot be imported: adapters normalises the input of stacked "
                "parts twice there."
            )
        return self._fusion([str(part) for part in parts], place)

    def _fusion(self, names: list[str], place: str) -> Method:
        folder = self.source.below(",".join(names))
        flags = folder.config(FUSION)
        flags.no_effect("hidden_size", "model_class", "model_name", "model_type", "version")
        name, listed = flags.take("name"), flags.take("adapter_names", names)
        if listed != names or not isinstance(name, str):
            raise ExchangeError(f"{FUSION} is for {listed!r:.80}; the setup fuses {', '.join(names)}.")
        static = _static(folder.account(Flags(f"{FUSION}, config", flags.take("config"))))
        weights = folder.weights(*FUSION_WEIGHTS, rename=current_name)
        d, family = self.modules.encoder.shape.width, self.modules.encoder.shape.family
        prefix = f"{self.modules.prefix}." if any(key.startswith(f"{self.modules.prefix}.") for key in weights) else ""
        for own in own_layers(self.modules):
            for site in (ATTENTION_OUTPUT, FFN_OUTPUT):
                theirs = f"{prefix}{own.path}.{module_of(site, family)}.adapter_fusion_layer.{name}."
                if f"{theirs}query.weight" not in weights:
                    continue
                for which, kind in (("query", "weight"), ("query", "bias"), ("key", "weight"), ("key", "bias"),
                                    *(() if static else (("value", "weight"),))):  # fmt: skip
                    tensor = weights.take(f"{theirs}{which}.{kind}", (d, d) if kind == "weight" else (d,))
                    for layer in own.layers:
                        self.tensors[f"{place}fusion.{layer}.{site}.{which}.{kind}"] = tensor.clone()
        self.fused += names
        return Fuse(*names, static=static)


def _static(flags: Flags) -> bool:
    """Return whether a fusion has no value matrix; take its other flags."""
    flags.no_effect("regularization", "value_initialized", "dropout_prob", "value_before_softmax")
    for name in ("query", "key"):
        flags.expect(name, True, because="no method of Intarsia fuses without it")
    flags.expect("temperature", False, None, because="the file does not have the temperature that was reached")
    flags.expect("residual_before", False, None, because="no method of Intarsia fuses so")
    flags.expect("query_before_ln", False, None, because="no method of Intarsia fuses so")
    return not flags.yes("value", True)


def check_parents(setup: Setup, parents: Mapping[str, Adapter]) -> None:
    """Raise if a part of the setup would act otherwise than in the other library."""
    first = setup.names[0]
    for name, parent in parents.items():
        if getattr(parent.method, "invertible", False) and name != first:
            raise ExchangeError(
                f"{SETUP}: the adapter {name!r} has an invertible adapter, but adapters applies only that of the first "
                f"adapter of a setup, {first!r}."
            )
        if name in setup.fused and getattr(parent.method, "parallel", False):
            raise ExchangeError(
                f"{SETUP}: Fuse over the parallel adapter {name!r} cannot be imported: adapters counts the input twice "
                "there."
            )
