"""The output of `intarsia evaluate`: the score, a table of the labels, confusions, mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from intarsia.cli.console import table
from intarsia.formatting import score

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.bank.bank import Evaluation
    from intarsia.tasks.outcome import Confusion, LabelScore, Outcome

WIDEST = 12  # labels in a confusion matrix; with more, the largest confusions are listed
LISTED = 15
MOST_LABELS = 40  # in the table of the labels: the most frequent ones
LONGEST = 160  # characters of a text
AS_THEY_ARE = ("perplexity", "mse", "mae")  # metrics that are not multiplied by 100


def evaluation_parts(found: Evaluation, mistakes: int) -> list[RenderableType]:
    """Return the parts of the output, from top to bottom."""
    outcome = found.outcome
    parts: list[RenderableType] = []
    value, low, high = (_value(found.metric, x, found.interval.value) for x in found.interval)
    few = "; too few to say more" if found.interval.few else ""
    parts.append(
        f"{found.task}: {found.metric} {value} (95 % interval {low} to {high}{few}) on {found.examples:,} examples"
    )
    if found.metric == "f1-micro" and found.interval.value == 0:
        parts.append("f1-micro is 0: no right label reached its threshold. Try a lower --threshold.")
    others = {name: x for name, x in outcome.scores().items() if name != found.metric}
    if others:
        parts.append(", ".join(f"{name} {_value(name, x, x)}" for name, x in others.items()))
    if outcome.classes:
        parts += ["", _classes(outcome)]
    confusion = outcome.confusion
    if confusion is not None:
        wide = len(confusion.labels) > WIDEST
        parts += ["", *(_largest(confusion) if wide else _matrix(confusion))]
    if (calibration := outcome.reliability) is not None:
        parts += ["", f"expected calibration error {score(calibration.ece)} ({len(calibration.bins)} bins)"]
    if mistakes:
        parts += ["", *_mistakes(outcome, mistakes)]
    return parts


def _value(metric: str, value: float, bound_of: float) -> str:
    return f"{value:.3g}" if metric in AS_THEY_ARE else score(value, bound_of)


def _classes(outcome: Outcome) -> RenderableType:
    rows = sorted(outcome.classes, key=lambda row: -row.support)
    shown = rows[:MOST_LABELS]
    made = [[row.label, *_shares(row), f"{row.support:,}", f"{row.predicted:,}"] for row in shown]
    if len(rows) > len(shown):
        made.append([f"… {len(rows) - len(shown)} rarer", "", "", "", "", ""])
    mean = [score(float(np.mean([getattr(row, name) for row in rows]))) for name in ("precision", "recall", "f1")]
    total = ["mean", *mean, f"{sum(r.support for r in rows):,}", f"{sum(r.predicted for r in rows):,}"]
    return table(["label", "precision", "recall", "F1", "rows", "predicted"], made, total=total)


def _shares(row: LabelScore) -> list[str]:
    return [score(row.precision), score(row.recall), score(row.f1)]


def _matrix(confusion: Confusion) -> list[RenderableType]:
    names = [label if len(label) <= 12 else label[:11] + "…" for label in confusion.labels]
    rows = [[names[i], *(f"{n:,}" if n else "·" for n in row)] for i, row in enumerate(confusion.counts.tolist())]
    return ["confusions: true label by row, predicted label by column", table(["", *names], rows)]


def _largest(confusion: Confusion) -> list[RenderableType]:
    wrong = confusion.counts * ~np.eye(len(confusion.labels), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:LISTED]
    rows: list[Sequence[str]] = []
    for gold, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if wrong[gold, predicted]:
            names = confusion.labels[gold], confusion.labels[predicted]
            rows.append([*names, f"{wrong[gold, predicted]:,}", f"{confusion.counts[gold].sum():,}"])
    return ["the largest confusions", table(["true", "predicted", "rows", "of"], rows, left=2)]


def _mistakes(outcome: Outcome, count: int) -> list[RenderableType]:
    found = outcome.mistakes(count)
    if not found:
        return ["No mistakes."]
    parts: list[RenderableType] = [f"the worst of {len(outcome.all_mistakes):,} mistakes"]
    for mistake in found:
        text = mistake.text if mistake.pair is None else f"{mistake.text} ⟷ {mistake.pair}"
        shown = " ".join(text.split())
        sure = "" if mistake.probability is None else f" ({mistake.probability:.2f})"
        parts.append(
            f"{mistake.row}. {shown if len(shown) <= LONGEST else shown[:LONGEST] + '…'}\n"
            f"   true: {mistake.gold}; predicted: {mistake.predicted}{sure}"
        )
    return parts
