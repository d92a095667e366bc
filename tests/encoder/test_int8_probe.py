"""The verdict about int8: a trial in a process of its own, and its store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from intarsia.encoder import int8_probe
from intarsia.encoder.frozen import FrozenLinear, Projections
from intarsia.encoder.int8_probe import LIMITED, Verdict
from intarsia.errors import EncoderError

FAST = Verdict(
    float32={"16": 1.0}, few={"tokens": 16, "float32": 2.0, "int8": 1.0},
    full={"tokens": 1024, "float32": 0.3, "int8": 0.1},
)  # fmt: skip
SLOW = Verdict(few={"tokens": 16, "float32": 2.0, "int8": 1.0}, full={"tokens": 1024, "float32": 0.3, "int8": 0.29})
KILLED = 'import os, signal; print(\'{"float32": {"16": 1.0}}\', flush=True); os.kill(os.getpid(), signal.SIGILL)'


@pytest.fixture
def layers() -> list[FrozenLinear]:
    layers = [FrozenLinear(nn.Linear(8, 8)) for _ in range(4)]
    Projections((layers[0], layers[1], layers[2]))
    return layers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "intarsia"))
    monkeypatch.delenv(int8_probe.ISA, raising=False)
    return tmp_path / "intarsia"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, str]]]:
    """Let trials return these verdicts in order; return the environments they were given."""

    def install(*verdicts: Verdict) -> list[dict[str, str]]:
        given: list[dict[str, str]] = []
        waiting = list(verdicts)

        def trial(request: Any, environment: Any) -> Verdict:
            given.append(dict(environment))
            return waiting.pop(0)

        monkeypatch.setattr(int8_probe, "_trial", trial)
        return given

    return install


def test_layers_that_share_an_input_are_tried_together(layers: list[FrozenLinear]) -> None:
    assert int8_probe.groups(layers) == [(8, (8,), 1), (8, (8, 8, 8), 1)]


def test_a_good_verdict_is_stored_for_its_machine(
    layers: list[FrozenLinear], trials: Callable[..., list[dict[str, str]]], cache: Path
) -> None:
    given = trials(FAST, FAST)
    assert int8_probe.require(layers, "base") == FAST == int8_probe.require(layers, "base")
    assert len(given) == 1 and len(list(cache.iterdir())) == 1
    int8_probe.require(layers[3:], "another shape")
    assert len(given) == 2


def test_too_slow_is_said_with_the_times_and_tried_again(
    layers: list[FrozenLinear], trials: Callable[..., list[dict[str, str]]], cache: Path
) -> None:
    trials(SLOW, FAST)
    with pytest.raises(
        EncoderError, match=r"290\.00 ms in int8 and 300\.00 ms in float32 for 1024 tokens.*--precision"
    ):
        int8_probe.require(layers, "base")
    assert not cache.exists() and int8_probe.require(layers, "base") == FAST


@pytest.mark.parametrize("content", ["", "{", "[]", '{"few": 3}', '{"unknown": 1}', json.dumps(asdict(SLOW))])
def test_a_damaged_store_is_replaced(
    layers: list[FrozenLinear], trials: Callable[..., list[dict[str, str]]], cache: Path, content: str
) -> None:
    trials(FAST, FAST)
    int8_probe.require(layers, "base")
    (stored,) = cache.iterdir()
    stored.write_text(content)
    assert int8_probe.require(layers, "base") == FAST and json.loads(stored.read_text()) == asdict(FAST)


def test_a_cache_that_cannot_be_written_is_no_error(
    layers: list[FrozenLinear], trials: Callable[..., list[dict[str, str]]], tmp_path: Path
) -> None:
    (tmp_path / "intarsia").write_text("a file where the folder would be")
    given = trials(FAST, FAST)
    assert int8_probe.require(layers, "base") == FAST == int8_probe.require(layers, "base")
    assert len(given) == 2


def test_a_killed_trial_is_a_verdict_and_the_limit_is_tried(
    layers: list[FrozenLinear], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(int8_probe, "TRIAL", ("-c", KILLED))
    with pytest.raises(EncoderError, match=f"ended by SIGILL. With ONEDNN_MAX_CPU_ISA={LIMITED}: int8 does not work"):
        int8_probe.require(layers, "base")
    assert len(list(cache.iterdir())) == 1


def test_a_limit_that_helps_is_named(layers: list[FrozenLinear], trials: Callable[..., list[dict[str, str]]]) -> None:
    given = trials(Verdict("a crash", float32={"16": 0.9}), FAST)
    with pytest.raises(EncoderError, match=r"Set it before the program starts; float32 then runs at 90% of its speed"):
        int8_probe.require(layers, "base")
    assert int8_probe.ISA not in given[0] and given[1][int8_probe.ISA] == LIMITED


@pytest.mark.parametrize("code", ["", "print('no JSON')", "raise RuntimeError('no such operator')"])
def test_a_trial_without_a_result_is_a_problem(
    layers: list[FrozenLinear], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(int8_probe, "TRIAL", ("-c", code))
    found = int8_probe.verdict(layers)
    assert not found.works and found.problem is not None
    assert ("no such operator" in found.problem) == ("raise" in code)


def test_wrong_products_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.encoder import int8_trial

    with torch.no_grad():
        layers = int8_trial._layers(64, (32,))
        found = int8_trial._problem(layers)
        if found is not None:
            pytest.skip(found)
        product = torch.ops.onednn.qlinear_pointwise
        monkeypatch.setattr(
            torch.ops.onednn, "qlinear_pointwise", lambda *a: product(*a).clamp_(max=100.0)
        )  # as saturated sums
        assert "bound of its rounding" in (int8_trial._problem(layers) or "")
