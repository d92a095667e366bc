"""Hugging Face `peft`: `adapter_config.json` with a `peft_type`, and `adapter_model.safetensors` or `.bin`."""

from __future__ import annotations

import re
from collections.abc import Callable

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags, Weights
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.heads import read_head, task_of
from intarsia.exchange.modules import Modules
from intarsia.exchange.peft_folded import read_adalora, read_vera
from intarsia.exchange.peft_lora import read_lora
from intarsia.exchange.peft_parts import ROOT, PeftTensors, Read
from intarsia.exchange.peft_prefix import read_prefix
from intarsia.exchange.peft_vectors import read_ia3, read_norms
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
