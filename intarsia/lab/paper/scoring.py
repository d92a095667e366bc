"""Additional scores of a run: on MNLI's mismatched part, and on the test part without the adapters of some layers."""

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

TOKENS = {"cpu": 16384, "cuda": 131072}  # the size of a pass, for all owners together
SLOT_BYTES = 4e9  # the maximum size of the tensors in memory at once

LayerRange = tuple[int, int]  # the first and the last layer


def score_on(job: Job, trained: Trained, examples: Sequence[Example], encoder: Encoder) -> float:
    """Return a trained job's score on examples that are not in its data."""
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


def spans(layers: int) -> list[LayerRange]:
    """Return all contiguous spans of layers; 12 layers have 78."""
    return [(first, last) for first in range(layers) for last in range(first, layers)]


@torch.no_grad()
def span_scores(job: Job, trained: Trained, encoder: Encoder) -> dict[str, Any]:
    """Return the test scores without the adapters of each span of layers.

    Each span has a slot with its tensors, and a batch contains each text once for every span. One pass through the base
    therefore serves all spans.
    """
    examples = job.data.test
    intact = trained.learned.method_tensors
    removed: list[LayerRange | None] = [None, *spans(encoder.shape.layers)]  # None: the intact model
    without = job.method.without_layers
    slots = max(1, int(SLOT_BYTES // max(1, 4 * sum(t.numel() for t in intact.values()))))
    predictions = np.concatenate(
        [
            _predictions(
                job,
                trained,
                encoder,
                [intact if s is None else without(intact, *s) for s in removed[i : i + slots]],
            )
            for i in range(0, len(removed), slots)
        ]
    )
    gold = trained.learned.task_kind.gold(examples)
    scores = [
        score(trained.metric, gold, trained.learned.task_kind.decide(rows), job.data.labels) for rows in predictions
    ]
    majority = (
        Counter(e.label for e in examples).most_common(1)[0][1] if trained.learned.task_kind.kind == "label" else 0
    )
    return {
        "intact": scores[0],
        "majority": majority / len(examples),
        "removed": [[*span, value] for span, value in zip(removed[1:], scores[1:], strict=True) if span is not None],
    }


def _predictions(job: Job, trained: Trained, encoder: Encoder, owners: Sequence[dict[str, Tensor]]) -> np.ndarray:
    """Return the predictions on the test part with each owner's tensors: [owners, rows, outputs]."""
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
