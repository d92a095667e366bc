"""A sweep tries its grid, chooses on dev, scores the chosen one on test, and survives being killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia import files
from intarsia.bank import learning
from intarsia.bank.sweep import SweepResults
from intarsia.display import board as boards
from intarsia.display import time_left
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck, to_dict
from intarsia.tasks import load_data
from intarsia.train.grid import PAPER, SMALL, Grid, read_grid
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train
from intarsia.train.progress import Progress
from intarsia.train.runner import JobResult, PlannedJob, RunnerEvent
from tests.support.families import opinions, tiny_with_words
from tests.support.token_tasks import colours, riddles

GRID = Grid(("houlsby-4", "lora-2"), learning_rate=(1e-3, 3e-3), epochs=(2,), batch_size=(8,))


def test_named_grids_have_the_sizes_they_are_known_for(tmp_path: Path) -> None:
    assert (SMALL.size, PAPER.size) == (9, 90)
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["lora-4", "bitfit"]\nlearning_rate = [1e-4, 1e-3]\nseeds = 2\n')
    grid = read_grid(str(file))
    assert grid.size == 8 == len(grid.jobs("x", load_data(opinions(30))))
    assert read_grid("paper") is PAPER


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("methods = 3", "a list was expected"),
        ("rates = [1]", "'rates'"),
        ("methods = [", "is not a valid TOML file"),
        ("methods = []", "nothing to try"),
    ],
)
def test_wrong_grids_are_named(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(content)
    with pytest.raises(IntarsiaError, match=words):
        read_grid(str(file))
    with pytest.raises(IntarsiaError, match="small, paper"):
        read_grid("large")


def test_a_sweep_without_dropout_below_takes_each_row_there_once(tmp_path: Path) -> None:
    encoder = tiny_with_words()
    bank = intarsia.open(tmp_path / "bank", encoder)
    data = load_data(opinions(60))
    grid = Grid(("top-1",), learning_rate=(1e-3, 3e-3), epochs=(2,), batch_size=(8,), trunk_dropout=False)
    tokens = [0]

    def count(_: Any, args: Any) -> None:
        tokens[0] += args[0].shape[1]

    handle = encoder.model.encoder.layer[0].attention.register_forward_pre_hook(count)
    seen: list[int] = []
    found = bank.sweep(
        {"one": data}, grid, callbacks=[lambda event: seen.append(tokens[0]) if event.learned is None else None]
    )
    handle.remove()
    rows = encoder.tokenize([e.text for e in (*data.train, *data.dev)])
    assert seen[-1] == sum(len(row.ids) for row in rows)
    assert found["one"].header.training["trunk_dropout"] is False


def test_the_best_on_dev_is_kept_with_the_whole_grid(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    tasks = {"first": load_data(opinions(60, seed=1)), "second": load_data(opinions(60, seed=2))}
    found = bank.sweep(tasks, GRID)
    for name in tasks:
        header = found[name].header
        grid = header.training["grid"]
        assert len(grid) == GRID.size and {point["method"]["type"] for point in grid} == {"bottleneck", "lora"}
        assert header.metrics["dev"] == max(point["dev"] for point in grid)
        assert header.metrics["test"]["examples"] == len(tasks[name].test)
        chosen = next(p for p in grid if p["dev"] == header.metrics["dev"])
        assert header.method["type"] == chosen["method"]["type"]
    assert len(bank.predict([("first", "good film"), ("second", "bad film")])) == 2
    assert not list((tmp_path / "bank" / "work").iterdir())


def test_a_killed_sweep_repeats_no_finished_job(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    tasks = {"task": load_data(opinions(60))}
    seen: list[str] = []

    class Killed(Exception):
        pass

    def kill(event: RunnerEvent) -> None:
        if event.result is not None:
            seen.append(event.key)
            if len(seen) == 2:
                raise Killed

    with pytest.raises(Killed):
        bank.sweep(tasks, GRID, together=2, callbacks=[kill])
    again: list[tuple[str, bool]] = []

    def note(event: RunnerEvent) -> None:
        if event.result is not None:
            again.append((event.key, event.stored))

    found = bank.sweep(tasks, GRID, together=2, callbacks=[note])
    assert [key for key, stored in again if stored] == seen
    assert len(again) == GRID.size == len(found["task"].header.training["grid"])


def test_a_killed_sweep_whose_points_are_equal_keeps_the_one_it_stored(tmp_path: Path) -> None:
    """Equal scores, ended in another order than the grid's: the tensors on disk are those of the first to end."""
    encoder = tiny_with_words()
    task = load_data(opinions(60))
    jobs = GRID.jobs("task", task)
    keys = [job.key(encoder.fingerprint) for job in jobs]
    ended = {job.key(encoder.fingerprint): train(job, encoder) for job in jobs[:2]}
    for trained in ended.values():
        trained.state.best = 0.5
    results = SweepResults(jobs, encoder, tmp_path)
    for job in (jobs[1], jobs[0]):
        key = job.key(encoder.fingerprint)
        results.add(job, key, ended[key])
    again = SweepResults(jobs, encoder, tmp_path)  # reads its results in the order of the grid
    assert list(again.found) == keys[:2]
    chosen, trained = again.best("task")
    assert chosen == jobs[1]
    assert all(torch.equal(t, ended[keys[1]].tensors[name]) for name, t in trained.tensors.items())


def test_a_kill_while_a_better_point_is_stored_leaves_a_best_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = tiny_with_words()
    jobs = GRID.jobs("task", load_data(opinions(60)))
    worse, better = train(jobs[0], encoder), train(jobs[1], encoder)
    worse.state.best, better.state.best = 0.4, 0.6
    results = SweepResults(jobs, encoder, tmp_path)
    keys = [job.key(encoder.fingerprint) for job in jobs]
    results.add(jobs[0], keys[0], worse)
    write, count = files.replace, [0]

    def cut(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == 2:  # the tensors are written, the result is not
            raise OSError("power cut")
        write(*arguments)

    monkeypatch.setattr(files, "replace", cut)
    with pytest.raises(OSError, match="power cut"):
        results.add(jobs[1], keys[1], better)
    again = SweepResults(jobs, encoder, tmp_path)
    assert len(again.found) == 1 and again.best("task")[0] == jobs[0]


def test_a_sweep_in_which_all_diverge_says_so(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    wild = Grid(("houlsby-4",), learning_rate=(1e30,), epochs=(1,))
    with pytest.raises(IntarsiaError, match="diverged"):
        bank.sweep({"task": load_data(opinions(60))}, wild)
    assert bank.tasks() == []


def test_every_point_can_be_scored_on_test_and_the_choice_is_devs_all_the_same(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    data = load_data(opinions(120))
    grid = Grid(("houlsby-4", "bitfit"), learning_rate=(1e-3, 1e-2), epochs=(2,))
    points = bank.sweep({"one": data}, grid, score_all=True)["one"].header.training["grid"]
    assert all(0 <= point["test"] <= 1 for point in points)
    entry = bank.show("one")
    chosen = max(points, key=lambda point: point["dev"])
    assert entry.header.metrics["dev"] == chosen["dev"]
    assert entry.header.metrics["test"]["value"] == pytest.approx(chosen["test"])  # the same tensors, served
    plain = bank.sweep({"two": data}, grid)["two"].header.training["grid"]
    assert [p["dev"] for p in plain] == [p["dev"] for p in points] and "test" not in plain[0]


def test_each_task_may_have_a_metric_of_its_own(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    tasks = {name: load_data(opinions(60, seed=i)) for i, name in enumerate(("one", "two"))}
    found = bank.sweep(tasks, Grid(("bitfit",), epochs=(1,)), metric={"one": "matthews"})
    assert [found[name].header.metrics["metric"] for name in tasks] == ["matthews", "accuracy"]


def test_rows_of_spans_are_long_and_words_left_out_are_counted(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    grid = Grid(("bitfit",), epochs=(1,))
    spans = bank.sweep({"riddle": load_data(riddles(40))}, grid)["riddle"].header
    assert spans.training["max_length"] == 384 and "words_left_out" not in spans.data
    with pytest.warns(UserWarning, match="left out of training"):
        tags = bank.sweep({"tags": load_data(colours(40))}, grid, max_length=6)["tags"].header
    assert tags.training["max_length"] == 6 and tags.data["words_left_out"] > 0


def _ended(planned: PlannedJob, dev: float | None = 0.5) -> RunnerEvent:
    job = planned.job
    result = JobResult("task", planned.key, to_dict(job.method), vars(job.settings), dev, None)
    return RunnerEvent(job=job, key=planned.key, result=result)


def _progress(planned: PlannedJob, step: int) -> RunnerEvent:
    progress = Progress(planned.job, step, 100, 1, 5, 0.1, "accuracy", None, 1.0, 1.0, 0)
    return RunnerEvent(job=planned.job, key=planned.key, progress=progress)


def test_the_time_left_does_not_jump_where_jobs_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time_left.time, "monotonic", lambda: clock[0])
    board, data = boards.Board(), load_data(opinions(20))
    jobs = [
        Job("task", data, Bottleneck(4), settings=Settings(learning_rate=rate))
        for rate in (1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4)
    ]
    planned = [PlannedJob(str(number), job, 3.0) for number, job in enumerate(jobs)]
    board.take(RunnerEvent(planned=planned))
    assert str(board.left) == "time left unknown" and board.jobs == {"task": 8}
    for step in range(1, 98):  # the last steps are not told
        clock[0] += 1.0
        for one in planned[:4]:
            board.take(_progress(one, step))
            board.left.seconds()
    shown = [str(board.left)]
    for one in planned[:4]:
        board.take(_ended(one))
        shown.append(str(board.left))
    assert len(set(shown)) == 1 and 95 < board.left.end - clock[0] < 110 and not board.running["task"]  # type: ignore[operator]
    for one in planned[4:]:  # all of the rest diverge: nothing is left to do
        board.take(_progress(one, 1))
        board.take(_ended(one, None))
    assert str(board.left) == "0s left"


def test_costs_of_jobs_weigh_in_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time_left.time, "monotonic", lambda: clock[0])
    job = Job("task", load_data(opinions(20)), Bottleneck(4))
    planned = [PlannedJob("stored", job, 50.0), PlannedJob("long", job, 3.0), PlannedJob("short", job, 1.0)]
    left = time_left.TimeLeft()
    left.take(RunnerEvent(planned=planned))
    left.take(replace(_ended(planned[0]), stored=True))
    assert left.seconds() is None and left.share == 0.0  # the stored result took no time of this process
    clock[0] = 30.0
    left.take(_ended(planned[1]))
    assert left.seconds() == pytest.approx(10.0) and left.share == 0.75


def test_learn_tries_the_small_grid_where_it_is_told_to(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    data, events, steps = load_data(opinions(40)), list[RunnerEvent](), list[Progress]()
    swept = bank.learn("one", data, sweep=True, settings={"seed": 3}, watch=steps.append, callbacks=[events.append])
    assert len(events[0].planned or ()) == 9 == len(swept.header.training["grid"])
    assert sum(event.result is not None for event in events) == 9 and len({id(p.job) for p in steps}) == 9
    assert swept.header.training["seed"] == 3
    events.clear()
    one = bank.learn("one", data, settings={"epochs": 2}, callbacks=[events.append])  # on a CPU one run, unless told to
    assert len(events[0].planned or ()) == 1 and "grid" not in one.header.training
    assert one.version == 2 and one.header.training["epochs"] == 2 and one.header.method == to_dict(Bottleneck(64))
    assert events[-2].result is not None and events[-2].result.dev == one.header.metrics["dev"]
    assert not list((tmp_path / "bank" / "work").iterdir())


@pytest.mark.parametrize(
    "given",
    [{"method": Bottleneck(4)}, {"settings": Settings()}, {"settings": {"learning_rate": 1e-3}}, {"fresh": True}],
)
def test_a_grid_together_with_a_choice_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    with pytest.raises(IntarsiaError, match="leave out the method"):
        bank.learn("one", load_data(opinions(40)), sweep=True, **given)
    assert not list((tmp_path / "bank").glob("work/*"))


def test_learn_asks_whether_the_grid_is_cheap_only_where_nothing_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(learning, "cheap_together", lambda jobs, _: asked.append(len(jobs)))
    bank, data = intarsia.open(tmp_path / "bank", tiny_with_words()), load_data(opinions(30))
    quick = {"epochs": 1}
    bank.learn("one", data, Bottleneck(4), settings=quick)
    bank.learn("one", data, settings=quick)
    bank.learn("one", data, settings=Settings(epochs=1))
    bank.learn("one", data, Bottleneck(4), sweep=False, settings=quick)
    assert not asked
    bank.learn("one", data, settings={"metric": "matthews", "patience": None})
    assert asked == [9]
