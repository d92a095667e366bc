"""A sweep tries its grid, chooses on dev, scores the chosen one on test, and survives being killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import opinions, tiny_with_words

import intarsia
from intarsia.bank.sweep import Moment
from intarsia.errors import IntarsiaError
from intarsia.tasks import load_data
from intarsia.train.grid import PAPER, SMALL, Grid, read_grid

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
        ("methods = [", "is no TOML"),
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


def test_a_sweep_in_which_all_diverge_says_so(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    wild = Grid(("houlsby-4",), learning_rate=(1e30,), epochs=(1,))
    with pytest.raises(IntarsiaError, match="diverged"):
        bank.sweep({"task": load_data(opinions(60))}, wild)
    assert bank.tasks() == []
