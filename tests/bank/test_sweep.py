"""A sweep tries its grid, chooses on dev, scores the chosen one on test, and survives being killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia import files
from intarsia.bank.sweep import Moment, Point, Sweep
from intarsia.cli import sweep_table
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck, to_dict
from intarsia.tasks import load_data
from intarsia.train.grid import PAPER, SMALL, Grid, read_grid
from intarsia.train.job import Job, Settings
from intarsia.train.loop import Progress, train
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
    found = bank.sweep({"one": data}, grid, watch=lambda moment: seen.append(tokens[0]))
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

    def kill(moment: Moment) -> None:
        if moment.point is not None:
            seen.append(moment.point.key)
            if len(seen) == 2:
                raise Killed

    with pytest.raises(Killed):
        bank.sweep(tasks, GRID, together=2, watch=kill)
    again: list[tuple[str, bool]] = []

    def note(moment: Moment) -> None:
        if moment.point is not None:
            again.append((moment.point.key, moment.stored))

    found = bank.sweep(tasks, GRID, together=2, watch=note)
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
    sweep = Sweep(jobs, encoder, tmp_path)
    for job in (jobs[1], jobs[0]):
        sweep._done(job, ended[job.key(encoder.fingerprint)])
    again = Sweep(jobs, encoder, tmp_path)  # reads its points in the order of the grid
    assert list(again.points) == keys[:2]
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
    sweep = Sweep(jobs, encoder, tmp_path)
    sweep._done(jobs[0], worse)
    write, count = files.replace, [0]

    def cut(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == 2:  # the tensors are written, the point is not
            raise OSError("power cut")
        write(*arguments)

    monkeypatch.setattr(files, "replace", cut)
    with pytest.raises(OSError, match="power cut"):
        sweep._done(jobs[1], better)
    again = Sweep(jobs, encoder, tmp_path)
    assert len(again.points) == 1 and again.best("task")[0] == jobs[0]


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
    with pytest.warns(UserWarning, match="not learned from"):
        tags = bank.sweep({"tags": load_data(colours(40))}, grid, max_length=6)["tags"].header
    assert tags.training["max_length"] == 6 and tags.data["words_left_out"] > 0


def _point(rate: float, dev: float | None = 0.5) -> Point:
    settings = {"learning_rate": rate, "epochs": 10, "batch_size": 32, "seed": 0}
    return Point("task", str(rate), to_dict(Bottleneck(4)), settings, dev, None)


def _progress(rate: float, share: float) -> Moment:
    job = Job("task", load_data(opinions(20)), Bottleneck(4), settings=Settings(learning_rate=rate))
    return Moment(progress=Progress(job, round(100 * share), 100, 1, 5, 0.1, "accuracy", None, 1.0, 1.0, 0))


def test_the_time_left_does_not_jump_where_jobs_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(sweep_table.time, "monotonic", lambda: clock[0])
    board = sweep_table.Board()
    board.take(Moment(planned={"task": 8}))
    assert board.left() == "time left unknown"
    rates = (1e-4, 2e-4, 3e-4, 4e-4)
    moments = {rate: _progress(rate, 0.0) for rate in rates}
    for step in range(1, 98):  # the last steps are not told
        clock[0] += 1.0
        for moment in moments.values():
            board.take(Moment(progress=replace(moment.progress, step=step)))  # type: ignore[type-var]
            board.left()
    shown = [board.left()]
    for rate in rates:
        board.take(Moment(point=_point(rate)))
        shown.append(board.left())
    assert len(set(shown)) == 1 and 95 < board.end - clock[0] < 110 and not board.running["task"]  # type: ignore[operator]
    for rate in (5e-4, 6e-4, 7e-4, 8e-4):  # all of the rest diverge: nothing is left to do
        board.take(_progress(rate, 0.01))
        board.take(Moment(point=_point(rate, None)))
    assert board.left() == "0s left"


def test_the_small_grid_is_no_default_on_a_cpu(tmp_path: Path) -> None:
    assert not intarsia.open(tmp_path / "bank", tiny_with_words()).sweep_is_cheap(load_data(opinions(60)))
