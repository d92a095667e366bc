"""The inlay of a completed training run: its tensors, its test score and its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from torch import Tensor

from intarsia import provenance
from intarsia.bank.inlay import Inlay
from intarsia.encoder.encoder import Encoder
from intarsia.methods import Method, parents, to_dict
from intarsia.serve.scoring import RESAMPLES, predictions_of
from intarsia.tasks.calibration import reliability, tempered
from intarsia.tasks.data import content_hash
from intarsia.tasks.heads import NoHead
from intarsia.tasks.learned import METHOD
from intarsia.tasks.lengths import truncation
from intarsia.train.job import Job
from intarsia.train.run import Trained


def inlay_of(job: Job, trained: Trained, encoder: Encoder) -> Inlay:
    """Return the inlay of a completed run, with its score on the test part if the data has one."""
    shape, learned = encoder.shape, trained.learned
    method = job.method.count(shape)
    head = learned.head.count(shape, job.method.row_width(shape))
    state = trained.state
    inlay = Inlay(
        name=job.name,
        kind=job.data.kind,
        labels=tuple(job.data.labels),
        method=job.describe()["method"],
        head={**learned.head.to_dict(), **learned.task_kind.to_dict()},
        encoder={k: v for k, v in encoder.description.items() if k != "parameters"},
        tensors={k: v.cpu() for k, v in trained.tensors.items()},
        parameters={"method": method, "head": head, "total": method + head, "base": shape.parameters},
        metrics={"metric": trained.metric, "dev": state.best, "best_epoch": state.best_epoch},
        training={
            **{k: v for k, v in job.describe().items() if k != "method"},
            **({"head_start": "the checkpoint's"} if learned.head.starts(encoder) else {}),
            "steps": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 1),
            "history": state.history,
        },
        data={
            **job.data.source,
            "pairs": job.data.pairs,
            **({"test_sha256": content_hash({"test": job.data.test})} if job.data.test else {}),
            **({"words_left_out": trained.left_out} if trained.left_out else {}),
        },
        versions=provenance.versions(),
        parents=tuple(parent.digest for parent in parents(job.method)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    cut = truncation(job.data, encoder, job.settings.max_length)
    if cut is not None:
        inlay.data["truncated"] = cut.to_dict()
    if job.data.test:
        inlay.metrics.update(_tested(job, trained, encoder))
    return inlay


def headless_inlay(
    name: str, method: Method, tensors: Mapping[str, Tensor], encoder: Encoder, *, data: Mapping[str, Any]
) -> Inlay:
    """Return an inlay without a head: a language, a domain, or an adapter that came without one.

    `tensors` have the names of `Method.stored`. `data` says where they come from.
    """
    method.check(encoder.shape)
    head, count = NoHead(0), method.count(encoder.shape)
    return Inlay(
        name=name,
        kind="none",
        labels=(),
        method=to_dict(method),
        head=head.to_dict(),
        encoder={k: v for k, v in encoder.description.items() if k != "parameters"},
        tensors={METHOD + key: tensor.detach().cpu() for key, tensor in tensors.items()},
        parameters={"method": count, "head": 0, "total": count, "base": encoder.shape.parameters},
        metrics={},
        training={},
        data=dict(data),
        versions=provenance.versions(),
        parents=tuple(parent.digest for parent in parents(method)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _tested(job: Job, trained: Trained, encoder: Encoder) -> dict[str, Any]:
    """Return the score on the test part and, for kinds with a temperature, the calibration before and after it."""
    test, learned = job.data.test, trained.learned
    inputs, rows = predictions_of(learned, test, encoder, max_length=job.settings.max_length)
    found = learned.task_kind.measure(trained.metric, test, inputs, rows, RESAMPLES)
    interval: dict[str, Any] = {"value": found.value, "low": found.low, "high": found.high, "examples": len(test)}
    if found.few:
        interval["too_few"] = True
    if trained.metric == "likelihood":
        interval["perplexity"] = 1 / found.value
    kind, temperature = learned.task_kind.kind, learned.task_kind.temperature
    if kind not in ("label", "labels"):
        return {"test": interval}
    after, gold = np.stack(rows), learned.task_kind.gold(test)
    before = tempered(kind, after, 1 / temperature)
    eces = {name: reliability(kind, p, gold).ece for name, p in (("ece_before", before), ("ece_after", after))}
    return {"test": interval, "calibration": {"temperature": temperature, **eces, "part": "test"}}
