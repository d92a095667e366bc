"""Integrated gradients: the gradients of an output along a path of word embeddings, summed (arXiv 1703.01365).

The path leads from the baseline, in which each token but the special ones is the mask token, to the text. All points of
the path are segments of packed passes. The effects of the tokens add up to the difference of the output between the
two ends; the number of points is doubled until they do within `CLOSE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from intarsia.serve.predictor import Predictor
from intarsia.serve.resident import Resident
from intarsia.serve.words import Span
from intarsia.tasks.examples import Example

CLOSE = 0.01  # of the difference between the two ends
FEWEST, MOST = 16, 256  # points on the path


@dataclass(frozen=True)
class Integrated:
    """The effect of each token, and how far their sum is from the difference that it should be."""

    effects: list[float]
    baseline: float  # the output at the start of the path
    error: float
    steps: int


class Path:
    """The way from the baseline to one text, for one output of one task."""

    def __init__(
        self, predictor: Predictor, resident: Resident, segment: Segment, output: Callable[[Tensor], Tensor]
    ) -> None:
        """`output`: logits [V, k] → the explained values [V]."""
        self.predictor, self.resident, self.segment, self.output = predictor, resident, segment, output
        encoder = predictor.encoder
        self.special = torch.tensor(special_tokens(encoder, segment.ids), device=encoder.device)
        self.embeddings = encoder.model.get_input_embeddings()
        self.blank = _blank(encoder)

    def at(self, shares: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Return the output at some shares of the way [n], and each token's gradient times its way [n, tokens]."""
        values, products = [], []
        limit = self.predictor.limits.pass_tokens or len(self.segment.ids)
        rows = max(1, limit // len(self.segment.ids))
        for first in range(0, len(shares), rows):
            value, product = self._pass(shares[first : first + rows])
            values.append(value)
            products.append(product)
        return torch.cat(values), torch.cat(products)

    def _pass(self, shares: Sequence[float]) -> tuple[Tensor, Tensor]:
        encoder, length = self.predictor.encoder, len(self.segment.ids)
        batch = pack([self.segment] * len(shares), encoder.device)
        kept: list[Tensor] = []
        ways: list[Tensor] = []

        def interpolate(module: torch.nn.Module, _: object, embedded: Tensor) -> Tensor | None:
            current = encoder.switchboard.current
            if current is None or current.batch is not batch:  # a pass of another thread
                return None
            blank = F.embedding(torch.full_like(batch.ids, self.blank), module.weight)  # type: ignore[arg-type]
            ends = embedded.detach().reshape(batch.tokens, -1)
            way = torch.where(self.special.repeat(len(shares))[:, None], torch.zeros_like(ends), ends - blank.detach())
            share = torch.tensor(shares, device=ends.device, dtype=ends.dtype).repeat_interleave(length)[:, None]
            point = (ends - (1 - share) * way).requires_grad_()
            kept.append(point)
            ways.append(way)
            return point.view(embedded.shape)

        hook = self.embeddings.register_forward_hook(interpolate)
        try:
            with torch.enable_grad():
                logits = self.predictor.logits_with_gradients(self.resident, batch, [self.segment] * len(shares))
                values = self.output(logits)
                (gradient,) = torch.autograd.grad(values.sum(), kept)
        finally:
            hook.remove()
        products = (gradient * ways[0]).float().sum(-1).view(len(shares), length)
        return values.detach().float().cpu(), products.cpu()


def integrate(path: Path) -> Integrated:
    """Return the effect of each token."""
    (start, end), _ = path.at([0.0, 1.0])
    difference = float(end - start)
    steps = FEWEST
    while True:
        places, weights = np.polynomial.legendre.leggauss(steps)  # Gauss's points need fewer than equal distances
        _, products = path.at(((places + 1) / 2).tolist())
        effects = (products.double() * torch.from_numpy(weights / 2)[:, None]).sum(0)
        error = float(effects.sum()) - difference
        if abs(error) <= max(CLOSE * abs(difference), 1e-4) or steps >= MOST:
            return Integrated(effects.tolist(), float(start), error, steps)
        steps *= 2


def token_words(
    encoder: Encoder, example: Example, segment: Segment, spans: Sequence[tuple[str, Span]]
) -> list[int] | None:
    """Return the word of each token of the segment, as an index into `spans`; -1 for tokens that belong to none. None
    if the tokenizer does not say where its tokens stand."""
    if not getattr(encoder.tokenizer, "is_fast", False):
        return None
    texts = [example.text] if example.pair is None else [example.text, example.pair]
    encoded = encoder.tokenizing.with_options(
        *texts, truncation=True, max_length=len(segment.ids), return_offsets_mapping=True, return_attention_mask=False
    )
    if list(encoded["input_ids"]) != list(segment.ids):
        return None
    owners: list[int] = []
    for sequence, (first, last) in zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True):
        field = None if sequence is None else ("text", "pair")[sequence]
        shared = [
            (min(last, end) - max(first, start), -i)
            for i, (name, (start, end)) in enumerate(spans)
            if name == field and start < last and first < end
        ]
        owners.append(-max(shared)[1] if shared else -1)
    return owners


def special_tokens(encoder: Encoder, ids: Sequence[int]) -> list[bool]:
    """Return which tokens are special, such as the one at the start of a text."""
    special = set(encoder.tokenizer.all_special_ids) - {encoder.tokenizer.unk_token_id}
    return [token in special for token in ids]


def _blank(encoder: Encoder) -> int:
    """Return the token that says nothing: the mask token or, without one, that of padding or of unknown words."""
    tokenizer = encoder.tokenizer
    known = (tokenizer.mask_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    return next((token for token in known if token is not None), 0)
