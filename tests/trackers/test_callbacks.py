"""Callbacks, and the part that all trackers share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.trackers import check_name
from intarsia.trackers.tracker import Tracker, Values
from intarsia.train.grid import Grid
from intarsia.train.progress import Progress
from intarsia.train.runner import RunnerEvent
from tests.support.families import opinions, tiny_with_words

QUICK = {"epochs": 2, "learning_rate": 5e-3, "batch_size": 16, "max_length": 16}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


class Written:
    """A run of a tracker that writes into lists."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.results: dict[str, float] = {}
        self.ended: bool | None = None

    def config(self, values: Mapping[str, Any]) -> None:
        self.facts |= values

    def log(self, values: Values, step: int) -> None:
        self.logged.append((step, dict(values)))

    def result(self, values: Values) -> None:
        self.results |= values

    def end(self, done: bool) -> None:
        self.ended = done


class Lists(Tracker):
    name = "Lists"

    def __init__(self) -> None:
        super().__init__()
        self.started_runs: dict[str, Written] = {}

    def start(self, task: str, job: str) -> Written:
        return self.started_runs.setdefault(f"{task} {job}".strip(), Written())


def test_a_tracker_gets_each_epoch_the_result_and_the_stored_version(encoder: Encoder, tmp_path: Path) -> None:
    bank, lists = intarsia.open(tmp_path / "bank", encoder), Lists()
    entry = bank.learn("tone", opinions(), "houlsby-4", callbacks=[lists], **QUICK)
    run = lists.started_runs["tone"]
    header = entry.header
    epochs = [(step, values) for step, values in run.logged if "epoch" in values]
    assert [values["epoch"] for _, values in epochs] == [1, 2]
    assert [values["validation/accuracy"] for _, values in epochs] == [
        e["accuracy"] for e in header.training["history"]
    ]
    assert [step for step, _ in epochs] == [e["step"] for e in header.training["history"]]
    assert [step for step, _ in run.logged] == sorted(step for step, _ in run.logged)
    assert run.results["test/accuracy"] == header.metrics["test"]["value"]
    assert run.results["validation/best"] == header.metrics["dev"] and run.ended is True
    assert run.facts["learning_rate"] == 5e-3 and run.facts["method_name"].startswith("houlsby-4")
    assert run.facts["version"] == 1 and run.facts["digest"] == header.digest
    assert run.facts["data.rows.train"] == len(opinions()) * 0.8
    assert all(value is None or isinstance(value, int | float | str) for value in run.facts.values())
    texts = {row["text"] for row in opinions()}
    assert not any(text in str(value) for text in texts for value in run.facts.values())


def test_each_job_of_a_sweep_is_a_run(encoder: Encoder, tmp_path: Path) -> None:
    bank, lists = intarsia.open(tmp_path / "bank", encoder), Lists()
    steps: list[Progress] = []
    grid = Grid(("houlsby-2", "houlsby-4"))
    found = bank.sweep({"mood": opinions()}, grid, epochs=1, callbacks=[lists], watch=steps.append)
    assert len(lists.started_runs) == 2 and all(name.startswith("mood houlsby-") for name in lists.started_runs)
    assert all(run.ended for run in lists.started_runs.values()) and steps[0].job.name == "mood"
    (best,) = [run for run in lists.started_runs.values() if "test/accuracy" in run.results]
    assert best.results["validation/best"] == found["mood"].header.metrics["dev"]


def test_a_resumed_run_logs_all_epochs_again(encoder: Encoder, tmp_path: Path) -> None:
    bank, first, again = intarsia.open(tmp_path / "bank", encoder), Lists(), Lists()

    def interrupt(event: RunnerEvent) -> None:
        if event.progress is not None and event.progress.epoch == 3:
            raise KeyboardInterrupt

    options = {**QUICK, "epochs": 3}
    with pytest.raises(KeyboardInterrupt):
        bank.learn("tone", opinions(), "houlsby-4", callbacks=[first, interrupt], **options)
    assert first.started_runs["tone"].ended is False
    bank.learn("tone", opinions(), "houlsby-4", callbacks=[again], **options)
    assert [v["epoch"] for _, v in again.started_runs["tone"].logged if "epoch" in v] == [1, 2, 3]


def test_events_come_in_their_order(encoder: Encoder, tmp_path: Path) -> None:
    events: list[RunnerEvent] = []
    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = bank.learn("tone", opinions(), "houlsby-4", callbacks=[events.append], **QUICK)
    assert events[0].planned is not None and events[0].counts == {"tone": 1}
    assert events[-2].result is not None and events[-1].learned == entry.to_dict()
    assert all(event.progress is not None for event in events[1:-2])
    last = events[-3].progress
    assert last is not None and last.step == last.steps and [e["epoch"] for e in last.history] == [1, 2]


def test_a_tracker_that_fails_does_not_end_training(encoder: Encoder, tmp_path: Path) -> None:
    class Full(Written):
        def log(self, values: Values, step: int) -> None:
            raise OSError("the disk is full")

    class Failing(Lists):
        def start(self, task: str, job: str) -> Written:
            return Full()

    bank = intarsia.open(tmp_path / "bank", encoder)
    with pytest.warns(IntarsiaWarning, match=r"Lists logs no more: the disk is full\. Training goes on"):
        assert bank.learn("tone", opinions(), "houlsby-4", callbacks=[Failing()], **QUICK).version == 1


def test_a_tracker_that_cannot_start_says_so_at_once(encoder: Encoder, tmp_path: Path) -> None:
    class Broken(Lists):
        def start(self, task: str, job: str) -> Written:
            raise ValueError("no such server")

    bank = intarsia.open(tmp_path / "bank", encoder)
    with pytest.raises(IntarsiaError, match=r"Lists cannot start a run: no such server\. Correct this"):
        bank.learn("tone", opinions(), "houlsby-4", callbacks=[Broken()], **QUICK)


def test_wrong_callbacks_are_refused(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    for wrong, message in (
        ([3], "found a int"), ("tensorboard:runs", "expected a list"), (["tensorbord:runs"], "mean 'tensorboard'"),
    ):  # fmt: skip
        with pytest.raises(IntarsiaError, match=message):
            bank.learn("tone", opinions(), "houlsby-4", callbacks=wrong, **QUICK)  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(IntarsiaError, match=r"needs wandb, which is not installed.*intarsia\[wandb\]"):
        check_name("wandb:project")
