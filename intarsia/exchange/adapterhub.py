"""AdapterHub's `adapters`: `adapter_config.json` with `pytorch_adapter.bin` or `adapter.safetensors`, from the first
versions of adapter-transformers on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.sites import PREFIX
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.adapterhub_bottleneck import read_bottleneck
from intarsia.exchange.adapterhub_heads import CONFIG as HEAD_CONFIG
from intarsia.exchange.adapterhub_heads import WEIGHTS as HEAD_WEIGHTS
from intarsia.exchange.adapterhub_heads import HubHead, read_hub_head
from intarsia.exchange.adapterhub_heads_written import MODELS, written_head
from intarsia.exchange.adapterhub_lora import read_lora
from intarsia.exchange.adapterhub_names import HubNames, HubTensors, check_interface, check_names, current_name
from intarsia.exchange.adapterhub_parts import HubPart, joined
from intarsia.exchange.adapterhub_prefix import read_prefix
from intarsia.exchange.adapterhub_setup import SETUP, Setup, check_parents
from intarsia.exchange.adapterhub_versions import current_config, version_of
from intarsia.exchange.adapterhub_written import written
from intarsia.exchange.binding import check_family
from intarsia.exchange.modules import Modules
from intarsia.exchange.source import Source
from intarsia.methods import Method

CONFIG = "adapter_config.json"
FORMAT = "adapters.1.3.0"  # the version whose format is written
WEIGHTS = ("adapter.safetensors", "pytorch_adapter.bin")
READERS: dict[str | None, Callable[[Flags, HubTensors], HubPart]] = {
    None: read_bottleneck,
    "bottleneck": read_bottleneck,
    "lora": read_lora,
    "prefix_tuning": read_prefix,
}
REFUSED = {
    "prompt_tuning": "its prompt is tokens before the text, and a segment of a packed pass has no place for them",
    "reft": "no method of Intarsia changes the states of chosen positions only",
    "mtl_lora": "no method of Intarsia chooses matrices by the task inside one adapter",
}


def recognises(source: Source) -> bool:
    if SETUP in source.files:
        return True
    if CONFIG not in source.files:
        return False
    found = source.json(CONFIG)
    return "peft_type" not in found and "config" in found


def read(source: Source, modules: Modules) -> Adapter:
    """Return the adapter of a folder, or the composition of a setup, with its head if it has one."""
    check_names(modules.encoder.shape.family)
    if SETUP in source.files:
        return _read_setup(source, modules)
    flags = source.config(CONFIG)
    flags.no_effect("config_id", "type", "task_name")
    check_family(flags.take("model_type", None), modules.encoder, CONFIG)
    width = flags.take("hidden_size", None)
    if width not in (None, modules.encoder.shape.width):
        raise ExchangeError(
            f"{CONFIG}: hidden_size is {width!r:.40}; the bank's base has the width {modules.encoder.shape.width}."
        )
    version = version_of(flags)
    check_interface(source)
    name = flags.take("name")
    if not isinstance(name, str) or not name:
        raise ExchangeError(f"{CONFIG}: name is {name!r:.60}; expected the adapter's name in its tensors' names.")
    base = flags.take("model_name", None) or ""
    flags.no_effect("model_class")
    weights = source.weights(*WEIGHTS, rename=current_name)
    config = current_config(flags.take("config"), version, CONFIG)
    found = _read_method(config, source, HubTensors(weights, modules, name, version.old))
    head = read_hub_head(source, modules)
    return Adapter(
        method=found.method,
        tensors=found.tensors,
        **_fields(head),
        base=str(base),
        library=version.text,
        folded=found.folded,
        notes=_faults(found.method, modules),
    )


def _fields(head: HubHead | None) -> dict[str, Any]:
    """Return the head as fields of an adapter."""
    if head is None:
        return {}
    return {"kind": head.kind, "labels": head.labels, "head": head.head, "head_tensors": head.tensors}


def _read_setup(source: Source, modules: Modules) -> Adapter:
    flags = source.config(SETUP)
    flags.no_effect("version")
    setup = Setup(source, modules)
    method, chosen = setup.method(flags.take("adapter_setup")), flags.take("head_setup", None)
    parts = {name: read(source.below(name), modules) for name in dict.fromkeys(setup.names)}
    check_parents(setup, parts)
    if chosen is not None and not isinstance(chosen, bool | str):
        raise ExchangeError(f"{SETUP}: head_setup is {chosen!r:.80}; expected the name of one head.")
    first = parts[setup.names[0]]
    head: HubHead | None = None
    if chosen in parts and parts[str(chosen)].head is not None:
        own = parts[str(chosen)]
        assert own.head is not None
        head = HubHead(own.kind, own.head, own.head_tensors, own.labels)
    elif chosen and not (source.headless and chosen is True):
        head = read_hub_head(source if chosen is True else source.below(str(chosen)), modules)
    if isinstance(method, str):
        return replace(first, **_fields(head)) if head else first
    return Adapter(
        method=method,
        tensors=setup.tensors,
        **_fields(head),
        parents={name: part.without_head() for name, part in parts.items()},
        base=first.base,
        library=first.library,
        notes=first.notes,
    )


def _faults(method: Method, modules: Modules) -> tuple[str, ...]:
    """Return notes on faults of adapters by which its own outputs differ from run to run, or with the padding."""
    shape, notes = modules.encoder.shape, []
    if shape.family == "modernbert":
        notes.append(
            "adapters gives ModernBERT's attention random biases at each start, which are in no file; here it has "
            "none, so check the score (--check)"
        )
    if shape.family == "distilbert" and any(site == PREFIX for site, _ in method.places(shape)):
        notes.append(
            "adapters adds 1 to the scores of a DistilBERT prefix if a batch is padded; here they are those without "
            "padding, so check the score (--check)"
        )
    return tuple(notes)


def _read_method(
    config: dict[str, Any], source: Source, tensors: HubTensors, where: str = f"{CONFIG}, config"
) -> HubPart:
    """Return the method of a configuration; that of a union is a stack, whose parts act at places of their own."""
    kind = config.get("architecture")
    flags = source.account(Flags(where, config))
    flags.no_effect("architecture")
    if kind in READERS:
        return READERS[kind](flags, tensors)
    if kind != "union":
        reason = f": {REFUSED[kind]}" if kind in REFUSED else ""
        known = ", ".join(filter(None, READERS))
        raise ExchangeError(f"{where}: the method {kind!r:.60} cannot be imported{reason}. Known: {known} and unions.")
    configs = flags.take("configs")
    if not isinstance(configs, list) or not 1 <= len(configs) <= 16 or not all(isinstance(c, dict) for c in configs):
        raise ExchangeError(f"{where}: configs is {configs!r:.80}; expected 1 to 16 configurations.")
    if any(c.get("architecture") == "union" for c in configs):
        raise ExchangeError(f"{where} has a union inside a union, which adapters does not load either.")
    parts = [_read_method(c, source, tensors, f"{where}.{i}") for i, c in enumerate(configs)]
    _check_disjoint(parts, tensors, where)
    return joined(parts)


def _check_disjoint(parts: list[HubPart], tensors: HubTensors, where: str) -> None:
    """Raise if two parts act at one place: a stack applies them in order, the library only one of them."""
    seen: set[tuple[str, int]] = set()
    for part in parts:
        places = part.method.places(tensors.modules.encoder.shape)
        if seen & places:
            site, layer = min(seen & places)
            raise ExchangeError(f"{where}: two configurations of the union act at {site} of layer {layer}.")
        seen |= places


def write(adapter: Adapter, modules: Modules, folder: Path) -> None:
    """Write a folder that adapters loads. Its loaders read `.bin` files unless they are told otherwise."""
    shape, name = modules.encoder.shape, re.sub(r"[^A-Za-z0-9_-]", "_", adapter.name) or "adapter"
    check_names(shape.family)
    found = written(adapter.method, adapter.tensors, HubNames(modules, name))
    head = written_head(adapter, modules, name) if adapter.head else None
    common = {"hidden_size": shape.width, "model_name": adapter.base, "model_type": shape.family, "version": FORMAT}
    model = MODELS.get(shape.family, "ModernBertModel")
    config = {"config": found.config, "model_class": head.config["model_class"] if head else model, "name": name}
    _write_part(folder, CONFIG, WEIGHTS[1], {**common, **config}, found.tensors)
    if head:
        named = None if shape.family not in MODELS else name
        _write_part(folder, HEAD_CONFIG, HEAD_WEIGHTS[1], {**common, **head.config, "name": named}, head.tensors)


def _write_part(folder: Path, config: str, weights: str, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    (folder / config).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    torch.save({name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}, folder / weights)
