"""Counts as published, near-identity at the start, and every option doing what it says."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from intarsia.encoder.packed import pack
from intarsia.encoder.routed import Group
from intarsia.encoder.shape import Shape
from intarsia.encoder.slots import Slots, start
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck, from_dict, parse, to_dict
from tests.methods.test_bottleneck_forms import FORMS
from tests.support.families import FAMILY_NAMES, config, tiny
from tests.support.segments import segments

VARIANTS = [
    {},
    {"places_in_layer": "attention"},
    {"places_in_layer": "ffn"},
    {"layers": (0, 2)},
    {"depth": 3},
    {"inner_norm": "layer"},
    {"inner_norm": "batch"},
    {"parallel": True},
    {"multiplicative": True},
    {"parallel": True, "multiplicative": True},
    {"norms": False},
    {"norms": False, "embedding_norm": True},
    {"embedding_norm": False},
    {"activation": "swish"},
]


@pytest.fixture(scope="module")
def bert_base() -> Shape:
    from transformers import BertConfig

    return Shape.of(BertConfig())


@pytest.fixture(scope="module")
def bert_large() -> Shape:
    from transformers import BertConfig

    return Shape.of(BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))


@pytest.mark.parametrize(("size", "count"), [(64, 2_379_264), (2, 92_208), (8, 313_536), (256, 9_461_760)])
def test_published_counts_of_bert_base(bert_base: Shape, size: int, count: int) -> None:
    assert Bottleneck(size, norms=False).count(bert_base) == count
    assert Bottleneck(size).count(bert_base) == count + 38_400


@pytest.mark.parametrize(("size", "count"), [(64, 6_343_680), (256, 25_227_264)])
def test_published_counts_of_bert_large(bert_large: Shape, size: int, count: int) -> None:
    assert Bottleneck(size, norms=False).count(bert_large) == count
    assert Bottleneck(size).count(bert_large) == count + 100_352


def test_share_of_bert_base(bert_base: Shape) -> None:
    assert bert_base.parameters == 109_482_240
    assert round(100 * Bottleneck(64).count(bert_base) / bert_base.parameters, 2) == 2.21


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_closed_form_equals_the_tensors(family: str, variant: dict[str, object]) -> None:
    shape = Shape.of(config(family))
    method = Bottleneck(5, **variant)  # type: ignore[arg-type]
    trained = sum(s.size for s in method.tensors(shape).values() if s.trained)
    assert method.count(shape) == trained


def run(encoder, method, tensors, training: bool = False):  # type: ignore[no-untyped-def]
    slots = Slots(method.tensors(encoder.shape), 1)
    slots.put(0, tensors)
    leaves = slots.leaves()
    rows = segments([6, 1, 15], pairs=False)
    group = Group(method, method.places(encoder.shape), leaves, 0, (0,), (3,))
    return encoder.forward(pack(rows), [group], training=training), leaves, encoder.forward(pack(rows))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_with_std_0_it_is_the_base(variant: dict[str, object]) -> None:
    encoder = tiny("bert")
    method = Bottleneck(5, std=0.0, **variant)  # type: ignore[arg-type]
    with torch.no_grad():
        states, _, plain = run(encoder, method, start(method.tensors(encoder.shape), encoder, 0))
    assert torch.equal(states, plain)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_with_std_0_it_is_the_base_in_every_family(family: str) -> None:
    encoder = tiny(family)
    method = Bottleneck(5, std=0.0)
    with torch.no_grad():
        states, _, plain = run(encoder, method, start(method.tensors(encoder.shape), encoder, 0))
    assert (states - plain).abs().max() <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_gradients_reach_every_trained_tensor_and_nothing_else(family: str, variant: dict[str, object]) -> None:
    torch.manual_seed(0)
    encoder = tiny(family)
    method = Bottleneck(5, std=0.5, **variant)  # type: ignore[arg-type]
    states, leaves, plain = run(encoder, method, start(method.tensors(encoder.shape), encoder, 0), training=True)
    assert not torch.allclose(states, plain, atol=1e-3)
    states.square().sum().backward()
    for name, spec in method.tensors(encoder.shape).items():
        assert leaves[name].requires_grad == spec.trained
        if spec.trained and not (name.endswith("down.bias") and method.inner_norm == "batch"):
            assert leaves[name].grad.abs().sum() > 0, name  # type: ignore[union-attr]
    assert all(p.grad is None for p in encoder.model.parameters())


def test_the_adapter_is_the_papers_formula() -> None:
    import torch.nn.functional as F

    from intarsia.encoder.owners import Owners
    from intarsia.encoder.site_view import SiteView

    torch.manual_seed(0)
    h = torch.randn(7, 6)
    t = {
        "0.ffn.output.down.weight": torch.randn(1, 3, 6),
        "0.ffn.output.down.bias": torch.randn(1, 3),
        "0.ffn.output.up.weight": torch.randn(1, 6, 3),
        "0.ffn.output.up.bias": torch.randn(1, 6),
    }
    down, bd, up, bu = (v[0] for v in t.values())
    hidden = F.gelu(h @ down.T + bd, approximate="tanh")
    own = SiteView("ffn.output", 0, t, Owners((0,), (7,)))
    assert torch.allclose(Bottleneck(3).output(own, h), h + hidden @ up.T + bu, atol=1e-6)
    assert torch.allclose(Bottleneck(3, multiplicative=True).output(own, h), h * (1 + hidden @ up.T + bu), atol=1e-5)


def test_the_start_is_a_truncated_normal() -> None:
    encoder = tiny("bert")
    method = Bottleneck(300, std=0.01)
    down = start(method.tensors(encoder.shape), encoder, 0)["0.attention.output.down.weight"]
    assert down.abs().max() <= 0.02
    assert float(down.std()) == pytest.approx(0.01 * 0.8796, rel=0.03)  # the std of a normal cut at two of its own
    again = start(method.tensors(encoder.shape), encoder, 0)["0.attention.output.down.weight"]
    assert torch.equal(down, again)


def test_norms_in_a_span() -> None:
    shape = Shape.of(config("bert"))
    names = set(Bottleneck(4, layers=(1, 2)).tensors(shape))
    assert "1.attention.norm.weight" in names and "0.attention.norm.weight" not in names
    assert "-1.embedding.norm.weight" not in names
    assert "-1.embedding.norm.weight" in Bottleneck(4).tensors(shape)


def test_configs_survive_json_and_the_command_line() -> None:
    import json

    for variant in VARIANTS:
        method = Bottleneck(7, **variant)  # type: ignore[arg-type]
        assert from_dict(json.loads(json.dumps(to_dict(method)))) == method
    assert parse("houlsby-16", ["layers=0,2-3", "activation=relu", "parallel=yes", "std=0.001"]) == Bottleneck(
        16, layers=(0, 2, 3), activation="relu", parallel=True, std=0.001
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bottleneck(0), "size 0 is too small"),
        (lambda: Bottleneck(activation="selu"), "expected one of: gelu, relu"),  # type: ignore[arg-type]
        (lambda: parse("hulsby"), "Did you mean 'houlsby'"),
        (lambda: parse("houlsby-x"), "is not valid"),
        (lambda: parse("houlsby", ["sice=3"]), "has no option 'sice'"),
        (lambda: from_dict({"type": "other"}), "not known"),
        (lambda: Bottleneck(4, layers=(9,)).count(Shape.of(config("bert"))), "layers 0 to 2"),
    ],
)
def test_wrong_options_are_explained(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IntarsiaError, match=message):
        make()


def test_options_are_all_covered_by_variants() -> None:
    changed = set(itertools.chain.from_iterable([*VARIANTS, *FORMS])) | {"size", "std", "dropout"}
    changed |= {"invertible", "invertible_reduction"}  # tests/methods/test_invertible.py
    assert changed == {f.name for f in dataclasses.fields(Bottleneck)}
