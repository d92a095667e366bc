"""Reads the masked-language-model head that a pretrained checkpoint may contain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from intarsia.encoder.sites import MaskedWords


def read_word_head(checkpoint: str, names: MaskedWords) -> dict[str, Tensor]:
    """Return the tensors of the head under the names of tasks/word_head.py.

    The result is empty if the checkpoint has no head, or a head whose output matrix is not tied to the word embeddings.
    """
    model, missing = _read(checkpoint)
    if not model.config.tie_word_embeddings or any(name.startswith(names.dense) for name in missing):
        return {}
    weights = dict(model.named_parameters())
    sources = {
        "dense.weight": f"{names.dense}.weight",
        "dense.bias": f"{names.dense}.bias",
        "norm.weight": f"{names.norm}.weight",
        "norm.bias": f"{names.norm}.bias",
        "output.bias": names.bias,
    }  # some families have no biases
    return {ours: weights[name].detach() for ours, name in sources.items() if name in weights and name not in missing}


def _read(checkpoint: str) -> tuple[Any, set[str]]:
    """Return the masked-language model of the family, and the names of the weights that the checkpoint lacks."""
    from transformers import AutoModelForMaskedLM
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a checkpoint without a head is valid and needs no warning
    try:
        model, info = AutoModelForMaskedLM.from_pretrained(
            checkpoint, dtype=torch.float32, output_loading_info=True, use_safetensors=True, trust_remote_code=False
        )
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
    return model, set(info["missing_keys"])
