"""Passes that several runs share.

Every run owns the tokens of its own batch. The base is frozen, so the gradient of the sum of all losses by a run's
tensors is the gradient of its own loss: jobs together end where each would have ended alone.
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
from intarsia.encoder.routed import Group
from intarsia.tasks.heads import pool
from intarsia.train.run import Diverged, Run

TOKENS_A_PASS = {"cpu": 4096, "cuda": 32768}  # of evaluation

RunRows = Sequence[tuple[Run, Sequence[int]]]  # runs, and the rows that each has in a pass


def step_together(pairs: RunRows) -> list[float]:
    """One optimizer step of each run on its own rows, in one pass through the base; returns the losses.

    A run whose loss is not a number takes no step; the others are untouched by it.
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
    wanted = [[leaf for leaf in run.leaves.values() if leaf.requires_grad] for run, _ in pairs]
    found = iter(torch.autograd.grad(totals, [leaf for leaves in wanted for leaf in leaves], allow_unused=True))
    gradients = [run.slots.laid_out(run.leaves, found) for run, _ in pairs]
    values = torch.stack([loss.detach() for loss in losses]).tolist()
    wrong: Diverged | None = None
    for (run, rows), gradient, value in zip(pairs, gradients, values, strict=True):
        try:
            run.apply(gradient, value, rows)
        except Diverged as error:
            wrong = error
    if wrong is not None and len(pairs) == 1:
        raise wrong
    return values


def _noise(pairs: RunRows) -> Noise:
    """The random numbers of a pass: a function of the jobs in it, their seeds and steps."""
    entropy = [number for run, _ in pairs for number in (run.job.settings.seed, run.state.step)]
    return Noise(entropy, pairs[0][0].encoder.device, dropout=pairs[0][0].job.settings.dropout)


def logits_together(
    pairs: RunRows, part: str, noise: Noise | None = None, drawn: Sequence[Sequence[Segment]] | None = None
) -> list[Tensor]:
    """Each run's logits for its own rows of a part of its data; of training, as they are `drawn` for the step."""
    drawn = drawn or [[run.tokens[part].segments[r] for r in rows] for run, rows in pairs]
    if pairs[0][0].exclusive:
        return [_logits_alone(run, rows, part, noise, own) for (run, rows), own in zip(pairs, drawn, strict=True)]
    encoder = pairs[0][0].encoder
    batch = pack([segment for own in drawn for segment in own], encoder.device)
    groups = []
    first = 0
    for run, rows in pairs:
        groups.append(Group(run.method, run.places, run.part("method."), first, (run.slot,), (len(rows),)))
        first += len(rows)
    states = encoder.forward(batch, groups, training=noise is not None, noise=noise, above=_below(pairs, part))
    out = []
    for group, (run, _), own in zip(groups, pairs, drawn, strict=True):
        last = group.first + group.rows[0]
        mine = states[batch.offsets[group.first] : batch.offsets[last]]
        pooled = pool(mine, batch.part(group.first, last), run.head.pooling)
        out.append(run.head_logits(run.task_kind.read(pooled, own), {}, noise))
    return out


def _below(pairs: RunRows, part: str) -> tuple[int, Tensor] | None:
    """The layer at which a pass of these runs begins, and what enters it."""
    layer = min(run.trunk_layer for run, _ in pairs)
    if layer == 0:
        return None
    return layer, pairs[0][0].trunk.states(layer, [(run.tokens[part], rows) for run, rows in pairs])


def _logits_alone(run: Run, rows: Sequence[int], part: str, noise: Noise | None, segments: Sequence[Segment]) -> Tensor:
    """Of a run with weights of its own in place of the base's, or one that learns from stored states."""
    encoder, method = run.encoder, run.method
    own = run.own()
    if method.cached:
        return run.head_logits(method.mixed(own, run.states(part)[list(rows)].to(encoder.device)), {}, noise)
    batch: Batch = pack(segments, encoder.device)
    weights = method.weights(run.phase.name, encoder.shape, own, run.kept, encoder.weights, noise)
    weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
    above = _below([(run, rows)], part)
    states = encoder.forward(batch, training=noise is not None, noise=noise, weights=weights, above=above)
    return run.head_logits(run.task_kind.read(pool(states, batch, run.head.pooling), segments), weights, noise)


@torch.no_grad()
def predict(run: Run, part: str) -> Any:
    """Probabilities (or scores) of each row of a part, in order, with the present tensors.

    An array [rows, outputs]; of kinds that read tokens, a list with an array [tokens, outputs] for each row.
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
    """Takes steps as they come: any runs together, on any device."""

    def __init__(self) -> None:
        self.known: list[tuple[Run, float]] = []

    def step(self, pairs: RunRows) -> None:
        try:
            losses = step_together(pairs)
        except Diverged:  # alone in its pass
            losses = [math.nan]
        self.known += [(run, loss) for (run, _), loss in zip(pairs, losses, strict=True)]

    def losses(self, *, wait: bool = False) -> Iterator[tuple[Run, float]]:
        """Of the steps taken, as far as they are known by now (`wait`: of all); each once, in their order."""
        known, self.known = self.known, []
        return iter(known)

    def predict(self, runs: Sequence[Run], part: str) -> list[Any]:
        return [predict(run, part) for run in runs]
