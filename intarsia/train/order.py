"""The order of a job's training examples: reshuffled each epoch, with similar lengths in one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

POOL = 16  # batches whose examples are sorted by length together


def epoch_batches(lengths: Sequence[int] | np.ndarray, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return every example once, in batches.

    The order depends only on (seed, epoch), so a resumed run sees the same batches.
    """
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    order, sizes = random.permutation(len(lengths)), np.asarray(lengths)
    batches: list[list[int]] = []
    pool = batch_size * POOL
    for start in range(0, len(order), pool):
        pooled = order[start : start + pool]
        rows = pooled[np.argsort(sizes[pooled], kind="stable")].tolist()
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]
