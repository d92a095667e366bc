"""The head over all words: a transform of a token's state, and an output tied to the base's word embeddings.

The embeddings are the base's own, frozen, and never a part of the head; a method that trains them trains both ends.
What the task has for itself is the transform (a dense layer, the base's activation, a LayerNorm, as BERT's and its
followers' pretraining heads have it) and a bias for each word. Where the checkpoint holds such a head they start as
it. Otherwise the dense layer starts as the identity, since states are near the embeddings that they are compared with
(on MiniLM, 19 steps took the perplexity to 1,216, and to 1,615 from a random start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.noise import Noise
from intarsia.encoder.sites import Shape
from intarsia.encoder.spec import Spec
from intarsia.tasks.heads import STD, Head, Pooling

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


@dataclass(frozen=True)
class WordHead(Head):
    outputs: int = 0  # as many as the base has words
    pooling: Pooling = "none"

    def tensors(self, shape: Shape, width: int | None = None) -> dict[str, Spec]:
        words, e = shape.words.shape  # e is the base's width, or less where its embeddings are factorised
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
    ) -> Tensor:
        """[tokens, d] → [tokens, words]."""
        if own is not None:
            rows = own(rows)
        rows = rows.to(tensors["dense.weight"].dtype)
        rows = _activation(encoder.model.config)(F.linear(rows, tensors["dense.weight"], tensors["dense.bias"]))
        rows = F.layer_norm(rows, rows.shape[-1:], tensors["norm.weight"], tensors["norm.bias"], _eps(encoder))
        name = encoder.shape.words.name
        words = (weights or {}).get(name, encoder.weights[name])
        return F.linear(rows.to(words.dtype), words).to(rows.dtype) + tensors["output.bias"]

    def to_dict(self) -> dict[str, Any]:
        return {"outputs": "tied to the word embeddings", "pooling": self.pooling}


def _activation(config: Any) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    names = ("hidden_act", "activation", "classifier_activation")  # the last is ModernBERT's
    found: Callable[[Tensor], Tensor] = ACT2FN[next(getattr(config, n) for n in names if hasattr(config, n))]
    return found


def _eps(encoder: Encoder) -> float:
    config = encoder.model.config
    return float(getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12)))
