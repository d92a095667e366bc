"""Training in phases: killed and resumed in any of them, features computed once, and every method able to learn."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intarsia.display.board import Board
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.methods import (
    IA3,
    PAL,
    Bapna,
    BitFit,
    Bottleneck,
    DiffPruning,
    Features,
    Full,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Method,
    Pfeiffer,
    Prefix,
    TopLayers,
)
from intarsia.tasks import TaskData, load_data
from intarsia.tasks.heads import Pooling
from intarsia.train import features, progress
from intarsia.train.chunk_file import ChunkFile
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train, train_together
from intarsia.train.optimizer import AdamSettings
from intarsia.train.progress import Progress
from intarsia.train.run import Run, Trained
from intarsia.train.runner import PlannedJob, RunnerEvent
from intarsia.train.step import predict, step_together
from intarsia.train.trunk import TrunkCache
from tests.support.families import opinions, tiny_with_words


@cache
def encoder() -> Encoder:
    return tiny_with_words()


@cache
def data() -> TaskData:
    return load_data(opinions(40))


def job(method: Method, pooling: Pooling = "mean", **changes: Any) -> Job:
    options = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 8, **changes}
    return Job("opinion", data(), method, pooling, Settings(**options))


@cache
def whole(method: Method) -> Trained:
    """An uninterrupted run."""
    return train(job(method), encoder())


class _Stop(Exception):
    pass


def stop_at(step: int) -> Any:
    def watch(p: Progress) -> None:
        if p.step == step:
            raise _Stop

    return watch


TICKET = LotteryTicket(entries=200)
TWO_ROUNDS = LotteryTicket(entries=200, rounds=2)
GATES = DiffPruning(entries=200)


@pytest.mark.parametrize(
    ("method", "stops"),
    [
        (TICKET, (3,)),  # in the first phase, four steps an epoch
        (TICKET, (8,)),  # in its last step
        (TICKET, (9,)),  # in the first step of the second
        (TICKET, (10,)),
        (TICKET, (5, 9, 11, 16)),  # again and again
        (TWO_ROUNDS, (15, 18, 25, 26)),
        (GATES, (3, 8)),
        (GATES, (9,)),
        (GATES, (14,)),
        (Features(hidden=6, mix=True), (3, 6)),
    ],
    ids=lambda v: v.name if isinstance(v, Method) else "-".join(map(str, v)),
)
def test_a_run_killed_in_any_phase_ends_with_the_same_weights(
    method: Method, stops: tuple[int, ...], tmp_path: Path
) -> None:
    state = tmp_path / "state.safetensors"
    for step in stops:
        with pytest.raises(_Stop):
            train(job(method), encoder(), state_file=state, save_every=0.0, watch=stop_at(step))
    resumed: list[Progress] = []
    again = train(job(method), encoder(), state_file=state, watch=resumed.append)
    assert resumed[0].resumed_at == stops[-1] - 1
    expected = whole(method)
    assert again.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(again.tensors[k], expected.tensors[k]) for k in again.tensors)
    entries = zip(again.state.history, expected.state.history, strict=True)
    assert all({**a, "loss": 0} == {**b, "loss": 0} for a, b in entries)
    assert (again.state.best, again.state.best_epoch) == (expected.state.best, expected.state.best_epoch)


def test_each_phase_has_a_schedule_of_its_own_and_only_the_last_is_validated() -> None:
    trained = whole(TICKET)
    phases = [(h["phase"], "accuracy" in h) for h in trained.state.history]
    assert phases == [("dense-1", False)] * 2 + [("sparse-1", True)] * 2
    assert trained.state.step == 16 and trained.state.best_epoch in (3, 4)
    seen: list[Progress] = []
    train(job(TICKET, epochs=1), encoder(), watch=seen.append)
    steps = [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]  # an epoch ends with a report of its own
    assert [(p.step, p.steps, p.epochs) for p in seen] == [(step, 8, 2) for step in steps]


def test_patience_is_counted_from_the_last_phase_on() -> None:
    trained = train(job(TICKET, epochs=5, patience=1, learning_rate=1e-9), encoder())
    phases = [h["phase"] for h in trained.state.history]
    assert phases[:5] == ["dense-1"] * 5  # none is cut short
    assert 1 <= phases.count("sparse-1") <= 5


# ---- features


def states_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("states-*.chunks"), key=lambda path: -path.stat().st_size)  # train is the largest


def reading(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each pass that reads texts."""
    plain, read = features._compute, list[int]()

    def compute(*args: Any) -> torch.Tensor:
        read.append(len(args[1]))
        return plain(*args)

    monkeypatch.setattr(features, "_compute", compute)
    return read


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features_are_what_a_pass_gives(pooling: Pooling) -> None:
    from intarsia.encoder.packed import pack
    from intarsia.tasks.heads import pool

    run = Run(job(Features(), pooling), encoder())
    batch = pack(run.tokens["train"].segments)
    with torch.no_grad():
        expected = pool(encoder().forward(batch), batch, pooling)
    assert run.states("train").shape == (batch.rows, encoder().shape.layers, encoder().shape.width)
    assert torch.allclose(run.stored_states["train"][:, -1], expected, atol=1e-5)


def test_features_are_computed_once_and_read_after_that(tmp_path: Path) -> None:
    first = Run(job(Features()), encoder(), cache=tmp_path)
    files = states_in(tmp_path)
    assert len(files) == 2  # train and dev
    Run(job(Features(mix=True)), encoder(), cache=tmp_path)  # other models on the same features
    assert states_in(tmp_path) == files
    for file, part in zip(files, ("train", "dev"), strict=True):
        rows = first.stored_states[part].numel() * 4
        chunks = ChunkFile(file, [rows])  # all of it is one pass
        chunks.write(0, (torch.from_numpy(chunks.read(0, 0, rows)).view(torch.float32) + 1.0).numpy().view(np.uint8))
    second = Run(job(Features()), encoder(), cache=tmp_path)
    assert all(torch.equal(second.stored_states[part], first.stored_states[part] + 1.0) for part in first.stored_states)


def test_a_torn_features_file_is_computed_again(tmp_path: Path) -> None:
    first = Run(job(Features()), encoder(), cache=tmp_path)
    files = states_in(tmp_path)
    files[0].write_bytes(files[0].read_bytes()[:-7])
    files[1].write_bytes(b"")
    second = Run(job(Features()), encoder(), cache=tmp_path)
    assert all(torch.equal(second.stored_states[part], first.stored_states[part]) for part in first.stored_states)
    assert states_in(tmp_path) == files


def test_an_interrupted_reading_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(features, "TOKENS_A_PASS", 40)
    read = reading(monkeypatch)
    whole = Run(job(Features()), encoder()).stored_states
    passes = len(read)
    shares: list[float] = []

    def stop(share: float, left: float) -> None:
        shares.append(share)
        if len(shares) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(job(Features()), encoder(), cache=tmp_path, report=stop)
    assert 0 < shares[0] < shares[1] < shares[2] < 1 and len(read) == passes + 3
    again = Run(job(Features()), encoder(), cache=tmp_path, report=lambda *progress: shares.append(progress[0]))
    assert len(read) == 2 * passes and shares[-1] == 1.0  # what was read before was not read again
    assert all(torch.equal(again.stored_states[part], whole[part]) for part in whole)


def test_a_full_disk_only_costs_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    whole = Run(job(Features()), encoder()).stored_states
    monkeypatch.setattr(ChunkFile, "write", full)
    run = Run(job(Features()), encoder(), cache=tmp_path)
    assert all(torch.equal(run.stored_states[part], whole[part]) for part in whole) and not states_in(tmp_path)
    monkeypatch.setattr(features, "free_disk", lambda _: 1000)
    Run(job(Features()), encoder(), cache=tmp_path)
    assert not states_in(tmp_path)


def test_a_queue_reads_a_text_once_for_all_its_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = reading(monkeypatch)
    jobs = [job(method, seed=seed) for seed in (0, 1) for method in (Features(), Features(mix=True))]
    ended: list[Any] = []
    trunk = TrunkCache(encoder(), tmp_path)
    train_together(jobs, encoder(), trunk=trunk, done=lambda _, result: ended.append(result))
    assert len(ended) == 4 and all(isinstance(result, Trained) for result in ended)
    assert len(read) == 2  # train and dev


def test_a_watcher_is_told_how_far_the_base_has_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(features, "TOKENS_A_PASS", 40)
    clock = iter(range(10**6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    told: list[Progress] = []
    trained = train(job(Features()), encoder(), watch=told.append)
    before = [p for p in told if p.reading is not None]
    assert trained.state.seconds > len(told)  # reading counts, too
    assert before == told[: len(before)] and len(before) > 3
    assert before[0].reading is not None and 0 < before[0].reading < 1 and before[0].seconds_left > 0
    text = str(before[0])
    assert "computing the base's states" in text and "left" in text and "nan" not in text and "loss" not in text
    board = Board()
    board.take(RunnerEvent(planned=[PlannedJob("key", before[0].job, 1.0)]))
    board.take(RunnerEvent(job=before[0].job, key="key", progress=before[0]))
    assert board.reading.startswith("opinion: ") and "left" in board.reading
    board.take(RunnerEvent(job=before[0].job, key="key", progress=told[-1]))
    assert board.reading == ""


def test_features_of_another_base_pooling_or_length_are_not_mistaken(tmp_path: Path) -> None:
    Run(job(Features()), encoder(), cache=tmp_path)
    for made in (job(Features(), "cls"), job(Features(), max_length=4)):
        before = len(states_in(tmp_path))
        Run(made, encoder(), cache=tmp_path)
        assert len(states_in(tmp_path)) == before + 2
    before = len(states_in(tmp_path))
    Run(job(Features()), tiny_with_words(seed=1), cache=tmp_path)
    assert len(states_in(tmp_path)) == before + 2


# ---- every method learns

LEARNERS: dict[str, tuple[Method, float]] = {
    "houlsby": (Bottleneck(8), 4e-3),
    "single": (Bottleneck(8, places_in_layer="ffn"), 4e-3),
    "attention-only": (Bottleneck(8, places_in_layer="attention"), 4e-3),
    "parallel": (Bottleneck(8, parallel=True), 4e-3),
    "pfeiffer": (Pfeiffer(8), 4e-3),
    "bapna": (Bapna(8), 4e-3),
    "pal": (PAL(8, 2), 4e-3),
    "lora": (LoRA(4, targets=LINEAR_SITES), 3e-3),
    "ia3": (IA3(), 3e-2),
    "prefix": (Prefix(8), 5e-2),
    "bitfit": (BitFit(), 1e-2),
    "layernorm": (LayerNorms(), 1e-2),
    "features": (Features(), 1e-1),
    "features-mix": (Features(mix=True), 1e-1),
    "features-hidden": (Features(hidden=16), 3e-2),
    "top": (TopLayers(1), 2e-3),
    "full": (Full(), 3e-3),
    "lt-sft": (LotteryTicket(0.05), 3e-3),
    "diff-pruning": (DiffPruning(0.05), 3e-3),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_it_overfits_a_small_batch(name: str) -> None:
    method, rate = LEARNERS[name]
    plain = AdamSettings(bias_correction=False)  # larger steps
    run = Run(job(method, learning_rate=rate, epochs=8, adam=plain), encoder())
    rows = range(8)
    while True:
        losses = [step_together([(run, rows)])[0] for _ in range(32)]
        assert run.state.phase > 0 or losses[0] > 0.6
        if run.last_phase:
            break
        run.next_phase()
    right = predict(run, "train")[rows, run.targets[:8]]  # probabilities, without dropout
    assert -np.log(right).mean() < 0.1
    encoder().check_frozen()
