from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from intarsia.train.optimizer import Adam, AdamSettings, linear_rate
from intarsia.train.order import epoch_batches


def test_a_step_is_the_authors_formula() -> None:
    torch.manual_seed(0)
    start = torch.randn(1, 6, dtype=torch.float64)
    decay = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64)
    parameters = start.clone()
    adam = Adam(parameters, decay, AdamSettings(weight_decay=0.1, clip=1e9, bias_correction=False))
    m = v = torch.zeros_like(start)
    expected = start.clone()
    for step in range(4):
        g = torch.randn(1, 6, dtype=torch.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = 0.01 * (step + 1)
        expected = expected - rate * (m / (v.sqrt() + 1e-6) + 0.1 * decay * expected)  # no bias correction
        adam.step(g.clone(), torch.tensor([rate], dtype=torch.float64))
    assert torch.allclose(parameters, expected, atol=1e-14)


def test_with_bias_correction_a_step_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    start = torch.randn(1, 6, dtype=torch.float64)
    settings = AdamSettings(weight_decay=0.1, clip=1e9)
    parameters, theirs = start.clone(), start.clone().requires_grad_()
    ours = Adam(parameters, torch.ones(6, dtype=torch.float64), settings)
    plain = torch.optim.AdamW([theirs], lr=0.01, eps=1e-6, weight_decay=0.1)
    for step in range(5):
        theirs.grad = torch.randn(1, 6, dtype=torch.float64)
        ours.step(theirs.grad.clone(), torch.tensor([0.01], dtype=torch.float64), settings.corrections(step))
        plain.step()
        assert torch.allclose(parameters, theirs, rtol=1e-3 * 0.5**step)  # theirs decays before the step, ours with it
    assert AdamSettings(bias_correction=False).corrections(0) == (1.0, 1.0)


def test_slots_are_clipped_and_stepped_on_their_own() -> None:
    torch.manual_seed(0)
    start, g = torch.randn(3, 5), torch.tensor([[100.0], [0.01], [float("nan")]]) * torch.randn(3, 5)
    rates = torch.tensor([0.1, 0.2, 0.3])
    together = start.clone()
    adam = Adam(together, torch.ones(5), AdamSettings())
    adam.step(g.clone(), rates)
    for slot in range(2):  # the third diverged, and disturbs nobody
        alone = start[slot : slot + 1].clone()
        Adam(alone, torch.ones(5), AdamSettings()).step(g[slot : slot + 1].clone(), rates[slot : slot + 1])
        assert torch.equal(together[slot], alone[0])
    clipped = g[0] / g[0].norm()
    assert torch.allclose(adam.first[0], 0.1 * clipped)
    assert torch.allclose(adam.first[1], 0.1 * g[1])


def test_the_schedule_warms_up_and_decays_to_nothing() -> None:
    rates = [linear_rate(i, 100, 1.0, 0.1) for i in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0 and rates[-1] == pytest.approx(1 / 90)
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert linear_rate(0, 1, 1.0, 0.1) == 1.0


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=300),
    size=st.integers(1, 40),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
)
def test_an_epoch_sees_every_example_once(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    batches = epoch_batches(lengths, size, seed, epoch)
    assert sorted(r for b in batches for r in b) == list(range(len(lengths)))
    assert all(1 <= len(b) <= size for b in batches)
    assert len(batches) == -(-len(lengths) // size)
    assert batches == epoch_batches(lengths, size, seed, epoch)


def test_epochs_and_seeds_differ_and_lengths_are_neighbours() -> None:
    lengths = [i % 50 + 1 for i in range(512)]
    first = epoch_batches(lengths, 32, 0, 0)
    assert first != epoch_batches(lengths, 32, 0, 1) and first != epoch_batches(lengths, 32, 1, 0)
    spread = max(max(lengths[r] for r in b) - min(lengths[r] for r in b) for b in first)
    assert spread <= 6
