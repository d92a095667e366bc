"""DoRA: values and gradients of peft's formulas, the base at its start, and plain weights when merged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia import Settings
from intarsia.encoder.noise import Noise
from intarsia.encoder.owners import Owners
from intarsia.encoder.packed import pack
from intarsia.encoder.routed import Group
from intarsia.encoder.site_view import SiteView
from intarsia.encoder.slots import Slots, start
from intarsia.methods import DoRA, from_dict, to_dict
from intarsia.methods.method import Plain
from tests.support.families import FAMILY_NAMES, opinions, tiny, tiny_with_words
from tests.support.segments import segments

S = 16.0 / 3  # alpha / rank


def as_in_peft(x: Tensor, layer: torch.nn.Linear, t: dict[str, Tensor], dropped: Tensor | None = None) -> Tensor:
    """`peft.tuners.lora.dora.DoraLinearLayer.forward` on top of the layer, written out; `dropped`: x after dropout."""
    magnitude = layer.weight.norm(dim=1) + t["0.query.magnitude"]  # peft stores this sum
    norm = (layer.weight + S * t["0.query.b.weight"] @ t["0.query.a.weight"]).norm(dim=1).detach()
    scale = magnitude / norm
    result = layer(x)
    base = result - layer.bias if dropped is None else F.linear(dropped, layer.weight)
    lora = (x if dropped is None else dropped) @ t["0.query.a.weight"].T @ t["0.query.b.weight"].T
    return result + (scale - 1) * base + scale * lora * S


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_values_and_gradients_are_pefts(p: float) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(7, 5).double().requires_grad_(False)
    shapes = {"0.query.a.weight": (3, 7), "0.query.b.weight": (5, 3), "0.query.magnitude": (5,)}
    stacked = {name: torch.randn(4, *shape).double().requires_grad_() for name, shape in shapes.items()}
    x, weights = torch.randn(11, 7).double().requires_grad_(), torch.randn(11, 5).double()
    view = SiteView("query", 0, stacked, Owners((2, 0, 2), (4, 1, 6)), module=layer, dtype=torch.float64)
    view.input, view.training = x, True
    view.noise = Noise([1], torch.device("cpu")) if p else None
    dropped = Noise([1], torch.device("cpu")).drop(x, p) if p else None
    found = DoRA(3, dropout=p).output(view, layer(x))
    expected = []
    for slot, part in ((2, slice(0, 4)), (0, slice(4, 5)), (2, slice(5, 11))):
        own = {name: tensor[slot] for name, tensor in stacked.items()}
        expected.append(as_in_peft(x[part], layer, own, None if dropped is None else dropped[part]))
    assert torch.allclose(found, torch.cat(expected), rtol=0, atol=1e-12)
    inputs = [x, *stacked.values()]
    by_hand = torch.autograd.grad((torch.cat(expected) * weights).sum(), inputs, retain_graph=True)
    for ours, theirs in zip(torch.autograd.grad((found * weights).sum(), inputs), by_hand, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_it_starts_as_the_base_exactly_and_merges(family: str) -> None:
    encoder, method = tiny(family), DoRA(3, targets=("value", "attention.dense", "ffn.up", "ffn.down"))
    specs, rows = method.tensors(encoder.shape), pack(segments([4, 9, 1, 12], pairs=False))
    slots = Slots(specs, 2)
    slots.put(1, start(specs, encoder, seed=0))
    groups = [Group(method, method.places(encoder.shape), slots.tensors, 0, (1,), (4,))]
    plain = encoder.forward(rows)
    assert torch.equal(encoder.forward(rows, groups), plain)
    slots.put(1, {name: torch.randn_like(tensor) * 0.1 for name, tensor in slots.get(1).items()})
    changed = encoder.forward(rows, groups)
    assert not torch.allclose(changed, plain, atol=1e-2)
    if encoder.shape.shared_layers:
        return
    merged = Plain(encoder.shape, encoder.weights, encoder.at_site)
    method.merge(encoder.shape, slots.get(1), merged)
    assert torch.allclose(encoder.forward(rows, weights=merged.changed), changed, atol=1e-5)


def test_it_learns_and_answers(tmp_path) -> None:  # type: ignore[no-untyped-def]
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    entry = bank.learn("opinion", opinions(60), DoRA(2), settings=Settings(learning_rate=1e-2, epochs=30))
    assert entry.header.parameters["method"] == 3 * 2 * (2 * (32 + 32) + 32)
    assert from_dict(dict(entry.header.method)) == DoRA(2) == from_dict(to_dict(DoRA(2)))
    assert [answer.label for answer in bank.predict("opinion", ["good film", "bad film"])] == ["yes", "no"]
