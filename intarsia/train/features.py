"""States of the plain base, computed once: what feature-based transfer trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from intarsia import files
from intarsia.encoder.load import Encoder
from intarsia.encoder.packed import Segment, by_token_budget, pack
from intarsia.tasks.heads import Pooling, pool

TOKENS_A_PASS = 4096


def pooled_states(encoder: Encoder, segments: Sequence[Segment], pooling: Pooling, cache: Path | None) -> Tensor:
    """The pooled states of every layer for each segment, [segments, layers, d]; read from the folder `cache` where
    they lie there already."""
    path = None if cache is None else cache / f"states-{_key(encoder, segments, pooling)}.safetensors"
    if path is not None and path.is_file():
        try:
            return load_file(path)["states"]
        except (SafetensorError, KeyError):
            pass  # a torn file: computed again
    states = _compute(encoder, segments, pooling)
    if path is not None:
        files.replace(path, [save({"states": states})])
    return states


@torch.no_grad()
def _compute(encoder: Encoder, segments: Sequence[Segment], pooling: Pooling) -> Tensor:
    out = torch.empty(len(segments), encoder.shape.layers, encoder.shape.width)
    for rows in by_token_budget([len(s.ids) for s in segments], TOKENS_A_PASS):
        batch = pack([segments[r] for r in rows], encoder.device)
        out[rows] = torch.stack([pool(h, batch, pooling).cpu() for h in encoder.layer_states(batch)], 1)
    return out


def _key(encoder: Encoder, segments: Sequence[Segment], pooling: Pooling) -> str:
    digest = hashlib.sha256(f"{encoder.fingerprint} {pooling} ".encode())
    for segment in segments:
        digest.update(repr((list(segment.ids), list(segment.types or ()))).encode())
    return digest.hexdigest()[:16]
