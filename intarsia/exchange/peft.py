"""Hugging Face `peft`: `adapter_config.json` with a `peft_type`, and `adapter_model.safetensors` or `.bin`."""

from __future__ import annotations

from collections.abc import Callable

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags, Weights
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.heads import read_head, task_of
from intarsia.exchange.modules import Modules
from intarsia.exchange.peft_lora import read_lora
from intarsia.exchange.peft_parts import PeftTensors, Read
from intarsia.exchange.source import Source

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
READERS: dict[str, Callable[[Flags, PeftTensors, Modules], Read]] = {"LORA": read_lora}
NO_EFFECT = ("inference_mode", "revision", "auto_mapping", "peft_version", "modules_to_save", "task_type")


def recognises(source: Source) -> bool:
    return CONFIG in source.files and "peft_type" in source.json(CONFIG)


def read(source: Source, modules: Modules) -> Adapter:
    """Return the adapter of a peft folder."""
    flags = source.config(CONFIG)
    kind = flags.take("peft_type")
    if kind not in READERS:
        raise ExchangeError(f"{CONFIG}: the peft method {kind!r:.60} cannot be imported; known: {', '.join(READERS)}.")
    auto = flags.take("auto_mapping", None)
    model_class = auto.get("base_model_class") if isinstance(auto, dict) else None
    task = task_of(flags.take("task_type", None), model_class)
    flags.no_effect(*NO_EFFECT)
    weights = source.weights(*WEIGHTS)
    tensors = PeftTensors(weights, modules, saved=flags.names("modules_to_save") or ())
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
    )


def _drop_copies(weights: Weights) -> None:
    """With `bias="all"`, peft stores the biases of a saved module three times: as the module, as its copy of the same
    values, and as they were before training."""
    for name in tuple(weights):
        if ".original_module." in name and name.replace(".original_module.", ".") in weights:
            weights.take(name)
        elif ".modules_to_save." in name and name.replace(".modules_to_save.", ".") in weights:
            weights.copy_of(name, name.replace(".modules_to_save.", "."))
