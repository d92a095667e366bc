"""The base in int8: exact integer products, the switch, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call

import intarsia
from intarsia.encoder import int8_probe
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.frozen import FrozenLinear, Projections
from intarsia.encoder.int8 import LEVELS, Int8Linears
from intarsia.encoder.packed import Segment, pack
from intarsia.errors import EncoderError
from tests.support.families import FAMILY_NAMES, tiny

ROWS = [Segment([5, 9, 2, 7, 30], [0] * 5), Segment([8], [0]), Segment(list(range(3, 20)), [0] * 17)]


@pytest.fixture(scope="module", autouse=True)
def _processor() -> None:
    """Skip where the products do not work. On a processor that pays, the trial must succeed."""
    found = int8_probe._trial({"groups": [(64, (64, 64, 64), 1), (64, (96,), 1)], "threads": 1}, os.environ)
    if not found.works:
        pytest.skip(found.describe())


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch int8 on without a trial: it does not pay on tiny models."""
    monkeypatch.setattr(int8_probe, "require", lambda *_: None)


def linears(count: int, width: int = 96, out: int = 80) -> tuple[FrozenLinear, ...]:
    torch.manual_seed(0)
    return tuple(FrozenLinear(nn.Linear(width, out).requires_grad_(False)) for _ in range(count))


def inputs(width: int = 96) -> torch.Tensor:
    x = torch.randn(700, width, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 700)[:, None]
    x[3], x[4], x[5] = 0.0, 2.5, -1.0
    return x


def in_int8(layer: FrozenLinear, x: torch.Tensor) -> torch.Tensor:
    layer.int8 = Int8Linears()
    return layer(x)


def test_the_product_is_that_of_the_rounded_numbers() -> None:
    (layer,) = linears(1)
    x = inputs()
    steps = x.abs().amax(1, keepdim=True).clamp(min=1e-30) / LEVELS
    w_steps = layer.weight.abs().amax(1) / LEVELS
    rounded = (x.double() / steps).round()
    weight = (layer.weight / w_steps[:, None]).round().double()
    expected = (rounded @ weight.t()) * steps * w_steps + layer.bias
    found = in_int8(layer, x)
    # A number exactly between two levels may be rounded to either of them.
    assert ((found - expected).abs() <= 1.01 * steps * layer.weight.abs().max() + 1e-5).all()
    assert ((found - expected).norm(dim=1) <= 1e-5 * expected.norm(dim=1)).float().mean() > 0.9
    assert torch.equal(found[3], layer.bias)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for width, out in ((96, 80), (30, 17), (1536, 384)):
            (layer,) = linears(1, width, out)
            x = inputs(width)
            whole = in_int8(layer, x)
            for first, last in ((0, 1), (3, 5), (699, 700), (100, 117), (1, 400)):
                assert torch.equal(layer(x[first:last].clone()), whole[first:last])
    finally:
        torch.set_num_threads(before)


def test_a_row_that_is_not_finite_spoils_no_other_row() -> None:
    (layer,) = linears(1)
    x = inputs()
    clean = in_int8(layer, x)
    x[7, 3], x[9, 0] = torch.nan, torch.inf
    spoiled = layer(x)
    kept = [i for i in range(len(x)) if i not in (7, 9)]
    assert (
        torch.equal(spoiled[kept], clean[kept]) and not spoiled[7].isfinite().any() and not spoiled[9].isfinite().any()
    )


def test_query_key_and_value_quantize_their_input_once_and_keep_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = linears(3)
    x = inputs()
    alone = [in_int8(layer, x) for layer in layers]
    Projections((layers[0], layers[1], layers[2]))
    shared = Int8Linears()
    calls: list[torch.Tensor] = []
    quantize = Int8Linears._quantize
    monkeypatch.setattr(Int8Linears, "_quantize", lambda self, x: (calls.append(x), quantize(self, x))[1])
    for layer in layers:
        layer.int8 = shared
    together = [layer(x) for layer in layers]
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True)) and len(calls) == 1


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_replaced_weights_run_in_float32(name: str) -> None:
    (layer,) = linears(1)
    x = inputs()
    layer.int8 = Int8Linears()
    other = {name: torch.randn_like(getattr(layer, name))}
    given = {"weight": layer.weight, "bias": layer.bias} | other
    assert torch.equal(functional_call(layer, other, (x,)), nn.functional.linear(x, given["weight"], given["bias"]))


def test_a_written_weight_is_quantized_again() -> None:
    (layer,) = linears(1)
    x = inputs()
    before = in_int8(layer, x)
    layer.weight.mul_(2.0)
    assert torch.allclose(layer(x) - layer.bias, 2 * (before - layer.bias), rtol=1e-4, atol=1e-3)


def test_gradients_are_refused() -> None:
    (layer,) = linears(1)
    with pytest.raises(EncoderError, match="serves only"):
        in_int8(layer, inputs().requires_grad_())


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_switches_and_back(family: str, always: None) -> None:
    encoder = tiny(family)
    exact = encoder.forward(pack(ROWS))
    encoder.use_int8()
    assert encoder.precision == "int8"
    rounded = encoder.forward(pack(ROWS))
    assert not torch.equal(rounded, exact) and (rounded - exact).norm() < 0.1 * exact.norm()
    alone = encoder.forward(pack(ROWS[:1]))
    assert torch.allclose(alone, rounded[:5], atol=0.05)
    encoder.check_frozen()
    encoder.check_untouched()
    encoder.use_int8(False)
    assert encoder.precision == "float32" and torch.equal(encoder.forward(pack(ROWS)), exact)


def test_training_is_refused_before_the_data_is_read(always: None, tmp_path: Path) -> None:
    encoder = tiny("bert")
    encoder.use_int8()
    with pytest.raises(EncoderError, match="serves only"):
        encoder.forward(pack(ROWS), training=True)
    bank = intarsia.open(tmp_path / "bank", precision="int8")
    for learn in (lambda: bank.learn("a", "absent.csv"), lambda: bank.sweep({"a": "absent.csv"})):
        with pytest.raises(EncoderError, match="Train in float32"):
            learn()


def test_int8_is_for_float32_bases_on_cpus(always: None) -> None:
    encoder = tiny("bert").to(dtype=torch.float64)
    with pytest.raises(EncoderError, match="float32 base on a CPU"):
        encoder.use_int8()
    with pytest.raises(EncoderError, match="int8 is for CPUs"):
        Encoder.load("absent", device="cuda", precision="int8")


def test_moving_the_base_ends_int8(always: None) -> None:
    encoder = tiny("bert")
    encoder.use_int8()
    assert encoder.to(dtype=torch.float32).precision == "float32"
