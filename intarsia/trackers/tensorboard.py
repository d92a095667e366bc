"""TensorBoard: one folder of event files for each run (extra `tensorboard`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from intarsia.trackers.tracker import TrackedRun, Tracker, Values


class TensorBoard(Tracker):
    """Logs to `FOLDER/TASK/TIME`; each job of a grid has a folder below it."""

    name = "TensorBoard"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self.folder = Path(folder or "runs").expanduser()

    def start(self, task: str, job: str) -> TrackedRun:
        folder = self.folder / task / self.stamp
        return _Run(folder / re.sub(r"[^\w.=-]+", "_", job) if job else folder)


class _Run:
    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder))
        self.facts: dict[str, Any] = {}
        self.results: dict[str, float] = {}
        self.step = 0

    def config(self, values: Mapping[str, Any]) -> None:
        self.facts |= values

    def log(self, values: Values, step: int) -> None:
        self.step = step
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def result(self, values: Values) -> None:
        self.results |= values
        self.log(values, self.step)

    def end(self, done: bool) -> None:
        facts = {k: v for k, v in self.facts.items() if v is not None}
        for summary in hparams({**facts, "done": done}, self.results):  # for the page HPARAMS
            self.writer._get_file_writer().add_summary(summary)
        self.writer.close()
