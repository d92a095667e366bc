"""What is below a method's lowest layer, computed once: the same weights as without, in every place it may be kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import pack
from intarsia.errors import IntarsiaError
from intarsia.methods import BitFit, Bottleneck, Features, Full, LoRA, Method, TopLayers
from intarsia.methods.method import lowest
from intarsia.tasks import TaskData, load_data
from intarsia.train import step
from intarsia.train import trunk as trunk_module
from intarsia.train.chunk_file import ChunkFile
from intarsia.train.grid import Grid, read_grid
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train, train_together
from intarsia.train.progress import Progress
from intarsia.train.run import Run, Trained
from intarsia.train.step import logits_together
from intarsia.train.tokens import Tokenizer
from intarsia.train.trunk import TrunkCache, free_memory
from tests.support.families import opinions, tiny_with_words

PLENTY = 1 << 30
UPPER = Bottleneck(6, layers=(1, 2))
TOP = Bottleneck(4, layers=(2,))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk_module, "CHUNK", {"cpu": 40})


def exact() -> Encoder:
    return tiny_with_words().to(dtype=torch.float64)


def job(method: Method = UPPER, data: TaskData | None = None, name: str = "one", **changes: object) -> Job:
    options = {"learning_rate": 3e-3, "epochs": 3, "batch_size": 6, "trunk_dropout": False, **changes}
    return Job(name, data or load_data(opinions(40)), method, settings=Settings(**options))  # type: ignore[arg-type]


def furthest(a: object, b: object) -> float:
    assert isinstance(a, Trained) and isinstance(b, Trained) and a.tensors.keys() == b.tensors.keys()
    return max(float((a.tensors[k] - b.tensors[k]).abs().max()) for k in a.tensors)


def together(jobs: list[Job], encoder: Encoder, seats: int, **options: Any) -> dict[str, Trained | IntarsiaError]:
    found: dict[str, Trained | IntarsiaError] = {}
    train_together(jobs, encoder, together=seats, done=lambda j, r: found.__setitem__(j.name, r), **options)
    return found


@contextmanager
def counted(encoder: Encoder) -> Iterator[list[int]]:
    """Tokens that went through each layer."""
    tokens = [0] * encoder.shape.layers
    handles = []
    for i, layer in enumerate(encoder.model.encoder.layer):

        def note(_: Any, args: Any, i: int = i) -> None:
            tokens[i] += args[0].shape[1]

        handles.append(layer.attention.register_forward_pre_hook(note))
    yield tokens
    for handle in handles:
        handle.remove()


class Quiet(Noise):
    """Dropout from a layer on: what a pass with a prefix does, in a pass without one."""

    encoder: Encoder
    first: int

    @property
    def dropout(self) -> bool:
        current = self.encoder.switchboard.current
        return self.wanted and (current is None or current.span.now >= self.first)

    @dropout.setter
    def dropout(self, wanted: bool) -> None:
        self.wanted = wanted


@pytest.mark.parametrize("dropout", [False, True], ids=["no-dropout", "dropout"])
@pytest.mark.parametrize("method", [UPPER, TOP, LoRA(3, layers=(1, 2)), TopLayers(1)], ids=lambda m: m.name)
def test_training_ends_where_it_would_with_the_lower_layers_in_every_pass(
    method: Method, dropout: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = exact()
    kept = train(job(method, dropout=dropout), encoder)

    class Own(Quiet):
        pass

    Own.encoder, Own.first = encoder, lowest(method, encoder.shape)
    monkeypatch.setattr(step, "Noise", Own)
    monkeypatch.setattr(step, "_trunk_states", lambda *_: None)
    whole = train(job(method, dropout=dropout), encoder)
    assert furthest(kept, whole) <= 1e-9
    assert [h["loss"] for h in kept.state.history] == pytest.approx([h["loss"] for h in whole.state.history], abs=1e-9)


def test_dropout_below_is_on_unless_it_is_turned_off() -> None:
    encoder = exact()
    on, off = (train(job(dropout=True, trunk_dropout=p), encoder) for p in (True, False))
    assert furthest(on, off) > 1e-4
    on, off = (train(job(dropout=False, trunk_dropout=p), encoder) for p in (True, False))
    assert furthest(on, off) <= 1e-9


@pytest.mark.parametrize("method", [Bottleneck(4), BitFit(), Full(), Features()], ids=lambda m: m.name)
def test_a_method_that_acts_in_the_lowest_layer_has_no_prefix(method: Method) -> None:
    encoder = tiny_with_words()
    changes = {"epochs": 1, "dropout": True}
    assert furthest(*(train(job(method, trunk_dropout=p, **changes), encoder) for p in (True, False))) == 0.0


@pytest.mark.parametrize("seats", [1, 3, 9])
def test_nine_jobs_take_each_row_through_the_lower_layers_once(seats: int) -> None:
    encoder, data = exact(), load_data(opinions(40))
    jobs = [job(UPPER, data, f"job{i}", seed=i, learning_rate=1e-3 * (1 + i % 3), dropout=False) for i in range(9)]
    with counted(encoder) as tokens:
        found = together(jobs, encoder, seats)
    rows = encoder.tokenize([e.text for e in (*data.train, *data.dev)])
    assert tokens[0] == sum(len(row.ids) for row in rows)
    assert tokens[1] == tokens[2] == 9 * 3 * tokens[0]  # nine jobs, three epochs
    for j in (jobs[0], jobs[8]):
        assert furthest(found[j.name], train(j, encoder)) <= 1e-9


def test_jobs_share_a_pass_only_where_their_dropout_is_the_same() -> None:
    encoder, data = exact(), load_data(opinions(30))
    seen: list[int] = []
    plain = encoder.forward

    def forward(batch: Any, groups: Any = (), **options: Any) -> Any:
        seen.append(len(groups))
        return plain(batch, groups, **options)

    encoder.forward = forward  # type: ignore[method-assign]

    def most(*jobs: Job) -> int:
        seen.clear()
        together([dataclasses.replace(j, name=f"job{i}") for i, j in enumerate(jobs)], encoder, 4)
        return max(seen)

    drops = {"data": data, "epochs": 1, "dropout": True}
    assert most(job(UPPER, **drops), job(LoRA(2, layers=(1,)), **drops)) == 2  # type: ignore[arg-type]
    assert most(job(UPPER, **drops), job(TOP, **drops)) == 1  # type: ignore[arg-type]
    assert most(job(UPPER, **drops), job(UPPER, trunk_dropout=True, **drops)) == 1  # type: ignore[arg-type]
    still = {**drops, "dropout": False}
    assert most(job(UPPER, **still), job(TOP, **still)) == 2  # type: ignore[arg-type]


def test_jobs_with_different_lowest_layers_begin_at_the_lowest_of_them() -> None:
    encoder, data = exact(), load_data(opinions(40))
    jobs = [job(m, data, f"job{i}", dropout=False, epochs=2 + i) for i, m in enumerate((UPPER, TOP, Bottleneck(3)))]
    found = together(jobs, encoder, 3)
    for j in jobs:
        assert furthest(found[j.name], train(j, encoder)) <= 1e-9


@pytest.mark.parametrize("dropout", [False, True], ids=["no-dropout", "dropout"])
def test_wherever_states_are_kept_the_weights_are_the_same(dropout: bool, tmp_path: Path) -> None:
    encoder = exact()
    expected = train(job(dropout=dropout), encoder)
    sizes = []
    for memory, disk in ((PLENTY, 0), (0, PLENTY), (20_000, PLENTY), (20_000, 30_000), (0, 0)):
        cache = TrunkCache(encoder, tmp_path, memory_budget=memory, disk_budget=disk)
        used: dict[str, int] = {}

        def watch(_: Progress, cache: TrunkCache = cache, used: dict[str, int] = used) -> None:
            for where in ("memory", "disk"):
                used[where] = sum(entry.used(where) for entry in cache.entries.values())

        one = job(dropout=dropout)
        if memory + disk < PLENTY:
            with pytest.warns(UserWarning, match="computed at each use"), counted(encoder) as tokens:
                found = train(one, encoder, trunk=cache, watch=watch)
        else:
            with counted(encoder) as tokens:
                found = train(one, encoder, trunk=cache, watch=watch)
        assert furthest(found, expected) <= 1e-9
        assert used["memory"] <= memory and used["disk"] <= disk
        assert not list(tmp_path.iterdir()) and not cache.entries
        sizes.append((used["memory"], used["disk"], tokens[0]))
    (all_memory, _, once), (_, all_disk, also_once), (some, rest, _), (_, _, often), (_, _, always) = sizes
    assert all_memory == all_disk == some + rest and some > 10_000 and rest > 10_000
    assert once == also_once < often < always


def test_a_disk_that_is_full_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = exact()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ChunkFile, "write", full)
    cache = TrunkCache(encoder, tmp_path, memory_budget=0, disk_budget=PLENTY)
    with pytest.warns(UserWarning, match="computed at each use"):
        found = train(job(), encoder, trunk=cache)
    assert furthest(found, train(job(), encoder)) <= 1e-9


class Killed(Exception):
    pass


def killed(at: int, encoder: Encoder, folder: Path, **budgets: int) -> None:
    def kill(progress: Progress) -> None:
        if progress.step == at:
            raise Killed

    cache = TrunkCache(encoder, folder, **budgets)  # type: ignore[arg-type]
    with pytest.raises(Killed):
        train(job(), encoder, state_file=folder / "state.safetensors", watch=kill, save_every=0.0, trunk=cache)


@pytest.mark.parametrize("memory", [0, PLENTY], ids=["disk", "memory"])
@pytest.mark.parametrize("at", [2, 7])
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(at: int, memory: int, tmp_path: Path) -> None:
    encoder = tiny_with_words()
    expected = train(job(), encoder)
    killed(at, encoder, tmp_path, memory_budget=memory, disk_budget=PLENTY)
    cache = TrunkCache(encoder, tmp_path, memory_budget=memory, disk_budget=PLENTY)
    with counted(encoder) as tokens:
        found = train(job(), encoder, state_file=tmp_path / "state.safetensors", trunk=cache)
    assert furthest(found, expected) == 0.0
    if memory == 0 and at == 7:  # all training rows and the dev rows were on disk
        assert tokens[0] == 0


def test_torn_and_foreign_files_are_computed_again(tmp_path: Path) -> None:
    encoder = tiny_with_words()
    expected = train(job(), encoder)
    damages = {
        "a chunk": lambda content: content[:-900] + bytes(64) + content[-836:],
        "the end": lambda content: content[:-1],
        "another": lambda content: b"x" * len(content),
        "empty": lambda content: b"",
    }
    for name, damage in damages.items():
        folder = tmp_path / name
        folder.mkdir()
        killed(7, encoder, folder, memory_budget=0, disk_budget=PLENTY)
        stored = list(folder.glob("trunk-*.states"))
        assert len(stored) == 2  # train and dev
        for path in stored:
            path.write_bytes(damage(path.read_bytes()))
        cache = TrunkCache(encoder, folder, memory_budget=0, disk_budget=PLENTY)
        with counted(encoder) as tokens:
            found = train(job(), encoder, state_file=folder / "state.safetensors", trunk=cache)
        assert furthest(found, expected) == 0.0 and tokens[0] > 0


def test_states_of_data_that_nobody_learns_from_make_room(tmp_path: Path) -> None:
    encoder = exact()
    jobs = [job(TOP, load_data(opinions(40, seed=i)), f"job{i}", epochs=2) for i in range(3)]
    rows = [encoder.tokenize([e.text for e in (*j.data.train, *j.data.dev)]) for j in jobs]
    tokens = [sum(len(r.ids) for r in part) for part in rows]
    need = max(tokens) * 32 * 8
    for budgets in ({"memory_budget": need, "disk_budget": 0}, {"memory_budget": 0, "disk_budget": need}):
        cache = TrunkCache(encoder, tmp_path, **budgets)  # type: ignore[arg-type]
        with counted(encoder) as through:
            together(jobs, encoder, 1, trunk=cache)
        assert through[0] == sum(tokens)  # no row twice, though only one job's states fit
    assert not list(tmp_path.iterdir())


def test_other_layers_data_and_bases_have_other_files(tmp_path: Path) -> None:
    encoder, other = exact(), tiny_with_words(seed=1).to(dtype=torch.float64)
    data, more = load_data(opinions(30)), load_data(opinions(30, seed=1))
    for base, layer, part in ((encoder, 1, data), (encoder, 2, data), (encoder, 1, more), (other, 1, data)):
        cache = TrunkCache(base, tmp_path, memory_budget=0, disk_budget=PLENTY)
        tokens = Tokenizer(base)(part, 16)["train"]
        found = cache.states(layer, [(tokens, [3, 0, 3]), (tokens, [5])])
        segments = [tokens.segments[r] for r in (3, 0, 3, 5)]
        assert (found - base.states_below(pack(segments), layer)).abs().max() <= 1e-9
    assert len(list(tmp_path.iterdir())) == 4


def test_evaluation_uses_what_is_kept() -> None:
    encoder = exact()
    runs = [Run(job(trunk_dropout=p), encoder) for p in (True, False)]
    with torch.no_grad():
        whole, kept = (logits_together([(run, range(4))], "dev")[0] for run in runs)
    assert (whole - kept).abs().max() <= 1e-9
    with counted(encoder) as tokens, torch.no_grad():
        logits_together([(runs[1], range(4))], "dev")
    assert tokens[0] == 0 and tokens[1] > 0


def test_the_setting_is_part_of_a_job_and_of_a_grid(tmp_path: Path) -> None:
    assert Settings().trunk_dropout
    keys = {job(trunk_dropout=p).key("base") for p in (True, False)}
    assert len(keys) == 2 and job().describe()["trunk_dropout"] is False
    path = tmp_path / "grid.toml"
    path.write_text('methods = ["houlsby-8"]\nprefix_dropout = false\n')
    grid, data = read_grid(str(path)), load_data(opinions(30))
    assert not grid.jobs("one", data)[0].settings.trunk_dropout
    assert not grid.jobs("one", data, trunk_dropout=None)[0].settings.trunk_dropout
    assert grid.jobs("one", data, trunk_dropout=True)[0].settings.trunk_dropout
    assert Grid().jobs("one", data)[0].settings.trunk_dropout
    path.write_text("trunk_dropout = [false]\n")
    with pytest.raises(IntarsiaError, match="true or false was expected"):
        read_grid(str(path))


def test_free_memory_is_a_sensible_number() -> None:
    assert 1 << 20 < free_memory() < 1 << 50
