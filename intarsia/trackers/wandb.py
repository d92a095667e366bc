"""Weights & Biases: runs of a project, on its server or with `WANDB_MODE=offline` in local files (extra `wandb`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb

from intarsia.trackers.tracker import TrackedRun, Tracker, Values


class WandB(Tracker):
    """Logs to a project, given as `PROJECT` or `ENTITY/PROJECT`. The jobs of one call form a group."""

    name = "Weights & Biases"

    def __init__(self, project: str | None = None) -> None:
        super().__init__()
        entity, _, self.project = (project or "intarsia").rpartition("/")
        self.entity = entity or None

    def start(self, task: str, job: str) -> TrackedRun:
        run = wandb.init(
            project=self.project, entity=self.entity, name=f"{task} {job}".strip(), group=f"{task} {self.stamp}",
            job_type="train", reinit="create_new",
        )  # fmt: skip
        return _Run(run)


class _Run:
    def __init__(self, run: Any) -> None:
        self.run = run

    def config(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(dict(values))

    def log(self, values: Values, step: int) -> None:
        self.run.log(dict(values), step=step)

    def result(self, values: Values) -> None:
        self.run.summary.update(dict(values))

    def end(self, done: bool) -> None:
        self.run.finish(exit_code=0 if done else 1)
