"""What is measured of a run besides its own test part: MNLI's second dev part, and layers without their adapters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.packed import by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.tasks.examples import Example
from intarsia.tasks.heads import pool
from intarsia.tasks.metrics import score
from intarsia.train.run import Run
from intarsia.train.step import predict

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.train.job import Job
    from intarsia.train.run import Trained

TOKENS = {"cpu": 16384, "cuda": 131072}  # of all owners together, in a pass
SLOT_BYTES = 4e9  # of tensors that are resident at once

Span = tuple[int, int]  # the first and the last of its layers


def score_on(job: Job, trained: Trained, examples: Sequence[Example], encoder: Encoder) -> float:
    """A trained job's score on other examples than its own."""
    data = dataclasses.replace(job.data, train=job.data.train[:1], dev=job.data.dev[:1], test=list(examples))
    run = Run(dataclasses.replace(job, data=data), encoder)
    run.task_kind = trained.learned.task_kind
    specs = {f"method.{name}" for name in run.phases[-1].specs}
    kept = {
        name.removeprefix("method."): tensor.to(encoder.device)
        for name, tensor in trained.tensors.items()
        if name.startswith("method.") and name not in specs
    }
    run.leave()
    run.enter(
        len(run.phases) - 1, kept, {k: v for k, v in trained.tensors.items() if k.removeprefix("method.") not in kept}
    )
    return run.score("test", predict(run, "test"))


def spans(layers: int) -> list[Span]:
    """All contiguous ones: 78 of 12 layers."""
    return [(first, last) for first in range(layers) for last in range(first, layers)]


@torch.no_grad()
def span_scores(job: Job, trained: Trained, encoder: Encoder) -> dict[str, Any]:
    """The score on test without the adapters of each span of layers.

    Each span is an owner with a slot of its own: a text stands in a batch once for every span, and one pass through the
    base answers for all of them.
    """
    examples = job.data.test
    whole = trained.learned.method_tensors
    which: list[Span | None] = [None, *spans(encoder.shape.layers)]
    without = job.method.without_layers
    most = max(1, int(SLOT_BYTES // max(1, 4 * sum(t.numel() for t in whole.values()))))
    predictions = np.concatenate(
        [
            _answers(job, trained, encoder, [whole if s is None else without(whole, *s) for s in which[i : i + most]])
            for i in range(0, len(which), most)
        ]
    )
    gold = trained.learned.task_kind.gold(examples)
    scores = [
        score(trained.metric, gold, trained.learned.task_kind.decide(one), job.data.labels) for one in predictions
    ]
    commonest = (
        Counter(e.label for e in examples).most_common(1)[0][1] if trained.learned.task_kind.kind == "label" else 0
    )
    return {
        "intact": scores[0],
        "majority": commonest / len(examples),
        "removed": [[*span, value] for span, value in zip(which[1:], scores[1:], strict=True) if span is not None],
    }


def _answers(job: Job, trained: Trained, encoder: Encoder, owners: Sequence[dict[str, Tensor]]) -> np.ndarray:
    """[owners, rows, outputs]"""
    examples, count = job.data.test, len(owners)
    stacked = {name: torch.stack([own[name] for own in owners]).to(encoder.device) for name in owners[0]}
    head = {k: v.to(encoder.device) for k, v in trained.learned.head_tensors.items()}
    places = job.method.places(encoder.shape)
    segments = encoder.tokenize(
        [e.text for e in examples], [e.pair for e in examples], max_length=job.settings.max_length
    )
    lengths = [len(s.ids) for s in segments]
    out = np.empty((count, len(examples), trained.learned.task_kind.outputs), np.float32)
    for rows in by_token_budget(lengths, max(max(lengths), TOKENS.get(encoder.device.type, 16384) // count)):
        batch = pack([segments[r] for _ in owners for r in rows], encoder.device)
        group = Group(job.method, places, stacked, 0, tuple(range(count)), (len(rows),) * count)
        states = encoder.forward(batch, [group])
        logits = trained.learned.head.logits(head, pool(states, batch, job.pooling), encoder)
        out[:, rows] = trained.learned.task_kind.probabilities(logits).reshape(count, len(rows), -1)
    return out
