"""Batches are decided before training: the result of a job depends on its batch, and on nothing that was killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from intarsia import files
from intarsia.encoder.encoder import Encoder
from intarsia.methods import BitFit, Bottleneck, Full, LoRA, Method
from intarsia.tasks import TaskData, load_data
from intarsia.train import active_job
from intarsia.train.batches import PLAN, Batch, Plan, PlannedJob, make_batches, sort_key
from intarsia.train.job import Job, Settings
from intarsia.train.runner import Runner, RunnerEvent
from tests.support.families import opinions, tiny_with_words
from tests.train.test_runner import Killed, Results

DATA = load_data(opinions(32))


def job(method: Method, seed: int = 0, data: TaskData = DATA, **changes: Any) -> Job:
    options = {"learning_rate": 1e-3, "epochs": 2, "batch_size": 8, "seed": seed, **changes}
    return Job("task", data, method, settings=Settings(**options))


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def planned(jobs: list[Job], encoder: Encoder) -> list[PlannedJob]:
    found = [PlannedJob(one.key(encoder.fingerprint), one, float(one.settings.epochs)) for one in jobs]
    return sorted(found, key=sort_key)


def test_jobs_that_may_share_passes_fill_them(encoder: Encoder) -> None:
    jobs = planned([job(Bottleneck(4), seed) for seed in range(10)] + [job(Full()), job(Full(), 1)], encoder)
    sizes = [len(batch.jobs) for batch in make_batches(jobs, encoder.shape, lambda _: 1500.0)]
    assert sizes == [2, 2, 2, 2, 2, 1, 1]
    assert [len(batch.jobs) for batch in make_batches(jobs, encoder.shape, lambda _: 9000.0)] == [1] * 12
    assert [len(b.jobs) for b in make_batches(jobs, encoder.shape, lambda _: 0.0, together=4)] == [4, 4, 2, 1, 1]


def test_longest_first_and_no_job_is_lost(encoder: Encoder) -> None:
    mixed = [job(LoRA(2), epochs=n % 4 + 1, seed=n, dropout=n % 3 > 0) for n in range(20)]
    jobs = planned(mixed, encoder)
    batches = make_batches(jobs, encoder.shape, lambda _: 1000.0)
    assert sorted(key for batch in batches for key in batch.keys) == sorted(one.key for one in jobs)
    firsts = [batch.jobs[0].cost for batch in batches]
    assert firsts == sorted(firsts, reverse=True)
    assert all(len({one.job.settings.dropout for one in batch.jobs}) == 1 for batch in batches)


def test_a_plan_is_kept_until_its_jobs_have_ended(encoder: Encoder, tmp_path: Path) -> None:
    jobs = planned([job(BitFit(), seed) for seed in range(6)], encoder)
    keys = [one.key for one in jobs]

    def make(left: Any) -> list[Batch]:
        return make_batches(left, encoder.shape, lambda _: 1300.0)

    first = Plan(tmp_path, None).batches(keys, jobs, make, lambda _: False)
    assert [batch.keys for batch in first] == [tuple(keys[:3]), tuple(keys[3:])]
    again = Plan(tmp_path, None).batches(keys[1:2] + keys[4:], jobs, make, lambda _: False)
    assert again == first  # some jobs have ended; their neighbours keep their batches
    assert Plan(tmp_path, None).batches(keys[:3], jobs, make, lambda _: False) == first[:1]
    begun = Plan(tmp_path, 2).batches(keys, jobs, lambda left: make_batches(left, encoder.shape, len, 2),
                                      lambda batch: batch.name == keys[0])  # fmt: skip
    assert [batch.keys for batch in begun] == [tuple(keys[:3]), (keys[3], keys[4]), (keys[5],)]
    (tmp_path / PLAN).write_text("{damaged")
    assert Plan(tmp_path, None).batches(keys, jobs, make, lambda _: False) == first
    Plan(tmp_path, None).remove()
    assert not (tmp_path / PLAN).exists()


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_is_killed_anywhere_ends_with_the_same_bits(
    seed: int, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, and with jobs of a batch that end one after another."""
    jobs = [job(Bottleneck(4), n, epochs=1 + n % 3) for n in range(4)] + [job(LoRA(2), epochs=2), job(Full(), epochs=1)]
    whole, cut = Results(), Results()
    Runner(jobs, encoder, tmp_path / "whole", whole).run()
    rng, kills = random.Random(seed), 0
    monkeypatch.setattr(active_job.Saving, "due", lambda *_: rng.random() < 0.3)
    monkeypatch.setattr(active_job.Saving, "cheap", lambda *_: rng.random() < 0.5)
    write = files.replace

    def kill(_: RunnerEvent | None = None) -> None:
        if rng.random() < 0.1:
            raise Killed

    def torn(path: Path, parts: Any) -> None:
        kill()  # before the checkpoint
        write(path, parts)
        kill()  # after it

    monkeypatch.setattr(files, "replace", torn)
    while True:
        try:
            Runner(jobs, encoder, tmp_path / "cut", cut, watch=kill).run()
            break
        except Killed:
            kills += 1
            assert kills < 200
    assert kills > 2 and cut.trained.keys() == whole.trained.keys()
    for key, trained in cut.trained.items():
        assert all(torch.equal(t, whole.trained[key].tensors[name]) for name, t in trained.tensors.items())
    assert not list((tmp_path / "cut").iterdir())


def test_a_damaged_batch_file_starts_the_whole_batch_again(encoder: Encoder, tmp_path: Path) -> None:
    jobs = [job(Bottleneck(4), n) for n in range(3)]
    whole, again = Results(), Results()
    Runner(jobs, encoder, tmp_path / "whole", whole).run()
    runner = Runner(jobs, encoder, tmp_path / "again", again)
    state = tmp_path / "again" / runner.planned[0].key / "state.safetensors"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"x" * 100)
    with pytest.warns(UserWarning, match="is damaged"):
        runner.run()
    for key, trained in again.trained.items():
        assert all(torch.equal(t, whole.trained[key].tensors[name]) for name, t in trained.tensors.items())
