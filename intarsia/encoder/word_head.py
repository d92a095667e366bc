"""The output layer for masked words that a pretrained checkpoint may hold beside its encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from intarsia.encoder.sites import MaskedWords


def read_word_head(checkpoint: str, names: MaskedWords) -> dict[str, Tensor]:
    """Its tensors as tasks/word_head.py names them; empty where the checkpoint has none, or one with an output matrix
    of its own: ours is tied to the word embeddings."""
    model, missing = _read(checkpoint)
    if not model.config.tie_word_embeddings or any(name.startswith(names.dense) for name in missing):
        return {}
    weights = dict(model.named_parameters())
    wanted = {
        "dense.weight": f"{names.dense}.weight",
        "dense.bias": f"{names.dense}.bias",
        "norm.weight": f"{names.norm}.weight",
        "norm.bias": f"{names.norm}.bias",
        "output.bias": names.bias,
    }  # some have no biases
    return {ours: weights[name].detach() for ours, name in wanted.items() if name in weights and name not in missing}


def _read(checkpoint: str) -> tuple[Any, set[str]]:
    """The family's model for masked words, and which of its weights the checkpoint does not hold."""
    from transformers import AutoModelForMaskedLM
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a checkpoint without such a layer is no reason for alarm
    try:
        model, info = AutoModelForMaskedLM.from_pretrained(
            checkpoint, dtype=torch.float32, output_loading_info=True, use_safetensors=True, trust_remote_code=False
        )
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
    return model, set(info["missing_keys"])
