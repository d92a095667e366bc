from __future__ import annotations

import pytest
import torch
from torch import Tensor

from intarsia.encoder.attention import packed_attention
from intarsia.encoder.noise import Noise, drop
from intarsia.encoder.packed import Segment, pack

LENGTHS = [1, 7, 3, 12, 30]


def qkv(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(sum(LENGTHS), 2, 4, dtype=dtype, requires_grad=True) for _ in range(3)]


def plainly(q: Tensor, k: Tensor, v: Tensor, window: int | None, relative: Tensor | None) -> Tensor:
    outputs, start = [], 0
    for n in LENGTHS:
        a, b, c = (x[start : start + n].transpose(0, 1) for x in (q, k, v))
        scores = a @ b.transpose(1, 2) * 0.5
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        if relative is not None:
            scores = scores + relative[:, distance + relative.shape[1] // 2]
        if window is not None:
            scores = scores.masked_fill(distance.abs() >= window, float("-inf"))
        outputs.append((torch.softmax(scores, -1) @ c).transpose(0, 1))
        start += n
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_equal_the_plain_formula(window: int | None, bias: bool) -> None:
    batch = pack([Segment([1] * n) for n in LENGTHS])
    relative = torch.randn(2, 2 * max(LENGTHS) - 1, dtype=torch.float64) if bias else None
    inputs = qkv()
    expected = plainly(*inputs, window, relative)
    found = packed_attention(*inputs, batch, scale=0.5, window=window, relative=relative)
    assert torch.allclose(found, expected, atol=1e-12)
    weights = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad((expected * weights).sum(), inputs),
        torch.autograd.grad((found * weights).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-12)
    with torch.no_grad():  # the way of inference
        assert torch.allclose(
            packed_attention(*inputs, batch, scale=0.5, window=window, relative=relative), expected, atol=1e-12
        )


def test_dropout_has_the_gradient_of_its_own_forward() -> None:
    batch = pack([Segment([1] * n) for n in LENGTHS])

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return packed_attention(q, k, v, batch, scale=0.5, p=0.3, noise=Noise([1, 2], torch.device("cpu")))

    assert torch.autograd.gradcheck(run, qkv(), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(run(*qkv()), run(*qkv()))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_noise_keeps_the_right_share_and_repeats(p: float) -> None:
    cpu = torch.device("cpu")
    keep = Noise([3, 5], cpu).keep((1000, 1001), p)
    assert abs(float(keep.float().mean()) - (1 - p)) < 2e-3
    assert torch.equal(keep, Noise([3, 5], cpu).keep((1000, 1001), p))
    assert not torch.equal(keep, Noise([3, 6], cpu).keep((1000, 1001), p))
    assert not torch.equal(keep, Noise([4, 5], cpu).keep((1000, 1001), p))
    per_column = keep.float().mean(0)
    assert float(per_column.std()) == pytest.approx((p * (1 - p) / 1000) ** 0.5, rel=0.1)  # no pattern by place


def test_drop_scales_what_it_keeps() -> None:
    x = torch.randn(50, 60, requires_grad=True)
    assert drop(x, 0.5, None) is x
    y = drop(x, 0.5, Noise([0, 0], torch.device("cpu")))
    kept = y != 0
    assert torch.allclose(y[kept], 2 * x[kept])
    y.sum().backward()
    assert torch.equal(x.grad, 2.0 * kept)  # type: ignore[arg-type]
