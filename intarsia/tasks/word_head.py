"""The head for masked words: a transform of a token's state, and an output tied to the base's word embeddings.

The head does not own the embeddings: they are the base's and frozen. A method that trains the embeddings changes input
and output together. The task's own tensors are the transform (a dense layer, the base's activation and a LayerNorm, as
in the pretraining heads of BERT and its successors) and a bias per word. If the checkpoint has a pretraining head, they
are initialised from it. Otherwise the dense layer starts as the identity, because states are close to the embeddings
with which they are compared. (MiniLM after 19 steps: perplexity 1,216 from the identity, 1,615 from a random start.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import rowwise
from intarsia.encoder.noise import Noise
from intarsia.encoder.shape import Shape
from intarsia.encoder.spec import Spec
from intarsia.tasks.heads import STD, Head, Pooling, norm_eps

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


@dataclass(frozen=True)
class WordHead(Head):
    """Logits over the base's vocabulary for each hidden token."""

    outputs: int = 0  # unused: the base's vocabulary gives the number
    pooling: Pooling = "none"

    def tensors(self, shape: Shape, width: int | None = None) -> dict[str, Spec]:
        words, e = shape.words.shape  # e is the base's width, or less if its embeddings are factorised
        d = width or shape.width
        return {
            "dense.weight": Spec((e, d), "identity" if e == d else "normal", STD, decay=True),
            "dense.bias": Spec((e,), "zeros"),
            "norm.weight": Spec((e,), "ones"),
            "norm.bias": Spec((e,), "zeros"),
            "output.bias": Spec((words,), "zeros"),
        }

    def count(self, shape: Shape, width: int | None = None) -> int:
        words, e = shape.words.shape
        return e * (width or shape.width) + 3 * e + words

    def starts(self, encoder: Encoder) -> dict[str, Tensor]:
        return encoder.word_head

    def logits(
        self,
        tensors: Mapping[str, Tensor],
        rows: Tensor,
        encoder: Encoder,
        noise: Noise | None = None,
        own: Callable[[Tensor], Tensor] | None = None,
        pooler: Mapping[str, Tensor] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        words: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The logits: rows [tokens, d] → [tokens, words]."""
        if own is not None:
            rows = own(rows)
        rows = rows.to(tensors["dense.weight"].dtype)
        rows = _activation(encoder)(rowwise.linear(rows, tensors["dense.weight"], tensors["dense.bias"]))
        rows = F.layer_norm(rows, rows.shape[-1:], tensors["norm.weight"], tensors["norm.bias"], norm_eps(encoder))
        if words is not None:
            rows = words(rows)
        name = encoder.shape.words.name
        embeddings = (weights or {}).get(name, encoder.weights[name])
        return rowwise.linear(rows.to(embeddings.dtype), embeddings, None).to(rows.dtype) + tensors["output.bias"]

    def to_dict(self) -> dict[str, Any]:
        return {"outputs": "tied to the word embeddings", "pooling": self.pooling}


def word_activation(encoder: Encoder) -> str:
    """The name of the activation function in the base's configuration."""
    config, names = (
        encoder.model.config,
        ("hidden_act", "activation", "classifier_activation"),
    )  # the last: ModernBERT's
    return str(next(getattr(config, name) for name in names if hasattr(config, name)))


def _activation(encoder: Encoder) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    activation: Callable[[Tensor], Tensor] = ACT2FN[word_activation(encoder)]
    return activation
