"""The score of an inlay on labelled rows, for inlays that come from elsewhere than training."""

from __future__ import annotations

from typing import Any, cast

from intarsia.bank.inlay import Inlay
from intarsia.encoder.encoder import Encoder
from intarsia.serve.scoring import RESAMPLES, predictions_of
from intarsia.tasks.data import content_hash
from intarsia.tasks.examples import Kind
from intarsia.tasks.learned import Learned
from intarsia.tasks.metrics import default_metric
from intarsia.tasks.named import load_named_examples


def score_of(inlay: Inlay, learned: Learned, encoder: Encoder, rows: Any) -> dict[str, Any]:
    """Return `metric` and `test` (value, low, high, examples, too_few) as an inlay stores them, and the rows' `sha256`.

    `learned` is what the inlay is on `encoder`.
    """
    kind, labels = cast(Kind, inlay.kind), tuple(inlay.labels)
    examples = load_named_examples(rows, kind=kind, labels=labels, learned_from=inlay.data.get("columns"))
    metric = inlay.metrics.get("metric") or default_metric(kind, labels)
    inputs, found = predictions_of(learned, examples, encoder, max_length=inlay.interface.max_length)
    interval = learned.task_kind.measure(metric, examples, inputs, found, RESAMPLES)
    test: dict[str, Any] = dict(zip(("value", "low", "high"), interval, strict=True)) | {"examples": len(examples)}
    if interval.few:
        test["too_few"] = True
    return {"metric": metric, "test": test, "sha256": content_hash({"test": examples})}


def store_score(inlay: Inlay, learned: Learned, encoder: Encoder, rows: Any) -> None:
    """Score an inlay on labelled rows and store the score as that of its test part."""
    found = score_of(inlay, learned, encoder, rows)
    inlay.metrics.update({"metric": found["metric"], "test": found["test"]})
    inlay.data["test_sha256"] = found["sha256"]
