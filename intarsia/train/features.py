"""The frozen base's hidden states, computed once: the inputs of feature-based transfer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, by_token_budget, pack
from intarsia.tasks.heads import Pooling, pool
from intarsia.train.chunk_file import ChunkFile
from intarsia.train.tokens import Tokens
from intarsia.train.trunk import free_disk, states_key

TOKENS_A_PASS = 4096

ReadingProgress = Callable[[float, float], None]  # called with (share of the texts that are read, seconds left)


def pooled_states(
    encoder: Encoder, tokens: Tokens, pooling: Pooling, cache: Path | None, report: ReadingProgress | None = None
) -> Tensor:
    """Return the pooled states of every layer for each text, [texts, layers, d].

    If the folder `cache` has enough free disk space, each pass is stored there when it ends. Stored passes are read
    instead of computed. `report` is called after each computed pass.
    """
    passes = by_token_budget(tokens.lengths.tolist(), TOKENS_A_PASS)
    out = torch.empty(len(tokens.lengths), encoder.shape.layers, encoder.shape.width)
    file = None
    if cache is not None and passes:
        path = cache / f"states-{states_key(encoder, f'{pooling} {TOKENS_A_PASS}', tokens)}.chunks"
        if path.is_file() or out.nbytes < free_disk(cache) / 2:
            file = ChunkFile(path, [out[0].nbytes * len(rows) for rows in passes])
    missing = []
    for i, rows in enumerate(passes):
        if file is not None and file.has(i):
            stored = torch.from_numpy(file.read(i, 0, int(file.sizes[i])))
            out[rows] = stored.view(out.dtype).view(len(rows), *out.shape[1:])
        else:
            missing.append(i)
    done_tokens, all_tokens = 0, sum(int(tokens.lengths[passes[i]].sum()) for i in missing)
    began = time.monotonic()
    for i in missing:
        rows = passes[i]
        states = _compute(encoder, [tokens.segments[row] for row in rows], pooling)
        out[rows] = states
        if file is not None:
            try:
                file.write(i, states.contiguous().view(torch.uint8).numpy())
            except OSError:  # the disk is full: free it for files that cannot be recomputed
                file.delete()
                file = None
        done_tokens += int(tokens.lengths[rows].sum())
        if report is not None:
            report(done_tokens / all_tokens, (time.monotonic() - began) * (all_tokens - done_tokens) / done_tokens)
    return out


@torch.no_grad()
def _compute(encoder: Encoder, segments: Sequence[Segment], pooling: Pooling) -> Tensor:
    batch = pack(segments, encoder.device)
    return torch.stack([pool(h, batch, pooling).float().cpu() for h in encoder.layer_states(batch)], 1)
