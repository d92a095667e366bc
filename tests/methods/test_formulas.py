"""Each method against its paper's formulas, written out over a BERT that is written out too, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.attention import PrefixStates as Extra
from intarsia.encoder.attention import packed_attention
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots, start
from intarsia.methods import (
    IA3,
    METHODS,
    PAL,
    Bapna,
    BitFit,
    Bottleneck,
    DoRA,
    Features,
    LayerNorms,
    LoRA,
    Method,
    Pfeiffer,
    Prefix,
)
from tests.support.families import plain_model, tiny
from tests.support.segments import segments


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Softmax attention of one text, head by head."""
    size = q.shape[1] // heads
    out = []
    for part in (slice(i * size, (i + 1) * size) for i in range(heads)):
        scores = q[:, part] @ k[:, part].T / size**0.5
        out.append(torch.softmax(scores, -1) @ v[:, part])
    return torch.cat(out, 1)


class Bert:
    """BERT over one text. A method's formulas are what a subclass changes; `t` has its tensors."""

    heads = 4
    first = 0  # the position of the first token

    def __init__(self, model: Any, t: dict[str, Tensor]) -> None:
        self.model, self.t = model, t

    def states(self, ids: list[int]) -> Tensor:
        e, n = self.model.embeddings, len(ids)
        words, places = e.word_embeddings.weight[ids], e.position_embeddings.weight[self.first : self.first + n]
        x = self.norm("-1.embedding.norm", e.LayerNorm, words + places + e.token_type_embeddings.weight[0])
        for i, layer in enumerate(self.model.encoder.layer):
            x = self.layer(i, layer, x)
        return self.end(x)

    def layer(self, i: int, layer: Any, x: Tensor) -> Tensor:
        own, out = layer.attention.self, layer.attention.output
        q = self.linear(f"{i}.query", own.query, x)
        k = self.linear(f"{i}.key", own.key, x)
        v = self.linear(f"{i}.value", own.value, x)
        attended = self.linear(f"{i}.attention.dense", out.dense, self.attention(i, q, k, v))
        a = self.norm(f"{i}.attention.norm", out.LayerNorm, x + self.after(f"{i}.attention.output", attended))
        inner = self.inner(i, F.gelu(self.linear(f"{i}.ffn.up", layer.intermediate.dense, a)))
        h = self.linear(f"{i}.ffn.down", layer.output.dense, inner)
        h = self.after(f"{i}.ffn.output", h, a=a, x=x, norm=layer.output.LayerNorm)
        return self.behind(i, self.norm(f"{i}.ffn.norm", layer.output.LayerNorm, a + h))

    def linear(self, name: str, module: Any, x: Tensor) -> Tensor:
        return x @ module.weight.T + module.bias

    def norm(self, name: str, module: Any, x: Tensor) -> Tensor:
        return _normal(x) * module.weight + module.bias

    def attention(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, self.heads)

    def after(self, name: str, h: Tensor, **_: Any) -> Tensor:
        return h

    def inner(self, i: int, x: Tensor) -> Tensor:
        return x

    def behind(self, i: int, x: Tensor) -> Tensor:
        return x

    def end(self, x: Tensor) -> Tensor:
        return x

    def own(self, name: str, x: Tensor) -> Tensor:
        """A linear layer of the method's own."""
        return x @ self.t[f"{name}.weight"].T + self.t[f"{name}.bias"]


def _normal(x: Tensor, eps: float = 1e-12) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + eps).sqrt()


class OwnNorms(Bert):
    def norm(self, name: str, module: Any, x: Tensor) -> Tensor:
        return _normal(x) * self.t[f"{name}.weight"] + self.t[f"{name}.bias"]


class Houlsby(OwnNorms):
    def after(self, name: str, h: Tensor, **_: Any) -> Tensor:
        return h + self.own(f"{name}.up", F.gelu(self.own(f"{name}.down", h), approximate="tanh"))


class OnePfeiffer(Bert):
    def after(self, name: str, h: Tensor, **seen: Any) -> Tensor:
        if name.endswith("attention.output"):
            return h
        u = super().norm("", seen["norm"], h + seen["a"])  # the same frozen norm as behind
        return h + self.own(f"{name}.up", F.relu(self.own(f"{name}.down", u)))


class OneBapna(Bert):
    def behind(self, i: int, x: Tensor) -> Tensor:
        name = f"{i}.layer.output"
        normal = _normal(x, 1e-6) * self.t[f"{name}.norm.weight"] + self.t[f"{name}.norm.bias"]
        return x + self.own(f"{name}.up", F.relu(self.own(f"{name}.down", normal)))


class OnePAL(OwnNorms):
    def after(self, name: str, h: Tensor, **seen: Any) -> Tensor:
        if name.endswith("attention.output"):
            return h
        i = name.partition(".")[0]
        narrow = self.own("encode", seen["x"])  # of the layer's input
        q, k, v = (self.own(f"{i}.pal.{part}", narrow) for part in ("query", "key", "value"))
        return h + F.gelu(self.own("decode", attend(q, k, v, heads=2)))


class OneLoRA(Bert):
    def linear(self, name: str, module: Any, x: Tensor) -> Tensor:
        a, b = self.t.get(f"{name}.a.weight"), self.t.get(f"{name}.b.weight")
        weight = module.weight if a is None or b is None else module.weight + 6.0 / 3 * b @ a
        return x @ weight.T + module.bias


class OneDoRA(OneLoRA):
    def linear(self, name: str, module: Any, x: Tensor) -> Tensor:
        if f"{name}.magnitude" not in self.t:
            return super().linear(name, module, x)
        together = module.weight + 6.0 / 3 * self.t[f"{name}.b.weight"] @ self.t[f"{name}.a.weight"]
        magnitude = module.weight.norm(dim=1) + self.t[f"{name}.magnitude"]
        return x @ (magnitude / together.norm(dim=1) * together.T) + module.bias


class OneIA3(Bert):
    def attention(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k * self.t[f"{i}.key.gain"], v * self.t[f"{i}.value.gain"], self.heads)

    def inner(self, i: int, x: Tensor) -> Tensor:
        return x * self.t[f"{i}.ffn.down.input.gain"]


class TwoMoreKeys(Bert):
    def attention(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (self.t[f"{i}.attention.prefix.{which}"] for which in ("key", "value"))
        return attend(q, torch.cat([keys, k]), torch.cat([values, v]), self.heads)


class TwoMoreKeysAndPositions(TwoMoreKeys):
    first = 2


class OwnBiases(Bert):
    def linear(self, name: str, module: Any, x: Tensor) -> Tensor:
        return x @ module.weight.T + self.t[f"{name}.bias"]

    def norm(self, name: str, module: Any, x: Tensor) -> Tensor:
        return _normal(x) * module.weight + self.t[f"{name}.bias"]


class Mix(Bert):
    seen: list[Tensor]

    def behind(self, i: int, x: Tensor) -> Tensor:
        self.seen = [*self.seen, x] if i else [x]
        return x

    def end(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.t["mix.weights"], 0)
        return self.t["mix.scale"] * sum(share * seen for share, seen in zip(shares, self.seen, strict=True))


FORMULAS: list[tuple[Method, type[Bert]]] = [
    (Bottleneck(5), Houlsby),
    (Pfeiffer(5), OnePfeiffer),
    (Bapna(5), OneBapna),
    (PAL(8, 2), OnePAL),
    (LoRA(3, 6.0, ("query", "ffn.down")), OneLoRA),
    (LoRA(3, 6.0, ("query", "key", "value", "attention.dense", "ffn.up", "ffn.down")), OneLoRA),
    (DoRA(3, 6.0, ("query", "ffn.down")), OneDoRA),
    (DoRA(3, 6.0, ("query", "key", "value", "attention.dense", "ffn.up", "ffn.down")), OneDoRA),
    (IA3(), OneIA3),
    (Prefix(2), TwoMoreKeys),
    (Prefix(2, offset=2), TwoMoreKeysAndPositions),
    (BitFit(), OwnBiases),
    (LayerNorms(), OwnNorms),
    (Features(mix=True), Mix),
]


def test_every_method_that_acts_at_sites_has_formulas() -> None:
    assert {type(method) for method, _ in FORMULAS} == {kind for kind in METHODS.values() if not kind.changes_base}


@torch.no_grad()
@pytest.mark.parametrize(("method", "formulas"), FORMULAS, ids=lambda v: getattr(v, "name", getattr(v, "__name__", "")))
def test_it_is_the_papers_formulas(method: Method, formulas: type[Bert]) -> None:
    encoder, model = tiny("bert"), plain_model("bert").double()
    encoder.model.double()
    specs = method.tensors(encoder.shape)
    slots = Slots(specs, 2, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    for slot in (0, 1):
        fresh = start(specs, encoder, slot)
        slots.put(slot, {k: v.double() + 0.2 * torch.randn(v.shape, generator=draw) for k, v in fresh.items()})
    rows = segments([4, 1, 11], pairs=False)
    group = Group(method, method.places(encoder.shape), slots.tensors, 0, (1, 0), (1, 2))
    found = encoder.forward(pack(rows), [group]).split([4, 1, 11])
    for row, slot, states in zip(rows, (1, 0, 0), found, strict=True):
        expected = formulas(model, slots.get(slot)).states(list(row.ids))
        assert torch.allclose(states, expected, rtol=0, atol=1e-10)
    plain = Bert(model, {}).states(list(rows[0].ids))
    assert not torch.allclose(found[0], plain, atol=1e-2)


def test_the_hidden_layer_on_features_is_a_relu_layer() -> None:
    torch.manual_seed(0)
    t = {"hidden.weight": torch.randn(7, 5), "hidden.bias": torch.randn(7)}
    rows, states = torch.randn(3, 5), torch.randn(3, 4, 5)
    expected = (rows @ t["hidden.weight"].T + t["hidden.bias"]).clamp_min(0)
    assert torch.allclose(Features(hidden=7).pooled(t, rows), expected, atol=1e-6)
    assert torch.equal(Features(hidden=7).mixed(t, states), states[:, -1])
    mix = {"mix.weights": torch.tensor([0.0, 1.0, 2.0, 3.0]), "mix.scale": torch.tensor([2.0])}
    shares = torch.softmax(mix["mix.weights"], 0)
    expected = 2.0 * (states * shares[None, :, None]).sum(1)
    assert torch.allclose(Features(mix=True).mixed(mix, states), expected, atol=1e-6)


@pytest.mark.parametrize("window", [None, 4])
def test_prefixes_of_different_sizes_in_attention_by_hand(window: int | None) -> None:
    """Rows with three, no and two more keys than their own; values and gradients, with and without a window."""
    torch.manual_seed(0)
    lengths, sizes = [5, 1, 9], [3, 0, 2]
    q, k, v = (torch.randn(15, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    keys, values = (torch.randn(3, 3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    absent = torch.tensor([[place >= size for place in range(3)] for size in sizes])
    batch = pack([Segment([1] * n) for n in lengths])
    outputs, at = [], 0
    for row, (n, size) in enumerate(zip(lengths, sizes, strict=True)):
        own = slice(at, at + n)
        distance = torch.arange(n)[None] - torch.arange(n)[:, None]
        far = torch.zeros_like(distance, dtype=torch.bool) if window is None else distance.abs() >= window
        mask = torch.cat([far, torch.zeros(n, size, dtype=torch.bool)], 1)  # a prefix is seen from everywhere
        heads = []
        for h in range(2):
            scores = q[own, h] @ torch.cat([k[own, h], keys[row, :size, h]]).T * 0.5
            seen = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
            heads.append(seen @ torch.cat([v[own, h], values[row, :size, h]]))
        outputs.append(torch.stack(heads, 1))
        at += n
    expected = torch.cat(outputs)
    inputs = (q, k, v, keys, values)

    def found() -> Tensor:
        return packed_attention(q, k, v, batch, scale=0.5, window=window, prefix=Extra(keys, values, absent))

    assert torch.allclose(found(), expected, atol=1e-12)
    with torch.no_grad():  # the way of inference
        assert torch.allclose(found(), expected, atol=1e-12)
    weights = torch.randn_like(expected)
    by_hand = torch.autograd.grad((expected * weights).sum(), inputs)
    for a, b in zip(torch.autograd.grad((found() * weights).sum(), inputs), by_hand, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_a_prefix_has_no_gradient_but_its_own() -> None:
    """Rows that have none are padded in the pass; nothing may reach what stands there."""
    encoder = tiny("bert")
    method = Prefix(3)
    slots = Slots(method.tensors(encoder.shape), 2)
    slots.buffer.normal_(generator=torch.Generator().manual_seed(0))
    leaves = slots.leaves()
    rows = segments([4, 6, 5], pairs=False)
    states = encoder.forward(pack(rows), [Group(method, method.places(encoder.shape), leaves, 1, (1,), (1,))])
    before, own, after = states.split([4, 6, 5])
    alone = torch.autograd.grad(before.sin().sum() + after.sin().sum(), list(leaves.values()), retain_graph=True)
    assert not any(g.any() for g in alone)
    gradient = slots.gradient(own.sin().sum(), leaves)
    assert gradient[1].all() and not gradient[0].any()


@pytest.mark.parametrize(
    "method",
    [LoRA(2, dropout=0.5), DoRA(2, dropout=0.5), PAL(8, 2, dropout=0.5), Bottleneck(4, dropout=0.5)],
    ids=lambda m: m.name,
)
def test_dropout_of_its_own_is_on_in_training_alone(method: Method) -> None:
    from intarsia.encoder.noise import Noise

    encoder = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    slots = Slots(method.tensors(encoder.shape), 1)
    slots.buffer.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    group = Group(method, method.places(encoder.shape), slots.tensors, 0, (0,), (2,))
    batch = pack(segments([6, 9], pairs=False))
    with torch.no_grad():
        still, again = encoder.forward(batch, [group]), encoder.forward(batch, [group])
        noisy = [encoder.forward(batch, [group], training=True, noise=Noise([0, s], encoder.device)) for s in (1, 1, 2)]
    assert torch.equal(still, again) and torch.equal(noisy[0], noisy[1])
    assert not torch.allclose(noisy[0], still, atol=1e-3) and not torch.allclose(noisy[0], noisy[2], atol=1e-3)
