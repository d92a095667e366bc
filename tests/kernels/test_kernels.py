"""Each kernel against plain PyTorch: values and gradients, each slot alone. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU (TRITON_INTERPRET=1 interprets the kernels on a CPU, slowly)", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")


from intarsia.encoder.activations import ACTIVATIONS  # noqa: E402
from intarsia.kernels import (  # noqa: E402
    Layout,
    adam,
    attention,
    bottleneck,
    dropout,
    gates,
    gelu,
    linear,
    norm,
    rows,
    uniform,
)
from intarsia.kernels.prefix_attention import Seen  # noqa: E402
from intarsia.methods import gates as plain_gates  # noqa: E402
from intarsia.train.optimizer import Adam, AdamSettings  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
pytestmark = [pytest.mark.cuda, pytest.mark.interpreted]
TYPES = [torch.float32, torch.bfloat16] if CUDA else [torch.float32]


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


SHORT = [[5, 1, 17], [], [3, 30, 9, 2]]
LONG = [[140, 3], [], [129, 40, 70, 200]]  # some in one block, others in several


def make_layout(align=16, lengths=SHORT):
    """Three slots, the second with nothing; some segments, and padding after each slot and after all."""
    start, rows_, slot_start, slot_end, tiles, pads = 0, [], [], [], [], []
    for slot, own in enumerate(lengths):
        slot_start.append(start)
        at = start
        for n in own:
            rows_.append((at, n))
            at += n
        end = -(-at // align) * align
        if end > at:
            pads.append((at, end - at))
        slot_end.append(end)
        tiles += [slot] * ((end - start) // align)
        start = end
    pads.append((start, align))  # behind all slots
    tiles.append(0)
    every = [*rows_, (0, 0), *pads]
    layout = Layout(
        tokens=start + align, align=align, tile_slot=ints(tiles), slot_start=ints(slot_start), slot_end=ints(slot_end),
        row_start=ints([r[0] for r in every]), row_length=ints([r[1] for r in every]),
        longest=32 if lengths is SHORT else 256, seeds=ints([11, 12, 13]),
    )  # fmt: skip
    return layout, rows_


@pytest.fixture(params=[16, 32])
def layout(request):
    return make_layout(request.param)[0]


def draw(*shape, dtype=torch.float32, grad=True, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype).requires_grad_(grad)


def views(buffer, shapes):
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(3, *shape) for part, shape in zip(buffer.split(sizes, 1), shapes, strict=True)]


def owners(layout):
    return layout.tile_slot.long().repeat_interleave(layout.align)


def masked(layout, x):
    """Nothing comes back to tokens that no slot owns."""
    x = x.clone()
    x[int(layout.slot_end.max()) :] = 0
    return x


def compare(layout, ours, theirs, inputs, dtype):
    tolerance = 2e-5 if dtype == torch.float32 else 4e-2
    assert not torch.isnan(ours).any()
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)
    g = masked(layout, draw(*theirs.shape, dtype=theirs.dtype, grad=False, seed=5))
    for a, b in zip(
        torch.autograd.grad(ours, inputs, g, retain_graph=True), torch.autograd.grad(theirs, inputs, g), strict=True
    ):
        scale = max(1.0, float(b.float().abs().max()))
        torch.testing.assert_close(a.float() / scale, b.float() / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("inner", "outer"), [(24, 5), (48, 96), (8, 70)])
def test_linear(layout, dtype, inner, outer):
    x, w, b = draw(layout.tokens, inner, dtype=dtype), draw(3, outer, inner), draw(3, outer)
    owner = owners(layout)
    theirs = torch.einsum("ni,noi->no", x.float(), w[owner]) + b[owner]
    ours = linear.linear(x, w, b, w.detach().to(dtype), layout)
    compare(layout, ours, theirs.to(dtype), (x, w, b), dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_norm(layout, dtype):
    x, gain, bias = draw(layout.tokens, 48, dtype=dtype), draw(3, 48), draw(3, 48)
    owner = owners(layout)
    theirs = F.layer_norm(x.float(), (48,), eps=1e-12) * gain[owner] + bias[owner]
    compare(layout, norm.layer_norm(x, gain, bias, 1e-12, layout), theirs.to(dtype), (x, gain, bias), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh", "swish", "gelu_exact", "leaky_relu"])
@pytest.mark.parametrize("parallel", [False, True])
def test_bottleneck(layout, dtype, activation, parallel):
    size, width = (5, 48) if activation == "gelu" else (20, 40)
    h, x = draw(layout.tokens, width, dtype=dtype), draw(layout.tokens, width, dtype=dtype, seed=3)
    shapes = (size, width), (size,), (width, size), (width,)
    buffer = 0.2 * draw(3, 2 * size * width + size + width, grad=False)
    weights = tuple(w.requires_grad_() for w in views(buffer, shapes))
    owner = owners(layout)
    read = x if parallel else h
    act = ACTIVATIONS[activation]
    hidden = act(torch.einsum("ni,noi->no", read.float(), weights[0][owner]) + weights[1][owner])
    theirs = h.float() + torch.einsum("ni,noi->no", hidden, weights[2][owner]) + weights[3][owner]
    low = views(buffer.to(dtype), shapes)
    low = low[0], low[2]
    ours = bottleneck.bottleneck(h, x if parallel else None, weights, low, activation, layout)
    compare(layout, ours, theirs.to(dtype), (h, *([x] if parallel else []), *weights), dtype)


def test_gelu():
    x = torch.linspace(-9, 9, 5001, device=DEVICE).requires_grad_()
    ours, exact = gelu.gelu(x), F.gelu(x.double())
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-6)
    g = torch.randn_like(x)
    back, exact = torch.autograd.grad(ours, x, g)[0], torch.autograd.grad(exact, x, g.double())[0]
    torch.testing.assert_close(back, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("launches", [(2,), (0, 1)])
@pytest.mark.parametrize("dtype", TYPES)
def test_bottleneck_with_dropout_in_front(layout, dtype, launches, monkeypatch):
    plain = bottleneck._chunks
    monkeypatch.setattr(bottleneck, "_chunks", lambda *given: (*plain(*given)[:4], launches))
    size, width = 20, 40
    shapes = (size, width), (size,), (width, size), (width,)
    buffer = 0.2 * draw(3, 2 * size * width + size + width, grad=False)
    weights = tuple(w.requires_grad_() for w in views(buffer, shapes))
    low = views(buffer.to(dtype), shapes)
    low = low[0], low[2]
    h = draw(layout.tokens, width, dtype=dtype)
    theirs = bottleneck.bottleneck(dropout.dropout(h, 0.3, 7, layout), None, weights, low, "gelu", layout)
    ours = bottleneck.bottleneck(h, None, weights, low, "gelu", layout, 0.3, 7)
    assert not torch.equal(ours, bottleneck.bottleneck(h, None, weights, low, "gelu", layout, 0.3, 8))
    compare(layout, ours, theirs, (h, *weights), dtype)


@pytest.mark.skipif(not CUDA, reason="too large for the interpreter")
@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_bottlenecks_of_a_large_model(size, p):
    """Of BERT-base's width, in slots padded as a stack pads them: other loads and products than small ones get."""
    width, align, slots, each = 768, 64, 12, 1024
    tiles = torch.arange(slots).repeat_interleave(each // align)
    layout = Layout(
        tokens=slots * each, align=align, tile_slot=ints(tiles.tolist()), slot_start=ints(range(0, slots * each, each)),
        slot_end=ints(range(each, slots * each + 1, each)), row_start=ints([0]), row_length=ints([0]), longest=32,
        seeds=ints(range(slots)),
    )  # fmt: skip
    shapes = (size, width), (size,), (width, size), (width,)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    buffer = 0.05 * draw(slots, sum(sizes) + -sum(sizes) % 64, grad=False)

    def own(rows):
        return [x.view(slots, *shape) for x, shape in zip(rows[:, : sum(sizes)].split(sizes, 1), shapes, strict=True)]

    weights, low = [w.requires_grad_() for w in own(buffer)], own(buffer.bfloat16())
    h, g = (draw(layout.tokens, width, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    thinned = dropout.dropout(h, p, 7, layout).float().view(slots, each, width)
    down, up = (low[i].float().transpose(1, 2) for i in (0, 2))
    hidden = F.gelu(torch.baddbmm(weights[1][:, None], thinned, down), approximate="tanh")
    theirs = thinned + torch.baddbmm(weights[3][:, None], hidden, up)
    first = None
    for _ in range(20):
        ours = bottleneck.bottleneck(h, None, tuple(weights), (low[0], low[2]), "gelu", layout, p, 7)
        found = ours, *torch.autograd.grad(ours, (h, *weights), g)
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
    torch.testing.assert_close(first[0].float().view_as(theirs), theirs, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("dtype", TYPES)
def test_spread(layout, dtype):
    table, x = draw(3, 24), draw(layout.tokens, 24, dtype=dtype)
    ours, theirs = x * rows.spread(table, dtype, layout), x * table[owners(layout)].to(dtype)
    compare(layout, ours, theirs, (table, x), dtype)


@pytest.mark.parametrize("mean", [True, False])
def test_pool(mean):
    layout, segments = make_layout()
    x = draw(layout.tokens, 200)
    ours = rows.pool(x, len(segments) + 1, mean, layout)
    theirs = torch.stack(
        [x[s : s + n].mean(0) if mean else x[s] for s, n in segments] + [torch.zeros(200, device=DEVICE)]
    )
    torch.testing.assert_close(ours, theirs)
    g = draw(*ours.shape, grad=False, seed=9)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, g)[0] for y in (ours, theirs)))


def test_dropout():
    layout, _ = make_layout()
    x = torch.ones(layout.tokens, 64, device=DEVICE, requires_grad=True)
    y = dropout.dropout(x, 0.25, 3, layout)
    assert y.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert float((y == 0).float().mean()) == pytest.approx(0.25, abs=0.03)
    (back,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(back, y)  # the same places
    assert not torch.equal(y, dropout.dropout(x, 0.25, 4, layout))
    # A slot's decisions do not depend on where its tokens lie.
    last = int(layout.slot_start[2]), int(layout.slot_end[2])
    moved = Layout(**{**layout.__dict__, "tile_slot": ints([2] * (layout.tokens // 16)), "slot_start": ints([0, 0, 0])})
    assert torch.equal(dropout.dropout(x, 0.25, 3, moved)[: last[1] - last[0]], y[last[0] : last[1]])


def test_uniform():
    layout, _ = make_layout()
    x = uniform.uniform((30, 70), 3, layout)
    assert torch.equal(x, uniform.uniform((30, 70), 3, layout)) and not torch.equal(
        x, uniform.uniform((30, 70), 4, layout)
    )
    other = Layout(**{**layout.__dict__, "seeds": ints([14, 12, 13])})
    assert not torch.equal(x, uniform.uniform((30, 70), 3, other))
    assert 0.0 < float(x.min()) < 0.01 and 0.99 < float(x.max()) < 1.0
    assert float(x.mean()) == pytest.approx(0.5, abs=0.03) and float(x.std()) == pytest.approx(12**-0.5, abs=0.02)


@pytest.mark.parametrize("dtype", TYPES)
def test_gates(dtype):
    layout, _ = make_layout()
    theta, g = draw(13, 170, grad=False).to(dtype), draw(13, 170, grad=False, seed=9)
    difference, alpha = draw(13, 170, seed=1), (3 * draw(13, 170, seed=2, grad=False)).requires_grad_()
    limits = plain_gates.EDGE, plain_gates.LEFT, plain_gates.RIGHT
    ours = gates.gated(theta, difference, alpha, 5, layout, *limits, 0.3)
    theirs = plain_gates._Gated.apply(theta, difference, alpha, uniform.uniform(alpha.shape, 5, layout))
    assert ours.dtype == dtype and theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs.to(dtype))
    opened = (theirs - theta.float()) / difference
    assert 0.1 < float((opened.abs() < 1e-3).float().mean()) < 0.6  # some are closed, some open, some between
    mine = torch.autograd.grad(ours, (difference, alpha), g.to(dtype))
    loss = (theirs * g.to(dtype).float()).sum() + 0.3 * plain_gates.expected(alpha).sum()
    for one, other in zip(mine, torch.autograd.grad(loss, (difference, alpha)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("size", [0, 5, 33])
@pytest.mark.parametrize(("lengths", "limits"), [(SHORT, (64, 32)), (LONG, (64, 32)), (LONG, (128, 64))])
def test_attention(dtype, relative, size, lengths, limits, monkeypatch):
    monkeypatch.setattr(attention, "_HEAVY", limits)  # of float32, which is all that is interpreted
    layout, _ = make_layout(lengths=lengths)
    heads, width = 3, 16
    q, k, v = (draw(layout.tokens, heads, width, dtype=dtype, seed=i) for i in range(3))
    table = draw(heads, 2 * 240 - 1) if relative else None
    prefix = tuple(draw(3, size, heads * width, seed=7 + i) for i in range(2)) if size else None
    seen = None if prefix is None else (*prefix, Seen(*(x.detach().to(dtype) for x in prefix), 0))
    ours = attention.attention(q, k, v, layout, scale=0.25, p=0.0, site=0, relative=table, prefix=seen)
    theirs = torch.zeros(layout.tokens, heads, width, device=DEVICE)
    for start, n in zip(layout.row_start.tolist(), layout.row_length.tolist(), strict=True):
        owner = int(layout.tile_slot[start // layout.align])
        own = attended(q, k, v, table, prefix, owner, start, n)
        theirs = theirs.index_copy(0, torch.arange(start, start + n, device=DEVICE), own)
    inputs = (q, k, v, *(() if table is None else (table,)), *(prefix or ()))
    compare(layout, ours, theirs.to(dtype), inputs, dtype)


def attended(q, k, v, table, prefix, owner, start, n):
    """A segment's, in plain PyTorch, over its own keys and, behind them, its slot's prefix."""
    a, b, c = (t[start : start + n].float().transpose(0, 1) for t in (q, k, v))
    scores = a @ b.transpose(1, 2) * 0.25
    if table is not None:
        steps = torch.arange(n, device=DEVICE)
        scores = scores + table[:, steps[None, :] - steps[:, None] + 239]
    if prefix is not None:
        keys, values = (x[owner].to(q.dtype).float().view(-1, *q.shape[1:]).transpose(0, 1) for x in prefix)
        scores, c = torch.cat([scores, a @ keys.transpose(1, 2) * 0.25], -1), torch.cat([c, values], 1)
    return (scores.softmax(-1) @ c).transpose(0, 1)


@pytest.mark.parametrize("lengths", [SHORT, LONG])
def test_attention_dropout(lengths):
    """With values that tell the probabilities apart: dropped ones are 0, the rest rescaled; the way back agrees."""
    layout, segments = make_layout(lengths=lengths)
    start, n = max(segments, key=lambda s: s[1])
    width = 32 if n <= 32 else 64
    last = min(n, width)  # the keys that are told apart
    q, k = (draw(layout.tokens, 2, width, seed=i) for i in range(2))
    v = torch.zeros(layout.tokens, 2, width, device=DEVICE)
    v[start + n - last : start + n, :, :last] = torch.eye(last, device=DEVICE)[:, None]
    v.requires_grad_()
    plain, dropped = (
        attention.attention(q, k, v, layout, scale=0.2, p=p, site=1, relative=None)[start : start + n, :, :last]
        for p in (0.0, 0.3)
    )
    keep = dropped != 0
    assert float(keep.float().mean()) == pytest.approx(0.7, abs=0.06)
    torch.testing.assert_close(dropped, torch.where(keep, plain / 0.7, 0.0), rtol=1e-4, atol=1e-5)
    g = draw(n, 2, last, grad=False, seed=4)
    *ours, dv = torch.autograd.grad(dropped, (q, k, v), g)
    for a, b in zip(ours, torch.autograd.grad(plain, (q, k), torch.where(keep, g / 0.7, 0.0)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    expected = torch.einsum("qhk,qhd->khd", dropped, g)
    torch.testing.assert_close(dv[start + n - last : start + n, :, :last], expected, rtol=1e-4, atol=1e-4)


def test_prefix_dropout():
    """As above, for the probabilities of a prefix: told apart by its values, beside a segment's that are 0."""
    layout, segments = make_layout(lengths=LONG)
    start, n = max(segments, key=lambda s: s[1])
    q, k = (draw(layout.tokens, 2, 32, seed=i) for i in range(2))
    v = torch.zeros(layout.tokens, 2, 32, device=DEVICE)
    keys = draw(3, 32, 64, seed=8)
    values = torch.eye(32, device=DEVICE).repeat(3, 1, 2).requires_grad_()  # the same for both heads
    plain, dropped = (
        attention.attention(
            q, k, v, layout, scale=0.2, p=p, site=1, relative=None,
            prefix=(keys, values, Seen(keys.detach(), values.detach(), 2)),
        )[start : start + n]
        for p in (0.0, 0.3)
    )  # fmt: skip
    keep = dropped != 0
    assert float(keep.float().mean()) == pytest.approx(0.7, abs=0.03)
    torch.testing.assert_close(dropped, torch.where(keep, plain / 0.7, 0.0), rtol=1e-4, atol=1e-5)
    g = draw(n, 2, 32, grad=False, seed=4)
    *ours, d_values = torch.autograd.grad(dropped, (q, k, keys, values), g)
    for a, b in zip(ours, torch.autograd.grad(plain, (q, k, keys), torch.where(keep, g / 0.7, 0.0)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    expected = torch.einsum("qhk,qhd->khd", dropped, g).reshape(32, 64)
    torch.testing.assert_close(d_values[int(layout.tile_slot[start // layout.align])], expected, rtol=1e-4, atol=1e-4)


def test_adam_counts_a_large_model_where_a_grid_is_long(monkeypatch):
    """A grid's second and third numbers end at 65,535."""
    grids = []

    class Kernel:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(adam, "_adam", Kernel())
    rows = [torch.empty(1, 300_000_000, device="meta") for _ in range(4)]
    rest = [torch.empty(1, device="meta")] * 5
    adam.step(rows[0], None, *rows[1:], rest[0], None, *rest[1:], betas=(0.9, 0.999), eps=1e-6, clip=1.0)
    assert grids == [(146485, 1)]


@pytest.mark.parametrize("corrected", [False, True])
def test_adam(corrected):
    settings = AdamSettings(bias_correction=corrected)
    parameters, decay = draw(3, 5000, grad=False), (draw(5000, grad=False) > 0).float()
    factors = 1 + (draw(5000, grad=False, seed=2) > 0).float()
    ours, theirs = parameters.clone(), parameters.clone()
    reference = Adam(theirs, decay, settings, factors)
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    low = ours.to(torch.bfloat16)
    for i in range(3):
        gradient = draw(3, 5000, grad=False, seed=10 + i) * torch.tensor([[1.0], [1e-4], [1.0]], device=DEVICE)
        rates = torch.tensor([1e-2, 1e-3, 1.0], device=DEVICE)
        norms = torch.linalg.vector_norm(gradient, dim=1)
        both = settings.corrections(i)
        adam.step(
            ours, low, gradient, first, second, reference.decay, factors, rates,
            torch.tensor([both] * 3, device=DEVICE), norms, ints([1, 1, 0]),
            betas=(settings.beta1, settings.beta2), eps=settings.eps, clip=settings.clip,
        )  # fmt: skip
        reference.step(gradient.clone(), rates, both)
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-5, atol=1e-5)
    assert torch.equal(ours[2], parameters[2]) and not first[2].any()
    torch.testing.assert_close(low.float(), ours, rtol=1e-2, atol=0)
