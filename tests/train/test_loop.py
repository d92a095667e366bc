"""The loop learns, keeps the best epoch, repeats exactly, and survives being killed."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import EncoderError, IntarsiaError
from intarsia.tasks import Example, load_data
from intarsia.tasks.task_kind import TaskKind
from intarsia.train.loop import train
from intarsia.train.progress import Progress
from intarsia.train.run import Run, Trained
from intarsia.train.step import step_together
from tests.support.families import opinions, save_tiny, tiny_with_words
from tests.support.jobs import opinion_job


def same(a: Trained, b: Trained) -> bool:
    return all(torch.equal(a.tensors[k], b.tensors[k]) for k in a.tensors) and a.tensors.keys() == b.tensors.keys()


def test_what_was_learned_from_other_data_is_another_run() -> None:
    data = load_data(opinions(80))
    bare, other = (dataclasses.replace(data, train=rows, source={}) for rows in (data.train, data.train[1:]))
    assert opinion_job(bare).key("") == opinion_job(bare).key("") != opinion_job(other).key("")


def test_it_learns_and_keeps_the_best_epoch() -> None:
    encoder = tiny_with_words()
    seen: list[Progress] = []
    trained = train(opinion_job(load_data(opinions(400)), epochs=6, batch_size=16), encoder, watch=seen.append)
    history = trained.state.history
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]
    assert trained.state.best == max(h["accuracy"] for h in history) >= 0.9
    assert [h["epoch"] for h in history] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].step == seen[-1].steps == trained.state.step
    assert seen[-1].seconds_left == 0 and seen[-1].tokens_per_second > 0


def test_one_label_for_all_texts_is_noted() -> None:
    task_kind, rows = TaskKind("label", ("a", "b")), [Example("x", None, "a"), Example("y", None, "b")]
    alike, apart = np.array([[0.4, 0.6], [0.1, 0.9]]), np.array([[0.6, 0.4], [0.1, 0.9]])
    assert task_kind.always(rows, alike) == "b" and task_kind.always(rows, apart) is None
    assert task_kind.always(rows[1:], alike[1:]) is None  # as they should
    assert (
        TaskKind("score").always([Example("x", None, 1.0), Example("y", None, 2.0)], np.array([[1.0], [1.0]])) is None
    )


def test_it_overfits_a_small_batch() -> None:
    encoder = tiny_with_words()
    run = Run(opinion_job(learning_rate=3e-3, epochs=50), encoder)
    losses = [step_together([(run, range(8))])[0] for _ in range(80)]
    assert sum(losses[-5:]) / 5 < 0.1


@pytest.mark.parametrize("kind", ["labels", "score"])
def test_other_kinds_learn_too(kind: str) -> None:
    rows = opinions(400)
    for i, row in enumerate(rows):
        good = row["label"] == "yes"
        row["label"] = (["yes", "short"] if i % 3 else ["yes"]) if good and kind == "labels" else row["label"]  # type: ignore[assignment]
        if kind == "labels" and not isinstance(row["label"], list):
            row["label"] = ["no"]  # type: ignore[assignment]
        if kind == "score":
            row["label"] = 250.5 + 100 * good  # type: ignore[assignment]
    trained = train(opinion_job(load_data(rows, kind=kind), epochs=6, batch_size=16), tiny_with_words())  # type: ignore[arg-type]
    assert trained.state.best is not None and trained.state.best > 0.7
    if kind == "score":
        assert trained.learned.task_kind.mean == pytest.approx(300, abs=10)


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    encoder = tiny_with_words()
    first, again = train(opinion_job(), encoder), train(opinion_job(), encoder)
    assert same(first, again)
    assert not same(first, train(opinion_job(seed=1), encoder))


def test_the_base_is_checked_at_the_end() -> None:
    encoder = tiny_with_words()

    def meddle(_: Progress) -> None:
        encoder.model.embeddings.word_embeddings.weight.data[7, 3] += 1e-3

    with pytest.raises(EncoderError, match="has changed"):
        train(opinion_job(epochs=1), encoder, watch=meddle)


def test_divergence_is_an_error_that_says_what_to_do() -> None:
    encoder = tiny_with_words()
    run = Run(opinion_job(), encoder)
    run.slots.buffer.fill_(float("nan"))
    with pytest.raises(IntarsiaError, match="learning rate below"):
        step_together([(run, [0, 1])])[0]


def test_patience_stops_early() -> None:
    trained = train(opinion_job(epochs=40, patience=2, learning_rate=3e-3), tiny_with_words())
    history = trained.state.history
    assert len(history) < 40
    scores = [epoch["accuracy"] for epoch in history]
    assert len(history) - 2 == 1 + scores.index(max(scores))  # what is as good as the best before is not better


class _Stop(Exception):
    pass


@pytest.mark.parametrize("stop_at", [1, 3, 8, 9, 16, 17, 31])
def test_a_run_resumed_anywhere_ends_with_the_same_weights(stop_at: int, tmp_path: Path) -> None:
    encoder = tiny_with_words()
    whole = train(opinion_job(), encoder)

    def interrupt(p: Progress) -> None:
        if p.step == stop_at:
            raise _Stop

    state = tmp_path / "state.safetensors"
    with pytest.raises(_Stop):
        train(opinion_job(), encoder, state_file=state, save_every=0.0, watch=interrupt)
    resumed: list[Progress] = []
    again = train(opinion_job(), encoder, state_file=state, watch=resumed.append)
    assert same(whole, again)
    assert [h["accuracy"] for h in whole.state.history] == [h["accuracy"] for h in again.state.history]
    assert resumed[0].resumed_at >= stop_at - 1


def test_a_torn_checkpoint_means_a_fresh_start(tmp_path: Path) -> None:
    encoder = tiny_with_words()
    state = tmp_path / "state.safetensors"
    state.write_bytes(b"\x08\0\0\0\0\0\0\0{}      half a file")
    with pytest.warns(UserWarning, match="is damaged and is not used"):
        trained = train(opinion_job(), encoder, state_file=state)
    assert same(trained, train(opinion_job(), encoder))


KILLED = """
import sys
from pathlib import Path
from intarsia.encoder.encoder import Encoder
from intarsia.train.loop import train
from tests.support.jobs import opinion_job

def watch(p):
    print(p.step, flush=True)
    if p.step == 13:
        sys.stdin.read()  # wait here to be killed

train(opinion_job(), Encoder.load(sys.argv[1]), state_file=Path(sys.argv[2]), save_every=0.0, watch=watch)
"""


def test_kill_9_and_resume(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "base")
    state = tmp_path / "state.safetensors"
    root = Path(__file__).parents[2]  # `-c` puts the working directory on the path, and `tests` is there
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, folder, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    for line in process.stdout:
        if line.strip() == "13":
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()
    encoder = Encoder.load(folder)
    resumed: list[Progress] = []
    again = train(opinion_job(), encoder, state_file=state, watch=resumed.append)
    assert resumed[0].resumed_at == 12
    assert same(train(opinion_job(), Encoder.load(folder)), again)
