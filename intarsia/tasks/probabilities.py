"""From the logits of heads that read rows to probabilities, for rows of one task or of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from intarsia.encoder import rowwise
from intarsia.tasks.examples import Kind

Setting = float | np.ndarray[Any, Any]  # of one task; or [V, 1], of the task of each row


def probabilities(
    kind: Kind, logits: np.ndarray, *, temperature: Setting = 1.0, mean: Setting = 0.0, spread: Setting = 1.0
) -> np.ndarray:
    """Return the probabilities [V, k] of the labels for float32 logits [V, k]; for scores the scores themselves."""
    if kind == "score":
        return np.asarray(logits * spread + mean)
    logits = logits / temperature
    if kind == "labels":
        return rowwise.elementwise(torch.sigmoid, torch.from_numpy(logits)).numpy()
    # NumPy: for the few rows and labels of an answer, calling PyTorch takes longer than the computation.
    with np.errstate(invalid="ignore"):  # infinite logits give NaN, which is an error of its row
        powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))
