"""The runner trains what has no result, tells one kind of watcher, and survives being killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import BitFit, Bottleneck, Features, Full, LoRA, Method, TopLayers
from intarsia.tasks import load_data
from intarsia.train import active_job
from intarsia.train.checkpoint import read, read_tensors
from intarsia.train.job import Job, Settings
from intarsia.train.run import Trained
from intarsia.train.runner import JobResult, Runner, RunnerEvent, characters_read, join_watchers
from tests.support.families import opinions, tiny_with_words


def job(method: Method, seed: int = 0, rows: int = 48, **changes: Any) -> Job:
    options = {"learning_rate": 1e-3, "epochs": 2, "batch_size": 8, "seed": seed, **changes}
    return Job("task", load_data(opinions(rows)), method, settings=Settings(**options))


class Results:
    """In memory."""

    def __init__(self) -> None:
        self.found: dict[str, JobResult] = {}
        self.trained: dict[str, Trained] = {}
        self.asked: list[str] = []

    def find(self, job: Job, key: str) -> JobResult | None:
        self.asked.append(key)
        return self.found.get(key)

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> JobResult:
        assert key not in self.found
        self.found[key] = JobResult.of(job, key, outcome)
        if isinstance(outcome, Trained):
            self.trained[key] = outcome
        return self.found[key]


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def test_events_come_in_order(encoder: Encoder, tmp_path: Path) -> None:
    results, seen = Results(), list[RunnerEvent]()
    jobs = [job(LoRA(2)), job(BitFit()), job(BitFit()), job(Full(), epochs=1), job(Bottleneck(4), epochs=3)]
    known = jobs[1].key(encoder.fingerprint)
    results.found[known] = JobResult("task", known, {}, {}, 0.5, None)
    ended = Runner(jobs, encoder, tmp_path, results, watch=seen.append).run()
    planned = seen[0].planned
    assert planned is not None and seen[0].counts == {"task": 4}  # equal jobs run once
    assert [one.job.method for one in planned] == [
        Bottleneck(4),
        LoRA(2),
        BitFit(),
        Full(),
    ]
    assert [one.cost for one in planned] == [characters_read(one.job) for one in planned]
    assert seen[1].stored and seen[1].key == known and seen[1].result is results.found[known]
    for one in planned:
        own = [event for event in seen[1:] if event.key == one.key]
        assert all(event.job is one.job for event in own) or one.key == known
        assert [event.result is not None for event in own] == [False] * (len(own) - 1) + [True]
        assert all(event.progress is not None for event in own[:-1])
    assert ended == results.found and len(ended) == 4
    assert not list(tmp_path.iterdir())  # no state stays behind


def test_a_killed_queue_resumes_to_the_same_bits(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(Bottleneck(4), seed) for seed in (0, 1)] + [job(Full())]
    whole = Results()
    Runner(jobs, encoder, tmp_path / "whole", whole).run(together=2)
    cut, steps = Results(), [0]

    def kill(event: RunnerEvent) -> None:
        steps[0] += event.progress is not None
        if steps[0] in (13, 30):  # while two share a pass, and while the exclusive job runs
            steps[0] += 1
            raise Killed

    monkeypatch.setattr(active_job.Saving, "due", lambda *_: True)
    kills = 0
    for _ in range(3):
        try:
            Runner(jobs, encoder, tmp_path / "cut", cut, watch=kill).run(together=2)
        except Killed:
            kills += 1
            states = list((tmp_path / "cut").glob("*/state.safetensors"))
            assert states and all(read_tensors(path) is not None for path in states)
    assert kills == 2 and cut.trained.keys() == whole.trained.keys()
    for key, trained in cut.trained.items():
        assert all(torch.equal(t, whole.trained[key].tensors[name]) for name, t in trained.tensors.items())


def test_a_result_that_another_process_stores_is_not_trained_again(encoder: Encoder, tmp_path: Path) -> None:
    jobs = [job(Full(), seed, epochs=1) for seed in range(3)]
    results, seen = Results(), list[RunnerEvent]()
    keys = [one.key(encoder.fingerprint) for one in jobs]

    def meanwhile(event: RunnerEvent) -> None:
        seen.append(event)
        if event.progress is not None and event.key == keys[0] and keys[2] not in results.found:
            results.found[keys[2]] = JobResult("task", keys[2], {}, {}, 0.5, None)

    Runner(jobs, encoder, tmp_path, results, watch=meanwhile).run()
    assert list(results.trained) == keys[:2]
    assert [event.key for event in seen if event.stored] == [keys[2]]
    assert results.asked.count(keys[2]) == 2  # at the start, and when its slot was free


def test_a_job_that_cannot_be_trained_is_a_result_with_its_reason(encoder: Encoder, tmp_path: Path) -> None:
    results = Results()
    words = Job(
        "words", load_data([row["text"] for row in opinions(60)], kind="words"), Features(), settings=Settings(epochs=1)
    )
    ended = Runner([job(TopLayers(9)), words, job(BitFit(), epochs=1)], encoder, tmp_path, results).run()
    reasons = sorted(result.reason for result in ended.values() if result.reason is not None)
    assert len(reasons) == 2 and "top 9" in reasons[0] and "one vector per text" in reasons[1]
    assert len(results.trained) == 1


def test_the_time_of_a_run_is_its_share(encoder: Encoder, tmp_path: Path) -> None:
    results = Results()
    jobs = [job(LoRA(2), 0), job(LoRA(2), 1), job(LoRA(2), 2, batch_size=16), job(Full())]
    Runner(jobs, encoder, tmp_path, results).run()
    states = {key: trained.state for key, trained in results.trained.items()}
    small, _, large, full = (states[one.key(encoder.fingerprint)] for one in jobs)
    assert 0 < small.own_seconds < small.seconds
    # Both take part in the same number of epochs; a batch twice as large has twice the tokens of a pass.
    assert 0 < large.own_seconds < large.seconds and full.own_seconds > 0


def test_a_state_written_before_has_its_own_time(tmp_path: Path) -> None:
    import json

    from safetensors.torch import save_file

    save_file({"now": torch.zeros(1)}, tmp_path / "old", {"state": json.dumps({"step": 3, "seconds": 7.5})})
    stored = read(tmp_path / "old")
    assert stored is not None and (stored[0].step, stored[0].own_seconds) == (3, 7.5)


def test_two_kinds_of_watchers() -> None:
    steps, events = list[Any](), list[RunnerEvent]()
    assert join_watchers(None, None) is None and join_watchers(None, events.append) is not None
    watch = join_watchers(steps.append, events.append)
    assert watch is not None
    watch(RunnerEvent(planned=[]))
    assert len(events) == 1 and not steps
