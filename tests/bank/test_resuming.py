"""A run that was killed after it stored its inlay does not store it again; altered results are not used."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.bank import learning, work
from intarsia.bank import sweep as sweep_module
from intarsia.bank.sweep import SweepResults
from intarsia.bank.work import unfinished, working_folder
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError, Refused
from intarsia.tasks import load_data
from intarsia.train.grid import Grid
from intarsia.train.loop import train
from tests.support.families import opinions, tiny_with_words

QUICK = Settings(epochs=1, batch_size=16, learning_rate=1e-2)
GRID = Grid(("houlsby-4",), (1e-3, 1e-2), (1,), (16,))


class Killed(BaseException):
    pass


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def test_a_learned_task_is_stored_once(tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = intarsia.open(tmp_path, encoder)

    def learn(**options: Any) -> int:
        return bank.learn("a", opinions(40), Bottleneck(4), settings=QUICK, **options).version

    with monkeypatch.context() as patch:
        patch.setattr(learning, "clear", die)
        with pytest.raises(Killed):
            learn()
    assert [entry.version for entry in bank.versions("a")] == [1]
    assert learn() == 1  # the same run
    assert not list((tmp_path / "work").iterdir())
    assert learn() == 2  # another run
    with monkeypatch.context() as patch:
        patch.setattr(learning, "clear", die)
        with pytest.raises(Killed):
            learn()
    assert learn(fresh=True) == 4
    assert len({entry.header.training["run"] for entry in bank.versions("a")}) == 4


def test_a_kill_while_the_folder_is_cleared(tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = intarsia.open(tmp_path, encoder)
    with monkeypatch.context() as patch:
        patch.setattr(work.files, "remove_folder", die)  # the state is gone, the run's id is not
        with pytest.raises(Killed):
            bank.learn("a", opinions(40), Bottleneck(4), settings=QUICK)
    (folder,) = (tmp_path / "work").glob("a-*/")
    assert [path.name for path in folder.iterdir()] == ["run"]
    assert bank.learn("a", opinions(40), Bottleneck(4), settings=QUICK).version == 1
    bank.remove("a")
    assert bank.learn("a", opinions(40), Bottleneck(4), settings=QUICK).version == 1


@pytest.mark.parametrize("after", [1, 2])
def test_a_sweep_stores_each_task_once(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    bank = intarsia.open(tmp_path, encoder)
    tasks = {name: load_data(opinions(40, seed=number)) for number, name in enumerate("ab")}
    real, calls = bank.store.add, [0]

    def add(inlay: Any, **options: Any) -> Any:
        entry = real(inlay, **options)
        calls[0] += 1
        if calls[0] == after:
            raise Killed
        return entry

    with monkeypatch.context() as patch:
        patch.setattr(bank.store, "add", add)
        with pytest.raises(Killed):
            bank.sweep(tasks, GRID)
    entries = bank.sweep(tasks, GRID)
    assert {name: entry.version for name, entry in entries.items()} == {"a": 1, "b": 1}
    assert not list((tmp_path / "work").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(sweep_module, "clear", die)
        with pytest.raises(Killed):
            bank.sweep(tasks, GRID)
    assert {name: entry.version for name, entry in bank.sweep(tasks, GRID).items()} == {"a": 2, "b": 2}


def test_altered_results_of_a_sweep_run_again(tmp_path: Path, encoder: Encoder) -> None:
    jobs = GRID.jobs("a", load_data(opinions(40)))
    keys = [job.key(encoder.fingerprint) for job in jobs]
    results = SweepResults(jobs, encoder, tmp_path)
    for job, key, score in zip(jobs, keys, (0.6, 0.4), strict=True):
        trained = train(job, encoder)
        trained.state.best = score
        results.add(job, key, trained)
    assert SweepResults(jobs, encoder, tmp_path).found.keys() == set(keys)
    text = (tmp_path / f"{keys[1]}.json").read_text()
    (tmp_path / f"{keys[1]}.json").write_text(text.replace('"dev": 0.4', '"dev": 0.8'))
    assert SweepResults(jobs, encoder, tmp_path).found.keys() == {keys[0]}
    tensors = tmp_path / f"{keys[0]}.safetensors"
    altered = bytearray(tensors.read_bytes())
    altered[-1] ^= 1
    tensors.write_bytes(altered)
    with pytest.warns(UserWarning, match="is damaged"):
        assert SweepResults(jobs, encoder, tmp_path).found == {}


def test_a_working_folder_has_one_owner(tmp_path: Path) -> None:
    """Threads lock like processes: each opens the file anew."""
    folder, inside, most, refused = tmp_path / "work" / "a-1", [0], [0], [0]

    def enter() -> None:
        for _ in range(60):
            try:
                with working_folder(folder):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1
            except Refused:
                refused[0] += 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and inside == [0] and not list((tmp_path / "work").iterdir())


def test_a_held_working_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "PATIENCE", 0)
    with working_folder(tmp_path / "a-1"), pytest.raises(Refused, match="Another process runs"):
        working_folder(tmp_path / "a-1").__enter__()
    assert unfinished(tmp_path) == []


def test_an_error_after_the_inlay_is_stored_does_not_make_it_look_lost(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = intarsia.open(tmp_path, encoder)
    real = Path.exists

    def exists(path: Path) -> bool:
        if path.parent.name == "work" and bank.store.versions("a"):
            raise PermissionError(1, "Operation not permitted", str(path))
        return real(path)

    monkeypatch.setattr(Path, "exists", exists)
    assert bank.learn("a", opinions(40), Bottleneck(4), settings=QUICK).version == 1


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_beyond_the_generators_are_refused(seed: int) -> None:
    with pytest.raises(IntarsiaError, match="seed must be at least 0"):
        Settings(seed=seed)
    with pytest.raises(IntarsiaError, match="seed must be at least 0"):
        load_data(opinions(40), seed=seed)


def test_the_largest_seed_and_the_length_0(tmp_path: Path, encoder: Encoder) -> None:
    bank, largest = intarsia.open(tmp_path, encoder), 2**63 - 1
    data = load_data(opinions(40), seed=largest)
    entry = bank.learn("a", data, Bottleneck(4), settings={"epochs": 1, "seed": largest})
    assert entry.header.training["seed"] == largest
    assert json.loads(entry.header_json)["training"]["seed"] == largest
    with pytest.raises(IntarsiaError, match="max_length must be greater than 0"):
        bank.learn("b", data, Bottleneck(4), settings={"max_length": 0})
