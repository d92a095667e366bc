"""Ctrl-C, SIGTERM and SIGHUP store the state; a second signal ends the run at once; ignored signals stay ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from intarsia.train.checkpoint import read
from intarsia.train.interrupts import Interrupted, Interrupts
from intarsia.train.loop import train
from intarsia.train.progress import Progress
from tests.support.families import tiny_with_words
from tests.support.jobs import opinion_job

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stores_the_state_of_its_step(tmp_path: Path, number: signal.Signals) -> None:
    encoder, path = tiny_with_words(), tmp_path / "state.safetensors"

    def watch(progress: Progress) -> None:
        if progress.step == 3:
            signal.raise_signal(number)

    outside = signal.getsignal(number)
    if outside is signal.SIG_IGN:  # as under nohup: a signal that the process ignores stays ignored
        signal.signal(number, signal.SIG_DFL)
    before = signal.getsignal(number)
    try:
        with pytest.raises(Interrupted) as caught:
            train(opinion_job(), encoder, state_file=path, watch=watch)
        assert caught.value.number == number and signal.getsignal(number) is before
    finally:
        signal.signal(number, outside)
    stored = read(path)
    assert stored is not None and stored[0].step in (3, 4)
    resumed, whole = train(opinion_job(), encoder, state_file=path), train(opinion_job(), encoder)
    assert all(torch.equal(tensor, whole.tensors[name]) for name, tensor in resumed.tensors.items())


def test_the_second_signal_ends_it_at_once() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)


def test_an_ignored_signal_and_a_handler_of_the_program_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*_: object) -> None:
        seen.append(1)

    seen: list[int] = []
    before = [signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, own)]
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            assert not interrupts.requested and seen == [1]
    finally:
        for number, handler in zip((signal.SIGHUP, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


LEARN = """
import sys
from intarsia.cli import main
sys.argv = ["intarsia", "learn", "opinion", sys.argv[1], "--encoder", sys.argv[2], "--method", "houlsby-8",
            "--epochs", "40", "--batch-size", "4", "--bank", sys.argv[3]]
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM handlers")
def test_the_command_exits_with_the_signals_code(tmp_path: Path) -> None:
    import csv

    from tests.support.families import opinions, save_tiny

    base = save_tiny(tmp_path / "base")
    with (tmp_path / "opinion.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(opinions(200))
    command = [sys.executable, "-c", LEARN, str(tmp_path / "opinion.csv"), base, str(tmp_path / "bank")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "%" in line:
            process.send_signal(signal.SIGTERM)
            break
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 128 + signal.SIGTERM and "resume from the last checkpoint" in rest
    (state,) = (tmp_path / "bank" / "work").glob("opinion-*/state.safetensors")
    assert read(state) is not None
