"""Which sizes of passes are recorded: few, and those that pay."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from intarsia.encoder import recorded_passes
from intarsia.encoder.device_tables import DeviceTables, fixed_size


class Timed(recorded_passes.RecordedPass):
    """As on a GPU where recording takes half a second and a thousand tokens a millisecond."""

    def __init__(self, tables: DeviceTables, body: Any, pool: Any, *, kernels_loaded: bool) -> None:
        super().__init__(tables, body, pool, kernels_loaded=kernels_loaded)
        self.cost, self.seconds = 0.5, tables.size * 1e-6


def make(size: int) -> tuple[DeviceTables, Any]:
    return DeviceTables(size, 1, 4, 4, 32, 128, torch.device("cpu")), lambda: size


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> recorded_passes.RecordedPasses:
    monkeypatch.setattr(recorded_passes, "RecordedPass", Timed)
    return recorded_passes.RecordedPasses()


def test_a_pass_is_always_large_enough_and_its_kind_is_kept(recorded: recorded_passes.RecordedPasses) -> None:
    draw = random.Random(0)
    for _ in range(500):
        size, training = fixed_size(draw.randrange(1, 60000)), draw.random() < 0.5
        found = recorded.fitting(size, training, make)
        assert found.tables.size >= size and recorded.known[found.tables.size, training] is found


@pytest.mark.parametrize(("low", "high"), [(250, 4000), (16000, 18000), (30000, 34000)])
def test_recording_costs_no_more_than_it_saves(recorded: recorded_passes.RecordedPasses, low: int, high: int) -> None:
    draw = random.Random(1)
    sizes = [fixed_size(draw.randrange(low, high)) for _ in range(3000)]
    spent = sum(recorded.fitting(size, True, make).seconds for size in sizes)
    spent += 0.5 * len(recorded.known)
    everything = sum(sizes) * 1e-6 + 0.5 * len(set(sizes))  # each size recorded when it is first met
    one = len(sizes) * max(sizes) * 1e-6 + 0.5
    assert spent <= 1.1 * min(everything, one)


def test_a_few_steps_record_little(recorded: recorded_passes.RecordedPasses) -> None:
    draw = random.Random(2)
    for _ in range(40):
        recorded.fitting(fixed_size(draw.randrange(250, 4000)), True, make)
    assert len(recorded.known) <= 4


def test_two_sizes_that_vary_get_a_pass_each(recorded: recorded_passes.RecordedPasses) -> None:
    """A step in two parts, the second much smaller: it does not run in the first one's pass for long."""
    draw = random.Random(3)
    for _ in range(60):
        recorded.fitting(fixed_size(draw.randrange(60000, 65000)), True, make)
        small = recorded.fitting(fixed_size(draw.randrange(16000, 18000)), True, make)
    assert small.tables.size <= 20480


def test_next_size() -> None:
    sizes = [recorded_passes.next_size(n) for n in (1, 300, 1024, 1025, 5000, 33000)]
    assert sizes == [
        128,
        384,
        1024,
        1280,
        5120,
        40960,
    ]
