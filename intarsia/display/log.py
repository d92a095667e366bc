"""Training in the log: the logger `intarsia` gets what progress bars show, and more lasting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from intarsia.display.board import described, dev_score

if TYPE_CHECKING:
    from intarsia.train.runner import RunnerEvent, RunnerWatch

logger = logging.getLogger("intarsia.train")


def log_watch() -> RunnerWatch | None:
    """Return a watcher that logs the plan, each epoch and each result (INFO) and each report (DEBUG); None if nobody
    listens."""
    if not logger.isEnabledFor(logging.INFO):
        return None
    epochs: dict[str, int] = {}

    def watch(event: RunnerEvent) -> None:
        if event.planned is not None:
            for task, count in event.counts.items():
                logger.info("%s: %d %s", task, count, "run" if count == 1 else "runs")
        if (p := event.progress) is not None and event.job is not None:
            new = epochs.get(event.key) != p.epoch
            epochs[event.key] = p.epoch
            logger.log(logging.INFO if new else logging.DEBUG, "%s: %s: %s", p.job.name, described(p.job), p)
        if event.result is not None and event.job is not None:
            score = dev_score(event.result)
            reason = f" ({event.result.reason})" if event.result.dev is None else f" in {event.result.seconds:.1f} s"
            logger.info("%s: %s: validation %s%s", event.job.name, described(event.job), score, reason)

    return watch
