"""Eager training steps: one pass through the base for several runs.

Each run owns the tokens of its own batch, and the base is frozen. Therefore the gradient of the summed losses with
respect to a run's tensors is the gradient of that run's loss. Jobs that train together get the same weights as jobs
that train separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, Segment, by_token_budget, pack
from intarsia.tasks.heads import pool
from intarsia.train.run import Diverged, Run

TOKENS_A_PASS = {"cpu": 4096, "cuda": 32768}  # in evaluation

RunRows = Sequence[tuple[Run, Sequence[int]]]  # each run with its rows in a pass


def step_together(pairs: RunRows) -> list[float]:
    """Take one optimizer step of each run on its own rows, in one pass through the base; return the losses.

    A run whose loss is NaN or infinite takes no step; the other runs are unaffected. If it is the only run, `Diverged`
    is raised.
    """
    noise = _noise(pairs)
    drawn = [run.drawn(rows) for run, rows in pairs]
    logits = logits_together(pairs, "train", noise, drawn)
    losses: list[Tensor] = []
    totals: list[Tensor] = []
    for (run, rows), out, segments in zip(pairs, logits, drawn, strict=True):
        losses.append(run.loss(out, rows, segments))
        penalty = run.penalty()
        totals.append(losses[-1] if penalty is None else losses[-1] + penalty)
    trained = [leaf for run, _ in pairs for leaf in run.leaves.values() if leaf.requires_grad]
    leaf_gradients = iter(torch.autograd.grad(totals, trained, allow_unused=True))
    gradients = [run.slots.laid_out(run.leaves, leaf_gradients) for run, _ in pairs]
    values = torch.stack([loss.detach() for loss in losses]).tolist()
    diverged: Diverged | None = None
    for (run, rows), gradient, value in zip(pairs, gradients, values, strict=True):
        try:
            run.apply(gradient, value, rows)
        except Diverged as error:
            diverged = error
    if diverged is not None and len(pairs) == 1:
        raise diverged
    return values


def _noise(pairs: RunRows) -> Noise:
    """Return the random numbers of a pass, a function of the seeds and steps of its runs."""
    entropy = [number for run, _ in pairs for number in (run.job.settings.seed, run.state.step)]
    return Noise(entropy, pairs[0][0].encoder.device, dropout=pairs[0][0].job.settings.dropout)


def logits_together(
    pairs: RunRows, part: str, noise: Noise | None = None, drawn: Sequence[Sequence[Segment]] | None = None
) -> list[Tensor]:
    """Return each run's logits for its rows of a part of its data.

    `drawn`: the segments of the rows, where a step draws them anew (masked words); None: the tokenized rows.
    """
    drawn = drawn or [[run.tokens[part].segments[r] for r in rows] for run, rows in pairs]
    if pairs[0][0].exclusive:
        return [
            _exclusive_logits(run, rows, part, noise, segments)
            for (run, rows), segments in zip(pairs, drawn, strict=True)
        ]
    encoder = pairs[0][0].encoder
    batch = pack([segment for segments in drawn for segment in segments], encoder.device)
    groups = []
    first = 0
    for run, rows in pairs:
        groups.append(run.group(first, len(rows)))
        first += len(rows)
    states = encoder.forward(batch, groups, training=noise is not None, noise=noise, above=_trunk_states(pairs, part))
    out = []
    for group, (run, _), segments in zip(groups, pairs, drawn, strict=True):
        last = group.first + group.rows[0]
        run_states = states[batch.offsets[group.first] : batch.offsets[last]]
        pooled = pool(run_states, batch.part(group.first, last), run.head.pooling)
        out.append(run.head_logits(run.task_kind.read(pooled, segments), {}, noise))
    return out


def _trunk_states(pairs: RunRows, part: str) -> tuple[int, Tensor] | None:
    """Return the layer at which a pass of these runs begins and its input states; None: the pass has no trunk."""
    layer = min(run.trunk_layer for run, _ in pairs)
    if layer == 0:
        return None
    requests = [(run.tokens[part], rows) for run, rows in pairs]
    return layer, pairs[0][0].trunk.states(layer, requests, [run.below(layer) for run, _ in pairs])


def _exclusive_logits(
    run: Run, rows: Sequence[int], part: str, noise: Noise | None, segments: Sequence[Segment]
) -> Tensor:
    """Return the logits of a run that replaces weights of the base or learns from stored states."""
    encoder, method = run.encoder, run.method
    if method.cached:
        tensors = run.own_leaves()
        return run.head_logits(method.mixed(tensors, run.states(part)[list(rows)].to(encoder.device)), {}, noise)
    batch: Batch = pack(segments, encoder.device)
    weights, above = run.weights(noise), _trunk_states([(run, rows)], part)
    groups = [run.group(0, len(rows))] if run.places else []
    states = encoder.forward(batch, groups, training=noise is not None, noise=noise, weights=weights, above=above)
    return run.head_logits(run.task_kind.read(pool(states, batch, run.head.pooling), segments), weights, noise)


@torch.no_grad()
def predict(run: Run, part: str) -> Any:
    """Return the current probabilities (or scores) of each row of a part, in order.

    The result is an array [rows, outputs]. For task kinds that read tokens it is a list with an array [tokens, outputs]
    for each row.
    """
    lengths = run.tokens[part].lengths
    out: list[np.ndarray] = [np.empty(0)] * len(lengths)
    for rows in by_token_budget(lengths.tolist(), TOKENS_A_PASS.get(run.encoder.device.type, 4096)):
        segments = [run.tokens[part].segments[row] for row in rows]
        (logits,) = logits_together([(run, rows)], part, drawn=[segments])
        for row, predictions in zip(rows, run.task_kind.predictions(logits, segments), strict=True):
            out[row] = predictions
    return out if run.task_kind.reads_tokens else np.stack(out)


class Eager:
    """The stepper without recorded passes: any runs share a pass, on any device."""

    def __init__(self) -> None:
        self.unread: list[tuple[Run, float]] = []

    def step(self, pairs: RunRows) -> None:
        """Take one optimizer step of each run on its rows."""
        try:
            losses = step_together(pairs)
        except Diverged:  # raised only for a single run
            losses = [math.nan]
        self.unread += [(run, loss) for (run, _), loss in zip(pairs, losses, strict=True)]

    def losses(self, *, wait: bool = False) -> Iterator[tuple[Run, float]]:
        """Return (run, loss) of all steps since the last call, in order; eager losses are never pending."""
        unread, self.unread = self.unread, []
        return iter(unread)

    def predict(self, runs: Sequence[Run], part: str) -> list[Any]:
        """Return each run's predictions for all rows of a part of its data."""
        return [predict(run, part) for run in runs]
