"""The forms of bottleneck adapters that files of other systems have, against formulas written out in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import pack
from intarsia.encoder.routed import Group
from intarsia.encoder.shape import Shape
from intarsia.encoder.slots import Slots, start
from intarsia.errors import IntarsiaError
from intarsia.methods import IA3, Bottleneck, Method, from_dict, full_name, parse, running_key, to_dict
from tests.methods.test_formulas import Bert, _normal, attend
from tests.support.families import FAMILY_NAMES, config, plain_model, tiny
from tests.support.segments import segments

FORMS: list[dict[str, Any]] = [
    {"sizes": (3, 1, 4)},
    {"sizes": (3, 1), "layers": (0, 2)},
    {"scaling": -1.5},
    {"learned_scaling": "scalar", "parallel": True, "scaling": 2.0},
    {"learned_scaling": "channel"},
    {"norm_before": True, "multiplicative": True},
    {"norm_before": True, "norm_after": "change", "parallel": True},
    {"norm_after": "sum"},
    {"base_norm_before": True, "norms": False, "inner_norm": "layer"},
    {"base_norm_before": True, "residual": "sum", "norms": False, "places_in_layer": "attention"},
    {"base_norm_before": True, "residual": "read", "norms": False, "norm_after": "sum"},
    {"base_norm_before": True, "residual": "read", "base_norm_after": False, "norms": False},
    {"sum_before": True, "norms": False},
    {"sum_before": True, "residual": "sum", "norm_after": "change"},
    {"base_norm_after": False, "norms": False, "norm_before": True, "places_in_layer": "ffn"},
    *(
        {"activation": name}
        for name in ("gelu_exact", "leaky_relu", "quick_gelu", "relu6", "mish", "sigmoid", "linear")
    ),
]
ACT = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_exact": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu6": lambda x: x.clamp(0, 6),
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "linear": lambda x: x,
}


class Forms(Bert):
    """BERT with adapters in any form."""

    method: Bottleneck

    def norm(self, name: str, module: Any, x: Tensor) -> Tensor:
        gain, bias = (self.t.get(f"{name}.{kind}", getattr(module, kind)) for kind in ("weight", "bias"))
        return _normal(x) * gain + bias

    def layer(self, i: int, layer: Any, x: Tensor) -> Tensor:
        own, out = layer.attention.self, layer.attention.output
        q, k, v = (self.linear("", module, x) for module in (own.query, own.key, own.value))
        a = self.end_of(i, "attention", out.LayerNorm, self.linear("", out.dense, attend(q, k, v, self.heads)), x)
        inner = F.gelu(self.linear("", layer.intermediate.dense, a))
        return self.end_of(i, "ffn", layer.output.LayerNorm, self.linear("", layer.output.dense, inner), a)

    def end_of(self, i: int, part: str, norm: Any, h: Tensor, x: Tensor) -> Tensor:
        """The end of a sub-layer: what the pseudo-code of AdapterHub's bottleneck computes."""
        m, name, t = self.method, f"{i}.{part}.output", self.t

        def base_norm(y: Tensor, trained: bool = True) -> Tensor:
            return self.norm(f"{i}.{part}.norm" if trained else "", norm, y)

        def own_norm(which: str, y: Tensor) -> Tensor:
            return _normal(y, 1e-5) * t[f"{name}.{which}.weight"] + t[f"{name}.{which}.bias"]

        if f"{name}.down.weight" not in t:
            return base_norm(h + x)
        z = residual = h
        if m.parallel:
            z = x
        elif m.base_norm_before:
            z = base_norm(h + x, trained=False)
            residual = {"output": h, "sum": h + x, "read": z}[m.residual]
        elif m.sum_before:
            z = h + x
            residual = h if m.residual == "output" else z
        z = own_norm("norm_before", z) if m.norm_before else z
        z = self.own(f"{name}.down", z)
        if m.inner_norm == "layer":
            z = _normal(z, 1e-5) * t[f"{name}.inner.weight"] + t[f"{name}.inner.bias"]
        u = m.scaling * self.own(f"{name}.up", ACT[m.activation](z)) * t.get(f"{name}.scaling", 1.0)
        u = own_norm("norm_after", u) if m.norm_after == "change" else u
        o = residual + (residual * u if m.multiplicative else u)
        o = own_norm("norm_after", o) if m.norm_after == "sum" else o
        return base_norm(o + x) if m.base_norm_after else o


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_is_its_formula(form: dict[str, Any]) -> None:
    encoder, model = tiny("bert"), plain_model("bert").double()
    encoder.model.double()
    method = Bottleneck(5, **form)
    slots = Slots(method.tensors(encoder.shape), 2, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    for slot in (0, 1):
        fresh = start(method.tensors(encoder.shape), encoder, slot)
        slots.put(slot, {k: v.double() + 0.2 * torch.randn(v.shape, generator=draw) for k, v in fresh.items()})
    rows = segments([4, 1, 11], pairs=False)
    found = encoder.forward(pack(rows), [Group(method, method.places(encoder.shape), slots.tensors, 0, (1, 0), (1, 2))])
    for row, slot, states in zip(rows, (1, 0, 0), found.split([4, 1, 11]), strict=True):
        by_hand = Forms(model, slots.get(slot))
        by_hand.method = method
        assert torch.allclose(states, by_hand.states(list(row.ids)), rtol=0, atol=1e-10)


class ManyGains(Bert):
    """(IA)³ with a gain at every site that it can have."""

    def gain(self, i: int, site: str) -> Tensor:
        return self.t[f"{i}.{site}.gain"]

    def layer(self, i: int, layer: Any, x: Tensor) -> Tensor:
        own, out = layer.attention.self, layer.attention.output
        q, k, v = (
            self.linear("", module, x) * self.gain(i, site)
            for site, module in (("query", own.query), ("key", own.key), ("value", own.value))
        )
        mixed = attend(q, k, v, self.heads) * self.gain(i, "attention.dense.input")
        a = self.norm("", out.LayerNorm, x + self.linear("", out.dense, mixed) * self.gain(i, "attention.dense"))
        inner = F.gelu(
            self.linear("", layer.intermediate.dense, a * self.gain(i, "ffn.up.input")) * self.gain(i, "ffn.up")
        )
        h = self.linear("", layer.output.dense, inner * self.gain(i, "ffn.down.input")) * self.gain(i, "ffn.down")
        return self.norm("", layer.output.LayerNorm, a + h)


ALL_SITES = (
    "query", "key", "value", "attention.dense", "ffn.up", "ffn.down", "attention.dense.input", "ffn.up.input",
    "ffn.down.input",
)  # fmt: skip


@torch.no_grad()
def test_ia3_has_gains_at_the_sites_that_it_names() -> None:
    encoder, model, method = tiny("bert"), plain_model("bert").double(), IA3(sites=ALL_SITES)
    encoder.model.double()
    slots = Slots(method.tensors(encoder.shape), 1, dtype=torch.float64)
    slots.buffer.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(0))
    (row,) = segments([9], pairs=False)
    found = encoder.forward(pack([row]), [Group(method, method.places(encoder.shape), slots.tensors, 0, (0,), (1,))])
    assert torch.allclose(found, ManyGains(model, slots.get(0)).states(list(row.ids)), rtol=0, atol=1e-10)


METHODS: list[Method] = [*(Bottleneck(5, **form) for form in FORMS), IA3(sites=ALL_SITES), IA3(sites=("ffn.up",))]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_count_is_what_the_tensors_have(family: str) -> None:
    shape, refused = Shape.of(config(family)), []
    for method in METHODS:
        try:
            method.check(shape)
        except IntarsiaError as error:
            refused.append(str(error))
            continue
        assert method.count(shape) == sum(s.size for s in method.tensors(shape).values() if s.trained)
    norms, sizes = (sum(word in problem for problem in refused) for word in ("base_norm", "sizes were given"))
    assert norms == (5 if shape.pre_norm else 0) and sizes == (1 if shape.layers != 3 else 0)
    assert norms + sizes == len(refused)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_gradients_reach_every_trained_tensor(method: Method) -> None:
    encoder = tiny("bert")
    slots = Slots(method.tensors(encoder.shape), 2)
    for slot in (0, 1):
        slots.put(slot, start(method.tensors(encoder.shape), encoder, slot))
    slots.buffer.add_(0.2 * torch.randn(slots.buffer.shape, generator=torch.Generator().manual_seed(5)))
    leaves = slots.leaves()
    group = Group(method, method.places(encoder.shape), leaves, 0, (1,), (2,))
    encoder.forward(pack(segments([6, 9], pairs=False)), [group], training=True).sin().sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None and leaf.grad[1].any() and not leaf.grad[0].any(), name


def test_configs_of_old_inlays_stay_as_they_were() -> None:
    old = {
        "type": "bottleneck", "size": 64, "places_in_layer": "both", "layers": None, "activation": "gelu", "depth": 1,
        "inner_norm": "none", "parallel": False, "multiplicative": False, "norms": True, "embedding_norm": None,
        "std": 0.01,
    }  # fmt: skip
    assert to_dict(from_dict(old)) == old and to_dict(Bottleneck()) == old
    assert [key for key, _ in running_key(Bottleneck())[1:]] == sorted(set(old) - {"type", "std"})
    assert to_dict(IA3()) == {"type": "ia3", "layers": None}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_configs_survive_json_and_name_their_options(method: Method) -> None:
    assert from_dict(to_dict(method)) == method
    assert all(option in full_name(to_dict(method)) for option in method.newer if option in to_dict(method))


def test_forms_on_the_command_line() -> None:
    options = ["sizes=8,4,2", "scaling=4", "norm_after=sum", "activation=gelu_exact", "base_norm_before=yes"]
    expected = Bottleneck(
        sizes=(8, 4, 2), scaling=4.0, norm_after="sum", activation="gelu_exact", base_norm_before=True
    )
    assert parse("houlsby", options) == expected
    assert parse("ia3", ["sites=ffn.up,value,key"]) == IA3(sites=("key", "value", "ffn.up"))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Bottleneck(residual="sum"), "base_norm_before"),
        (lambda: Bottleneck(parallel=True, base_norm_before=True), "exclude"),
        (lambda: Bottleneck(base_norm_after=False), "norms=False"),
        (lambda: Bottleneck(sizes=(3,), layers=(0, 1)), "1 sizes were given for 2 layers"),
        (lambda: Bottleneck(sizes=(0,)), "sizes 0 is too small"),
        (lambda: Bottleneck(scaling=float("nan")), "scaling"),
        (lambda: Bottleneck(dropout=1.0), "dropout"),
        (lambda: Bottleneck(sizes=(3, 4), layers=(1, 0)), "ascending"),
        (lambda: IA3(sites=()), "at least one"),
        (lambda: IA3(sites=("query.input",)), "sites"),
        (lambda: Bottleneck(sizes=(3, 4)).check(Shape.of(config("bert"))), "2 sizes were given for 3 layers"),
    ],
)
def test_impossible_forms_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(IntarsiaError, match=problem):
        make()
