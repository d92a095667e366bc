"""A small training job, for tests of the loop and for processes that they start."""

from __future__ import annotations

from intarsia.methods import Bottleneck
from intarsia.tasks import TaskData, load_data
from intarsia.train.job import Job, Settings
from tests.support.families import opinions


def opinion_job(data: TaskData | None = None, **changes: object) -> Job:
    options = {"learning_rate": 3e-3, "epochs": 4, "batch_size": 8, **changes}
    return Job("opinion", data or load_data(opinions(80)), Bottleneck(8), settings=Settings(**options))  # type: ignore[arg-type]
