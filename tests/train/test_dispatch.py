"""The dispatcher gives every batch to a worker, longest first, takes it back from the dead, and helps stragglers."""

from __future__ import annotations

import random

import pytest

from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck
from intarsia.tasks import load_data
from intarsia.train.batches import Batch, PlannedJob
from intarsia.train.dispatch import MOST_LOSSES, Dispatcher
from intarsia.train.job import Job
from tests.support.families import opinions

JOB = Job("task", load_data(opinions(20)), Bottleneck(4))


def batches(*costs: float) -> list[Batch]:
    return [Batch((PlannedJob(f"job{number}", JOB, cost),)) for number, cost in enumerate(costs)]


def test_the_longest_batch_goes_first() -> None:
    queue = Dispatcher(batches(1, 5, 3))
    taken = [queue.take(f"worker{number}", 0.0) for number in range(4)]
    assert [batch.cost for batch in taken if batch] == [5, 3, 1] and taken[3] is None


def test_the_batch_of_a_lost_worker_is_the_next_to_go() -> None:
    queue = Dispatcher(batches(5, 3, 1))
    first = queue.take("a", 0.0)
    queue.lost("a")
    assert queue.take("b", 1.0) is first
    queue.complete("b", 2.0)
    queue.lost("b")  # a worker that dies between two batches
    assert not queue.over and queue.ended == {"job0"}


def test_a_batch_that_kills_its_workers_ends_the_queue_with_a_reason() -> None:
    queue = Dispatcher(batches(5))
    with pytest.raises(IntarsiaError, match=r"5 workers in a row died .*--together 1"):
        for number in range(MOST_LOSSES):
            queue.take(f"worker{number}", 0.0)
            queue.lost(f"worker{number}")


def test_losses_count_only_without_progress() -> None:
    queue = Dispatcher(batches(5))
    for number in range(3 * MOST_LOSSES):
        queue.take("a", 0.0)
        queue.progress("a", (number + 1) / 100, 1.0)
        queue.checkpoint("a")
        queue.lost("a")
    assert queue.stored["job0"] == pytest.approx(0.15)


def test_a_straggler_is_copied_to_an_idle_worker_and_the_first_to_end_counts() -> None:
    queue = Dispatcher(batches(8, 8, 8))
    for worker in ("fast", "slow"):
        queue.take(worker, 0.0)
    queue.progress("fast", 1.0, 4.0)
    assert queue.complete("fast", 4.0) == []
    third = queue.take("fast", 4.0)
    queue.progress("slow", 0.1, 8.0)
    queue.complete("fast", 8.0)
    assert third is not None and third.name == "job2"
    copy = queue.take("fast", 8.0)  # 72 s are left on the slow worker, 4 s on the fast one
    assert copy is not None and copy.name == "job1"
    assert queue.take("third", 8.0) is None  # one copy is enough
    assert queue.complete("fast", 12.0) == ["slow"]
    queue.give_up("slow")
    assert queue.over


def test_nothing_is_stolen_from_a_worker_that_ends_soon() -> None:
    queue = Dispatcher(batches(8, 8))
    queue.take("a", 0.0)
    queue.take("b", 0.0)
    queue.complete("a", 4.0)
    queue.progress("b", 0.8, 4.0)
    assert queue.take("a", 4.0) is None


def test_a_worker_that_reports_nothing_is_a_straggler_too() -> None:
    queue = Dispatcher(batches(8, 8, 1))
    queue.take("a", 0.0)
    queue.take("b", 0.0)
    queue.complete("a", 4.0)
    queue.take("a", 4.0)
    queue.complete("a", 4.5)
    taken = queue.take("a", 5.0)  # it knows no better than that the other needs at least as long again
    assert taken is not None and taken.name == "job1"


@pytest.mark.parametrize("seed", range(20))
def test_every_batch_ends_once_whatever_dies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.train.dispatch.MOST_LOSSES", 1000)
    rng = random.Random(seed)
    queue = Dispatcher(batches(*(rng.uniform(1, 10) for _ in range(30))))
    now, ended, busy, born = 0.0, list[str](), dict[str, Batch](), 0
    while not queue.over:
        now += 0.1
        while len(busy) < 5:
            worker = f"worker{(born := born + 1)}" if rng.random() < 0.5 else f"old{rng.randrange(5)}"
            if worker in busy:
                continue
            batch = queue.take(worker, now)
            if batch is None:
                break
            busy[worker] = batch
        worker = rng.choice(sorted(busy))
        queue.progress(worker, rng.random(), now)
        queue.checkpoint(worker)
        if rng.random() < 0.3:
            queue.lost(worker)
            del busy[worker]
        elif rng.random() < 0.5:
            ended.append(busy.pop(worker).name)
            for other in queue.complete(worker, now):
                queue.give_up(other)
                del busy[other]
    assert len(ended) == len(set(ended)) == 30 and not busy
