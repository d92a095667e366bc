"""Texts as vectors of the frozen base, or of a task's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import by_token_budget, pack
from intarsia.errors import IntarsiaError
from intarsia.sklearn.bases import base
from intarsia.sklearn.inputs import InvalidInput, check_pairs, check_texts
from intarsia.tasks.heads import pool

TOKENS_A_PASS = 4096


class IntarsiaVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embeddings of texts or pairs of texts: one float32 vector for each.

    Nothing is learned: `fit` only checks its input.

    Parameters
    ----------
    encoder : str, path, Encoder or None
        The frozen base. None: the embedded `minilm`.
    pooling : {"mean", "cls"}
        The mean of the tokens' states, or the state of the first token.
    normalize : bool
        Whether vectors are scaled to length 1, so that dot products are cosines.
    max_length : int or None
        Longer texts are cut to this many tokens. None: as many as the base takes.
    device, precision : str
        As in `intarsia.open`.
    """

    def __init__(
        self,
        encoder: str | Path | Encoder | None = None,
        *,
        pooling: str = "mean",
        normalize: bool = False,
        max_length: int | None = None,
        device: str = "cpu",
        precision: str | None = None,
    ) -> None:
        self.encoder = encoder
        self.pooling = pooling
        self.normalize = normalize
        self.max_length = max_length
        self.device = device
        self.precision = precision

    def fit(self, X: Any, y: Any = None) -> Self:
        check_pairs(check_texts(X))
        self._n_features_out = base(self.encoder, self.device, self.precision).shape.width
        return self

    @torch.no_grad()
    def transform(self, X: Any) -> np.ndarray:
        """Return a vector for each text [texts, width]."""
        if self.pooling not in ("mean", "cls"):
            raise InvalidInput(f"pooling {self.pooling!r} is not known; expected mean or cls.")
        texts = check_texts(X)
        check_pairs(texts)
        encoder = base(self.encoder, self.device, self.precision)
        first = [text if isinstance(text, str) else text[0] for text in texts]
        second = [None if isinstance(text, str) else text[1] for text in texts]
        try:
            segments = encoder.tokenize(first, second, max_length=self.max_length)
        except IntarsiaError as error:
            raise InvalidInput(str(error)) from error
        vectors = np.zeros((len(texts), encoder.shape.width), np.float32)
        for rows in by_token_budget([len(segment.ids) for segment in segments], TOKENS_A_PASS):
            batch = pack([segments[row] for row in rows], encoder.device)
            vectors[rows] = pool(encoder.forward(batch), batch, self.pooling).float().cpu().numpy()  # type: ignore[arg-type]
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    @property
    def n_features_out_(self) -> int:
        return int(self._n_features_out)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if isinstance(self.encoder, Encoder):
            state["encoder"] = self.encoder.name
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags
