"""Hugging Face `peft`: `adapter_config.json` with a `peft_type`, and `adapter_model.safetensors` or `.bin`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags, Weights
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.class_heads import class_head
from intarsia.exchange.heads import read_head, task_of
from intarsia.exchange.modules import Modules
from intarsia.exchange.peft_folded import read_adalora, read_vera
from intarsia.exchange.peft_lora import read_lora
from intarsia.exchange.peft_parts import ROOT, PeftTensors, Read
from intarsia.exchange.peft_prefix import read_prefix
from intarsia.exchange.peft_vectors import read_ia3, read_norms
from intarsia.exchange.peft_written import written
from intarsia.exchange.source import Source

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
READERS: dict[str, Callable[[Flags, PeftTensors, Modules], Read]] = {
    "LORA": read_lora,
    "ADALORA": read_adalora,
    "VERA": read_vera,
    "IA3": read_ia3,
    "LN_TUNING": read_norms,
    "PREFIX_TUNING": read_prefix,
}
REFUSED = {
    "PROMPT_TUNING": "its prompt is tokens before the text, and a segment of a packed pass has no place for them",
    "P_TUNING": "its prompt is tokens before the text, and a segment of a packed pass has no place for them",
    "MULTITASK_PROMPT_TUNING": "its prompt is tokens before the text, for which a packed pass has no place",
}
HEAD_OF_PROMPTS = "base_model."  # peft does not wrap the model of a prompt
NO_EFFECT = ("inference_mode", "revision", "auto_mapping", "peft_version", "modules_to_save", "task_type")


def recognises(source: Source) -> bool:
    return CONFIG in source.files and "peft_type" in source.json(CONFIG)


def read(source: Source, modules: Modules) -> Adapter:
    """Return the adapter of a peft folder."""
    flags = source.config(CONFIG)
    kind = flags.take("peft_type")
    if kind not in READERS:
        reason = f": {REFUSED[kind]}" if kind in REFUSED else ""
        raise ExchangeError(
            f"{CONFIG}: the peft method {kind!r:.60} cannot be imported{reason}. Known: {', '.join(READERS)}."
        )
    auto = flags.take("auto_mapping", None)
    model_class = auto.get("base_model_class") if isinstance(auto, dict) else None
    task = task_of(flags.take("task_type", None), model_class)
    flags.no_effect(*NO_EFFECT)
    weights = source.weights(*WEIGHTS)
    root = HEAD_OF_PROMPTS if kind == "PREFIX_TUNING" else ROOT
    tensors = PeftTensors(weights, modules, flags.names("modules_to_save") or (), root)
    _drop_copies(weights)
    found = READERS[kind](flags, tensors, modules)
    pooler = tensors.pooler(found)
    head = read_head(weights, modules, task, tensors.head_name, pooler)
    if head is None and pooler is not None:
        raise ExchangeError(
            f"{weights.where} changes the base's pooler, but has no head that reads it. An inlay without a head has no "
            "place for a pooler."
        )
    version = flags.take("peft_version", None)
    return Adapter(
        method=found.method,
        tensors=found.tensors,
        kind=head.kind if head else "none",
        head=head.head if head else None,
        head_tensors=head.tensors if head else {},
        base=flags.take("base_model_name_or_path", None) or "",
        library=f"peft {version}" if version else "peft",
        folded=found.folded,
        max_length=found.longest,
    )


def write(adapter: Adapter, modules: Modules, folder: Path) -> None:
    """Write a folder that peft loads over the class of `transformers` for the head, or over the base without a head."""
    found = written(adapter, modules)
    head = class_head(adapter, modules) if adapter.head else None
    prompt = not found.modules
    root = HEAD_OF_PROMPTS if prompt else ROOT
    prefix = f"{modules.prefix}." if head else ""
    config: dict[str, Any] = {
        "task_type": head.task if head else "FEATURE_EXTRACTION",
        "base_model_name_or_path": adapter.base,
        "inference_mode": True,
        **found.config,
    }
    tensors = dict(found.others)
    if not prompt:
        others = [*modules.named, *(head.modules if head else ())]
        targets = [path for path, own in found.modules.items() if set(own) - {"bias", "base_layer.bias"}]
        on_inputs = config.get("feedforward_modules", [])
        if on_inputs:  # peft finds these by the ends of their names, and expects them among the targets
            config["feedforward_modules"] = on_inputs = shortest(on_inputs, others, "")
        rest = [path for path in targets if not any(path.endswith(end) for end in on_inputs)]
        config["target_modules"] = [*on_inputs, *shortest(rest, others)]
        for path, own in found.modules.items():
            tensors |= {f"{ROOT}{prefix}{path}.{name}": tensor for name, tensor in own.items()}
    if head:
        own_prefix = f"{modules.prefix}."
        config["modules_to_save"] = list(
            dict.fromkeys(m if m.startswith(own_prefix) else m.partition(".")[0] for m in head.modules)
        )
        tensors |= {f"{root}{name}": tensor for name, tensor in head.tensors.items()}
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / WEIGHTS[0])
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def shortest(paths: Sequence[str], others: Sequence[str], dot: str = ".") -> list[str]:
    """Return the shortest ends of module names that name these modules and no others."""
    wanted, found = set(paths), []
    for path in paths:
        words = path.split(".")
        for count in range(1, len(words) + 1):
            end = ".".join(words[-count:])
            if all(other in wanted for other in others if other == end or other.endswith(dot + end)):
                found.append(end)
                break
    return sorted(set(found))


def _drop_copies(weights: Weights) -> None:
    """With `bias="all"`, peft stores the biases of a saved module three times: as the module, as its copy of the same
    values (`modules_to_save.default`), and as they were before training (`original_module`)."""
    for name in tuple(weights):
        plain = _COPY.sub(".", name)
        if plain == name or plain not in weights:
            continue
        if ".original_module." in name:
            weights.take(name)
        else:
            weights.copy_of(name, plain)


_COPY = re.compile(r"\.(original_module|modules_to_save\.[^.]+|modules_to_save)\.")
