"""Faults of adapters 1.3.0 that make its outputs depend on chance or on padding. Here they are avoided, so that
there is something to compare with; docs/exchange.md names them. Needs no Intarsia."""

from __future__ import annotations

from typing import Any


def repaired(model: Any) -> Any:
    """Take away the random biases that adapters gives to ModernBERT's fused layers, which have none.

    They are drawn at each start and are in no file: without this, two models from the same files differ.
    """
    for module in model.modules():
        if type(module).__name__ == "LoRAMergedLinear":
            module.bias = None
    return model


def loading(family: str) -> dict[str, Any]:
    """Return options of `from_pretrained`. With SDPA, adapters adds 1 to the scores of a DistilBERT prefix if the batch
    is padded, and 0 if it is not."""
    return {"attn_implementation": "eager"} if family == "distilbert" else {}
