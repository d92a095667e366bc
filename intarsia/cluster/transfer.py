"""An encoder as plain parts that travel once a node: arrays in shared memory, a configuration and a tokenizer.

Ray's object store hands arrays to all processes of a node without a copy. The encoder that is built from the parts
reads its weights from there. The rearranged copies of its linear layers (`encoder/frozen.py`) are each process's own.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import EncoderError


@dataclass(frozen=True)
class EncoderParts:
    """What an encoder is built from."""

    model: type
    config: Any
    tokenizer: Any
    name: str
    fingerprint: str
    weights: dict[str, np.ndarray]
    word_head: dict[str, np.ndarray]


def parts_of(encoder: Encoder, *, words: bool = False) -> EncoderParts:
    """Return the parts of a float32 encoder. `words`: with the head for masked words, if the checkpoint has one."""
    head = encoder.word_head if words else {}
    config = copy.deepcopy(encoder.model.config)
    config._attn_implementation = None  # attaching has set Intarsia's own; the new model gets it when it is attached
    return EncoderParts(
        type(encoder.model), config, encoder.tokenizer, encoder.name, encoder.fingerprint,
        {name: _array(weight) for name, weight in encoder.weights.items()},
        {name: _array(weight) for name, weight in head.items()},
    )  # fmt: skip


def encoder_of(parts: EncoderParts, device: str = "cpu", precision: str | None = None) -> Encoder:
    """Build the encoder; its weights stay where the arrays are. Raises unless they have the fingerprint."""
    with _without_initial_weights():
        model = parts.model(parts.config)
    if not any(name.startswith("pooler.") for name in parts.weights) and hasattr(model, "pooler"):
        model.pooler = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        weights = {name: torch.from_numpy(array) for name, array in parts.weights.items()}
        head = {name: torch.from_numpy(array) for name, array in parts.word_head.items()}
    missing = {name for name, _ in model.named_parameters()} ^ weights.keys()
    if missing:
        raise EncoderError(f"the base {parts.name} arrived with other weights than sent, first {min(missing)!r}.")
    model.load_state_dict(weights, strict=False, assign=True)
    encoder = Encoder(model, parts.tokenizer, name=parts.name)
    if encoder.fingerprint != parts.fingerprint:
        raise EncoderError(
            f"the base {parts.name} has another fingerprint here: {encoder.fingerprint}, sent was {parts.fingerprint}. "
            "Install the same versions of transformers and torch on all nodes."
        )
    encoder.__dict__["word_head"] = head
    if device == "cpu":
        return encoder
    dtype = torch.float32 if precision == "float32" or not torch.cuda.is_bf16_supported() else torch.bfloat16
    return encoder.to(device, dtype)


def _array(weight: torch.Tensor) -> np.ndarray:
    return weight.detach().cpu().float().contiguous().numpy()


@contextmanager
def _without_initial_weights() -> Iterator[None]:
    """Skip the random initial weights, which are replaced at once."""
    names = ("normal_", "uniform_", "trunc_normal_", "xavier_uniform_", "kaiming_uniform_", "zeros_", "ones_")
    before = {name: getattr(torch.nn.init, name) for name in names}
    try:
        for name in names:
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield
    finally:
        for name, function in before.items():
            setattr(torch.nn.init, name, function)
