"""What compositions compute: as AdapterHub's library where it is right, and as plain references where it is wrong."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import pack
from intarsia.encoder.routed import Group
from intarsia.errors import IntarsiaError
from intarsia.methods import (
    IA3,
    Average,
    BitFit,
    Bottleneck,
    DoRA,
    Fuse,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Method,
    Parent,
    Pfeiffer,
    Prefix,
    Split,
    Stack,
)
from intarsia.methods.held import Held, parts_of
from tests.support.composed import Frozen, lively
from tests.support.families import FAMILY_NAMES, tiny
from tests.support.segments import segments

FIXTURE = Path(__file__).parents[1] / "fixtures" / "adapters_compositions.safetensors"
CLOSE = 2e-6


class Library:
    """The tiny base and the inlays of the fixture, and what AdapterHub's library gave."""

    def __init__(self) -> None:
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel

        from tests.fixtures.make_adapters_compositions import CONFIG, IDS

        self.tensors = load_file(FIXTURE)
        model = BertModel(BertConfig(**CONFIG)).eval()
        base = {k.removeprefix("base."): v for k, v in self.tensors.items() if k.startswith("base.")}
        model.load_state_dict(base, strict=False)
        self.encoder = Encoder(model, None, name="fixture")
        self.batch = pack([_segment(row) for row in IDS])
        self.held: dict[str, Held] = {}

    def output(self, name: str) -> Tensor:
        return self.tensors[f"output.{name}"].reshape(-1, 8)

    def parent(self, name: str) -> Parent:
        """An adapter of the fixture, as a part of compositions."""
        parallel = Bottleneck(4, places_in_layer="ffn", parallel=True, activation="relu", norms=False)
        method = parallel if name.startswith("parallel") else Pfeiffer(4)
        tensors = {}
        for layer in range(2):
            start = f"adapter.encoder.layer.{layer}.output.adapters.{name}.adapter_"
            for kind in ("weight", "bias"):
                tensors[f"{layer}.ffn.output.down.{kind}"] = self.tensors[f"{start}down.0.{kind}"][None]
                tensors[f"{layer}.ffn.output.up.{kind}"] = self.tensors[f"{start}up.{kind}"][None]
        self.held[name] = Held(method, tensors, 0)
        return Parent(name, name, 1, method)

    def fusion(self, name: str) -> dict[str, Tensor]:
        tensors = {}
        for layer in range(2):
            start = f"adapter.encoder.layer.{layer}.output.adapter_fusion_layer.{name}."
            for key in [k for k in self.tensors if k.startswith(start)]:
                tensors[f"fusion.{layer}.ffn.output.{key.removeprefix(start)}"] = self.tensors[key][None]
        return tensors

    @torch.no_grad()
    def run(self, method: Method, tensors: dict[str, Tensor] | None = None) -> Tensor:
        held, shape = Held(method, tensors or {}, 0, self.held), self.encoder.shape
        parts = parts_of([held], shape)
        group = Group(method, method.places(shape), held.tensors, 0, (0,), (2,), parts)
        return self.encoder.forward(self.batch, [group])


def _segment(ids: list[int]) -> Any:
    from intarsia.encoder.packed import Segment

    return Segment(ids, [0] * len(ids))


@cache
def library() -> Library:
    pytest.importorskip("safetensors")
    return Library()


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


# ---- as AdapterHub's library


def test_a_stack_and_a_fusion_of_pfeiffer_adapters_are_those_of_the_library() -> None:
    lib = library()
    a, b = lib.parent("a"), lib.parent("b")
    assert distance(lib.encoder.forward(lib.batch), lib.output("plain")) <= CLOSE
    assert distance(lib.run(Stack(a)), lib.output("a")) <= CLOSE
    assert distance(lib.run(Stack(a, b)), lib.output("stack")) <= CLOSE
    assert distance(lib.run(Fuse(a, b), lib.fusion("a,b")), lib.output("fuse")) <= CLOSE
    assert distance(lib.run(Fuse(b, a, static=True), lib.fusion("b,a")), lib.output("fuse_static")) <= CLOSE
    assert distance(lib.output("stack"), lib.output("b")) > 0.01


def test_where_the_library_is_wrong_ours_is_not() -> None:
    lib = library()
    a, first, second = lib.parent("a"), lib.parent("parallel_a"), lib.parent("parallel_b")
    assert distance(lib.run(Stack(second)), lib.output("parallel_b")) <= CLOSE
    assert distance(lib.output("stack_parallel"), lib.output("parallel_b")) <= CLOSE  # it lost the first
    both = lib.run(Stack(first, second))
    assert distance(both, lib.output("parallel_b")) > 0.01
    assert distance(both, lib.run(Stack(second, first))) <= CLOSE  # both read the sub-layer's input: the order is free
    assert distance(lib.output("average"), lib.output("a")) > 0.01  # its average of an adapter and itself is another
    assert (
        torch.equal(lib.run(Average(a, a)), lib.output("a"))
        or distance(lib.run(Average(a, a)), lib.output("a")) <= CLOSE
    )


def test_a_fusion_over_stacks_is_those_stacks() -> None:
    """With W_v the identity and one part, attention is 1, and the fusion is its part."""
    lib = library()
    a, b = lib.parent("a"), lib.parent("b")
    tensors = lib.fusion("b,a")
    for part in (Stack(a, b), Average(a, b, weights=(0.3, 0.7)), Stack(a, Average(b, a))):
        assert distance(lib.run(Fuse(part, static=True), tensors), lib.run(part)) <= CLOSE


# ---- plain references on a tiny base


ROWS = [
    row._replace(second=second)
    for row, second in zip(segments([5, 3, 8, 1], pairs=False), (2, None, 5, None), strict=True)
]


@cache
def frozen() -> Frozen:
    return Frozen(tiny("bert"))


@torch.no_grad()
def run(method: Method, tensors: dict[str, Tensor] | None = None) -> Tensor:
    given = {name: tensor[None] for name, tensor in (tensors or {}).items()}
    return frozen().encoder.forward(pack(ROWS), [frozen().group(method, given, 0, len(ROWS))])


@torch.no_grad()
def alone(method: Method, tensors: dict[str, Tensor]) -> Tensor:
    given = {name: tensor[None] for name, tensor in tensors.items()}
    shape = frozen().encoder.shape
    return frozen().encoder.forward(pack(ROWS), [Group(method, method.places(shape), given, 0, (0,), (len(ROWS),))])


def own(part: Parent) -> dict[str, Tensor]:
    return frozen().parents[part.digest].method_tensors


def test_low_rank_differences_add_up() -> None:
    a, b = frozen().add("lora-a", LoRA(2), 1), frozen().add("lora-b", LoRA(2), 2)
    both = {}
    for name, tensor in own(a).items():
        both[name] = torch.cat([tensor, own(b)[name]], 0 if name.endswith(".a.weight") else 1)
    expected = alone(LoRA(4, alpha=32.0), both)
    assert distance(run(Stack(a, b)), expected) <= 1e-4  # large differences: attention is steep
    assert distance(run(Stack(a, b, residual="paper")), expected) <= 1e-4
    halved = {name: tensor * (0.5 if name.endswith(".b.weight") else 1) for name, tensor in both.items()}
    assert distance(run(Average(a, b)), alone(LoRA(4, alpha=32.0), halved)) <= 1e-4


def test_gains_multiply_and_prefixes_stand_side_by_side() -> None:
    a, b = frozen().add("ia3-a", IA3(), 1), frozen().add("ia3-b", IA3(), 2)
    expected = alone(IA3(), {name: tensor * own(b)[name] for name, tensor in own(a).items()})
    assert distance(run(Stack(a, b)), expected) <= 1e-5
    a, b = frozen().add("prefix-a", Prefix(2), 1), frozen().add("prefix-b", Prefix(3), 2)
    expected = alone(Prefix(5), {name: torch.cat([tensor, own(b)[name]]) for name, tensor in own(a).items()})
    assert distance(run(Stack(a, b)), expected) <= 1e-5


def test_bias_differences_add_up_and_the_topmost_norm_acts() -> None:
    a, b = frozen().add("bits-a", BitFit(sites=("query", "ffn.up")), 1), frozen().add("bits-b", BitFit(), 2)
    encoder = frozen().encoder
    expected = {}
    for name, tensor in own(b).items():
        layer, _, rest = name.partition(".")
        expected[name] = tensor.clone()
        if name in own(a):
            base = encoder.at_site(rest.removesuffix(".bias"), int(layer), "bias").tensor
            expected[name] += own(a)[name] - base
    assert distance(run(Stack(a, b)), alone(BitFit(), expected)) <= 1e-5
    low, top = frozen().add("norms-low", LayerNorms(), 3), frozen().add("norms-top", LayerNorms(layers=(1,)), 4)
    expected = {**own(low), **own(top)}
    assert distance(run(Stack(low, top)), alone(LayerNorms(), expected)) <= 1e-6
    assert distance(run(Stack(top, low)), alone(LayerNorms(), own(low))) <= 1e-6
    mean = {name: (tensor + own(low)[name]) / 2 for name, tensor in own(low).items()}
    assert distance(run(Average(low, low)), alone(LayerNorms(), mean)) <= 1e-6


@pytest.mark.parametrize(
    "method", [Pfeiffer(3), Bottleneck(3), LoRA(2), IA3(), BitFit(), Bottleneck(3, parallel=True, scaling=2.0)], ids=str
)
def test_the_average_of_an_inlay_and_itself_is_that_inlay(method: Method) -> None:
    a = frozen().add("a", method, 1)
    expected = alone(method, own(a))
    assert distance(run(Average(a, a)), expected) <= 5e-6
    assert distance(run(Average(a, a, a)), expected) <= 2e-5


def test_the_paper_form_of_a_stack_drops_the_change_of_the_lower_adapter() -> None:
    """Reference: o2 = h + B2(LN(o1 + x)) with o1 = h + B1(LN(h + x)), layer by layer in plain PyTorch."""
    from tests.support.families import plain_model

    a, b = frozen().add("paper-a", Pfeiffer(3), 1), frozen().add("paper-b", Pfeiffer(3), 2)
    model = plain_model("bert")
    for layer, module in enumerate(model.encoder.layer):
        module.output.forward = _paper_output(module.output, layer, own(a), own(b))
    for row, found in zip(ROWS, run(Stack(a, b, residual="paper")).split([len(r.ids) for r in ROWS]), strict=True):
        ids, types = torch.tensor([row.ids]), torch.tensor([row.types])
        with torch.no_grad():
            expected = model(input_ids=ids, token_type_ids=types).last_hidden_state[0]
        assert distance(found, expected) <= 1e-5


def _change(tensors: dict[str, Tensor], layer: int, u: Tensor) -> Tensor:
    t = {name.removeprefix(f"{layer}.ffn.output."): tensor for name, tensor in tensors.items()}
    return torch.relu(u @ t["down.weight"].T + t["down.bias"]) @ t["up.weight"].T + t["up.bias"]


def _paper_output(output: Any, layer: int, first: dict[str, Tensor], second: dict[str, Tensor]) -> Any:
    def forward(hidden: Tensor, x: Tensor) -> Tensor:
        h = output.dense(hidden)
        o1 = h + _change(first, layer, output.LayerNorm(h + x))
        return output.LayerNorm(h + _change(second, layer, output.LayerNorm(o1 + x)) + x)

    return forward


def test_each_text_of_a_pair_has_its_own_part() -> None:
    """Reference: the base's output projection with two adapters, chosen by the token; norms likewise."""
    from tests.support.families import plain_model

    a, b = frozen().add("split-a", Pfeiffer(3, layers=(0, 1)), 1), frozen().add("split-b", Pfeiffer(3), 2)
    norms = frozen().add("split-norms", LayerNorms(layers=(2,)), 3)
    found = run(Split(a, Stack(b, norms))).split([len(r.ids) for r in ROWS])
    for row, states in zip(ROWS, found, strict=True):
        model = plain_model("bert")
        inside = (torch.arange(len(row.ids)) >= (len(row.ids) if row.second is None else row.second))[:, None]
        for layer, module in enumerate(model.encoder.layer):
            first = None if layer == 2 else own(a)
            module.output.forward = _split_output(module.output, layer, first, own(b), inside, own(norms))
            module.attention.output.LayerNorm.forward = _split_norm(
                module.attention.output.LayerNorm, f"{layer}.attention.norm", inside, own(norms)
            )
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([row.ids]), token_type_ids=torch.tensor([row.types]))
        assert distance(states, expected.last_hidden_state[0]) <= 1e-5
    assert distance(run(Split(a, a)), run(Stack(a))) <= 1e-6


def _split_norm(norm: Any, name: str, inside: Tensor, tensors: dict[str, Tensor]) -> Any:
    def forward(x: Tensor) -> Tensor:
        plain = torch.nn.functional.layer_norm(x, (32,), norm.weight, norm.bias, norm.eps)
        if f"{name}.weight" not in tensors:
            return plain
        second = torch.nn.functional.layer_norm(x, (32,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], norm.eps)
        return torch.where(inside, second, plain)

    return forward


def _split_output(
    output: Any, layer: int, first: Any, second: dict[str, Tensor], inside: Tensor, norms: dict[str, Tensor]
) -> Any:
    norm = _split_norm(output.LayerNorm, f"{layer}.ffn.norm", inside, norms)

    def forward(hidden: Tensor, x: Tensor) -> Tensor:
        h = output.dense(hidden)
        u = output.LayerNorm(h + x)
        own_change = 0 if first is None else _change(first, layer, u)
        return norm(h + torch.where(inside, _change(second, layer, u), own_change) + x)

    return forward


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Stack(DoRA(2), LoRA(2)), "DoRA scales the whole output"),
        (
            lambda: Stack(Pfeiffer(2), Bottleneck(2, norms=False, base_norm_after=False)),
            "replaces that of the sub-layer",
        ),
        (lambda: Stack(Pfeiffer(2), Bottleneck(2, parallel=True), residual="paper"), "does not read the output"),
        (lambda: Average(Prefix(2), Prefix(2)), "prefix"),
        (lambda: Average(LotteryTicket(), LoRA(2)), "Merge the inlays"),
        (lambda: Fuse(LotteryTicket(), Pfeiffer(2)), "changes weights of the base"),
        (lambda: Fuse(Pfeiffer(2), LoRA(2)), "outputs of sub-layers"),
        (lambda: Split(Prefix(2), LoRA(2)), "attention of the whole text"),
        (lambda: Split(Pfeiffer(2, invertible=True), LoRA(2)), "does not know to which of the texts"),
        (lambda: Average(Pfeiffer(2, invertible=True), Pfeiffer(2)), "has no inverse"),
        (lambda: Fuse(LayerNorms(), LayerNorms()), "nothing to attend to"),
        (lambda: Stack(LotteryTicket(entries=5), Pfeiffer(2)), "Learn one of them first"),
        (lambda: Stack(LotteryTicket(entries=5), LotteryTicket(entries=6)), "Learn one of them first"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(make: Any, reason: str) -> None:
    with pytest.raises(IntarsiaError, match=reason):
        make().check(frozen().encoder.shape)


# ---- every family


def composed(f: Frozen, pre_norm: bool) -> dict[str, Method]:
    pfeiffer: Any = partial(Pfeiffer, activation="gelu")
    adapter = partial(Bottleneck, places_in_layer="ffn", norms=False) if pre_norm else pfeiffer
    a, b, lora = f.add("a", adapter(3), 1), f.add("b", adapter(3), 2), f.add("lora", LoRA(2), 3)
    return {
        "stack": Stack(a, lora, adapter(4), LoRA(3)),
        "paper": Stack(a, adapter(4), residual="paper"),
        "fuse": Fuse(a, Stack(a, b), adapter(2)),
        "average": Average(a, lora, adapter(2), weights=(0.5, 0.2, 0.3)),
        "split": Split(Stack(a, lora), adapter(2)),
        "nested": Stack(Fuse(a, b, static=True), f.add("task", Stack(a, adapter(2)), 4), Bottleneck(2)),
    }


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_packed_padded_and_mixed_agree_and_gradients_reach_only_what_trains(family: str) -> None:
    encoder = tiny(family)
    f = Frozen(encoder)
    methods = composed(f, encoder.shape.pre_norm)
    made = {name: {n: t[None] for n, t in lively(m, encoder, 9).items()} for name, m in methods.items()}
    rows = ROWS * len(methods)
    batch = pack(rows)
    groups = [f.group(m, made[name], i * len(ROWS), len(ROWS)) for i, (name, m) in enumerate(methods.items())]
    with torch.no_grad():
        mixed = encoder.forward(batch, groups)
        assert distance(encoder.forward(batch, groups, padded=True), mixed) <= 5e-5
        plain = encoder.forward(pack(ROWS))
        size = plain.shape[0]
        for i, (name, method) in enumerate(methods.items()):
            found = mixed[i * size : (i + 1) * size]
            assert distance(found, encoder.forward(pack(ROWS), [f.group(method, made[name], 0, len(ROWS))])) <= 5e-5
            assert distance(found, plain) > 1e-2, name
    for name, method in methods.items():
        assert method.count(encoder.shape) == sum(s.size for s in method.tensors(encoder.shape).values() if s.trained)
        leaves = {n: t.clone().requires_grad_() for n, t in made[name].items()}
        states = encoder.forward(pack(ROWS), [f.group(method, leaves, 0, len(ROWS))], training=True)
        states.sin().sum().backward()
        for tensor, leaf in leaves.items():
            assert leaf.grad is not None and (leaf.grad.any() or tensor.endswith("key.bias")), (name, tensor)
    for inlay in f.parents.values():
        assert not any(t.requires_grad or t.grad is not None for t in inlay.tensors.values())
    assert not any(p.requires_grad or p.grad is not None for p in encoder.model.parameters())
