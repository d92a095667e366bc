"""Jobs that share passes end where each would have ended alone, whatever their neighbours do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import BitFit, Bottleneck, Full, LoRA, Method
from intarsia.tasks import load_data
from intarsia.train.checkpoints import JobFiles
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train, train_together
from intarsia.train.progress import Progress
from intarsia.train.run import Run, Trained
from intarsia.train.scheduler import MOST_ACTIVE, Scheduler
from intarsia.train.step import step_together
from tests.support.families import opinions, tiny_with_words
from tests.support.small_methods import SMALL

METHODS: list[Method] = [
    Bottleneck(8), Bottleneck(6, inner_norm="layer"),
    *(method for method in SMALL.values() if not method.changes_base and not method.cached),
]  # fmt: skip


def exact() -> Encoder:
    """A tiny base in float64."""
    return tiny_with_words().to(dtype=torch.float64)


def job(number: int, method: Method, rows: int = 24, **changes: object) -> Job:
    """Jobs that differ in data, rate, seed, batch size; every third has a score to learn."""
    content = opinions(rows, seed=number)
    if number % 3 == 2:
        for row in content:
            row["label"] = 1.0 if row["label"] == "yes" else -1.0  # type: ignore[assignment]
    options = {
        "learning_rate": 1e-3 * (1 + number % 4),
        "epochs": 2,
        "batch_size": 5 + number % 3,
        "seed": number,
        "dropout": False,
        **changes,
    }
    return Job(f"job{number}", load_data(content), method, settings=Settings(**options))  # type: ignore[arg-type]


def together(jobs: Sequence[Job], encoder: Encoder, slots: int) -> dict[str, Trained | IntarsiaError]:
    found: dict[str, Trained | IntarsiaError] = {}
    train_together(jobs, encoder, together=slots, done=lambda j, result: found.__setitem__(j.name, result))
    return found


def furthest(a: object, b: object) -> float:
    assert isinstance(a, Trained) and isinstance(b, Trained) and a.tensors.keys() == b.tensors.keys()
    return max(float((a.tensors[k] - b.tensors[k]).abs().max()) for k in a.tensors)


@pytest.mark.parametrize("slots", [3, 12])
def test_every_job_ends_where_it_would_have_ended_alone(slots: int) -> None:
    encoder = exact()
    jobs = [job(i, method) for i, method in enumerate(METHODS)]
    found = together(jobs, encoder, slots)
    for j in jobs:
        alone = train(j, encoder)
        assert furthest(found[j.name], alone) <= 1e-9
        assert found[j.name].state.step == alone.state.step  # type: ignore[union-attr]


def test_nan_in_validation_outputs_ends_only_the_job_that_computed_it() -> None:
    """The loss of the epoch's last step is finite, but the updated tensors are not."""
    scored = job(2, Bottleneck(4), learning_rate=1e20, batch_size=32, epochs=3)
    found = together([job(0, Bottleneck(4)), scored], tiny_with_words(), 2)
    assert isinstance(found["job2"], IntarsiaError) and "its validation outputs contain NaN or infinity" in str(
        found["job2"]
    )
    assert isinstance(found["job0"], Trained)


def test_a_neighbour_that_diverges_leaves_the_others_untouched() -> None:
    encoder = exact()
    jobs = [job(i, Bottleneck(4)) for i in range(3)]
    wild = Settings(learning_rate=1e200, dropout=False, batch_size=5)
    mad = dataclasses.replace(job(9, Bottleneck(4)), settings=wild)
    found = together([jobs[0], mad, *jobs[1:]], encoder, 4)
    assert isinstance(found["job9"], IntarsiaError) and "diverged" in str(found["job9"])
    for j in jobs:
        assert furthest(found[j.name], train(j, encoder)) <= 1e-9


def test_values_that_are_no_numbers_do_not_cross_in_one_step() -> None:
    encoder = exact()
    runs = [Run(job(i, METHODS[i]), encoder) for i in (0, 7, 9)]
    alone = Run(job(9, METHODS[9]), encoder)
    for tensor in runs[0].slots.tensors.values():
        tensor.fill_(math.nan)
    losses = step_together([(run, range(4)) for run in runs])
    expected = step_together([(alone, range(4))])[0]
    assert math.isnan(losses[0]) and losses[2] == pytest.approx(expected, abs=1e-12)
    assert torch.allclose(runs[2].slots.buffer, alone.slots.buffer, rtol=0, atol=1e-12)
    assert runs[0].state.step == 0 and runs[2].state.step == 1


def test_jobs_that_end_make_room_and_change_nothing_for_the_rest() -> None:
    encoder = exact()
    jobs = [job(i, Bottleneck(4), epochs=1 + i % 3, patience=1 if i == 4 else None) for i in range(6)]
    order: list[str] = []
    found: dict[str, Trained | IntarsiaError] = {}

    def done(j: Job, result: Trained | IntarsiaError) -> None:
        order.append(j.name)
        found[j.name] = result

    train_together(jobs, encoder, together=2, done=done)
    assert sorted(order) == [j.name for j in jobs] and order[0] == "job0"
    for j in jobs:
        assert furthest(found[j.name], train(j, encoder)) <= 1e-9


def test_jobs_that_change_the_base_run_one_at_a_time_in_the_same_queue() -> None:
    encoder = exact()
    jobs = [job(0, Bottleneck(4)), job(1, Full(), epochs=1), job(2, LoRA(2))]
    found = together(jobs, encoder, 3)
    for j in jobs:
        assert furthest(found[j.name], train(j, encoder)) <= 1e-9


def test_with_dropout_a_queue_repeats_itself() -> None:
    jobs = [job(i, METHODS[i], dropout=True) for i in range(3)]
    first, second = (together(jobs, tiny_with_words(), 3) for _ in range(2))
    for j in jobs:
        assert furthest(first[j.name], second[j.name]) == 0.0


def test_a_killed_queue_goes_on(tmp_path: Path) -> None:
    encoder = exact()
    jobs = [job(i, Bottleneck(4)) for i in range(3)]
    files = {j.name: tmp_path / j.name / "state.safetensors" for j in jobs}
    for file in files.values():
        file.parent.mkdir()

    class Killed(Exception):
        pass

    def kill(progress: Progress) -> None:
        if progress.job.name == "job1" and progress.step == 5:
            raise Killed

    found: dict[str, Trained | IntarsiaError] = {}
    options = {"together": 2, "checkpoints": JobFiles(lambda j: files[j.name]), "save_every": 0.0}
    with pytest.raises(Killed):
        train_together(jobs, encoder, done=lambda j, r: found.__setitem__(j.name, r), watch=kill, **options)  # type: ignore[arg-type]
    left = [j for j in jobs if j.name not in found]
    train_together(left, encoder, done=lambda j, r: found.__setitem__(j.name, r), **options)  # type: ignore[arg-type]
    for j in jobs:
        assert furthest(found[j.name], train(j, encoder)) <= 1e-9


def test_as_many_jobs_share_a_pass_as_make_a_good_size() -> None:
    encoder = exact()
    seen: set[str] = set()
    most = [0]

    def watch(progress: Progress) -> None:
        seen.add(progress.job.name)
        most[0] = max(most[0], len(seen))

    jobs = [job(i, Bottleneck(4), epochs=1) for i in range(5)]
    train_together(jobs, encoder, done=lambda j, _: seen.discard(j.name), watch=watch)
    assert most[0] == 5  # tiny texts: all fit


def test_there_are_no_more_training_slots_than_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    class Seen(Scheduler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(self.slots)
            raise InterruptedError

    monkeypatch.setattr("intarsia.train.loop.Scheduler", Seen)
    one, encoder = job(0, BitFit()), tiny_with_words()
    some = (one for _ in range(3))  # does not say how many
    for jobs, together in (([], None), ([one] * 3, None), ([one] * 100, None), (some, None), ([one] * 9, 4)):
        with pytest.raises(InterruptedError):
            train_together(jobs, encoder, done=lambda *_: None, together=together)
    assert found == [1, 3, MOST_ACTIVE, MOST_ACTIVE, 4]


def test_those_who_wait_are_asked_only_when_a_seat_is_free(monkeypatch):
    asked, plain = [], Scheduler.accepts

    def accepts(self, slots):
        asked.append(len(slots))
        return plain(self, slots)

    monkeypatch.setattr(Scheduler, "accepts", accepts)
    found = together([job(0, Bottleneck(4)), job(1, Full()), job(3, Bottleneck(8))], exact(), slots=4)
    assert all(isinstance(one, Trained) for one in found.values()) and len(found) == 3
    assert asked == [0, 1, 2, 0, 1, 0]  # two sit down and leave at one time; then the third, alone
