"""MLflow: runs of an experiment, in a local file or on a server (extra `mlflow`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.time import get_current_time_millis

from intarsia.trackers.tracker import TrackedRun, Tracker, Values

LONGEST = 500  # characters of a parameter, which every store takes


class MLflow(Tracker):
    """Logs to the experiment `intarsia`.

    `place` is a file (`runs.db`) or an address such as `http://localhost:5000`; None: MLflow's own default, which
    `MLFLOW_TRACKING_URI` names.
    """

    name = "MLflow"

    def __init__(self, place: str | None = None, experiment: str = "intarsia") -> None:
        super().__init__()
        self.place = f"sqlite:///{place}" if place and place.endswith(".db") and "://" not in place else place
        self.experiment = experiment
        self.client: MlflowClient | None = None

    def start(self, task: str, job: str) -> TrackedRun:
        if self.client is None:
            self.client = MlflowClient(tracking_uri=self.place)
        found = self.client.get_experiment_by_name(self.experiment)
        experiment = self.client.create_experiment(self.experiment) if found is None else found.experiment_id
        tags = {"intarsia.task": task, "intarsia.call": self.stamp}
        made = self.client.create_run(experiment, run_name=f"{task} {job}".strip(), tags=tags)
        return _Run(self.client, made.info.run_id)


class _Run:
    def __init__(self, client: MlflowClient, key: str) -> None:
        self.client, self.key = client, key
        self.step = 0

    def config(self, values: Mapping[str, Any]) -> None:
        params = [Param(_name(k), str(v)[:LONGEST]) for k, v in values.items()]
        self.client.log_batch(self.key, params=params[:100])
        self.client.log_batch(self.key, params=params[100:])

    def log(self, values: Values, step: int) -> None:
        self.step, now = step, get_current_time_millis()
        self.client.log_batch(self.key, metrics=[Metric(_name(k), v, now, step) for k, v in values.items()])

    def result(self, values: Values) -> None:
        self.log(values, self.step)

    def end(self, done: bool) -> None:
        self.client.log_batch(self.key, tags=[RunTag("intarsia.done", str(done).lower())])
        self.client.set_terminated(self.key, "FINISHED" if done else "KILLED")


def _name(name: str) -> str:
    """Return a name that MLflow takes: it may hold names of labels."""
    return re.sub(r"[^\w./ :-]", "_", name)
