"""Random segments, for tests of the encoder and of the methods."""

from __future__ import annotations

import torch

from intarsia.encoder.packed import Segment


def segments(lengths: list[int], *, pairs: bool, seed: int = 0) -> list[Segment]:
    draw = torch.Generator().manual_seed(seed)
    made = []
    for n in lengths:
        ids = torch.randint(5, 110, (n,), generator=draw).tolist()
        made.append(Segment(ids, [0] * (n // 2) + [1] * (n - n // 2) if pairs else [0] * n))
    return made
