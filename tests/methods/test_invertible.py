"""Invertible adapters: the coupling and its inverse, against the library `adapters` and on every family."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import intarsia
from intarsia import LoRA, Stack
from intarsia.bank import family
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.owners import Owners
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.shape import Shape
from intarsia.encoder.site_view import SiteView
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import Bapna, Bottleneck, Method, Pfeiffer, from_dict, invertible, to_dict
from intarsia.methods.held import Held, parts_of
from intarsia.methods.method import lowest
from intarsia.tasks.learned import Learned
from intarsia.tasks.word_head import WordHead
from tests.support.families import FAMILY_NAMES, config, save_tiny, tiny
from tests.support.token_tasks import topics

FIXTURE = Path(__file__).parents[1] / "fixtures" / "invertible.safetensors"
NETS = {"F.0": "f.down", "F.2": "f.up", "G.0": "g.down", "G.2": "g.up"}  # the library's names, and ours


@pytest.fixture(scope="module")
def library() -> dict[str, Tensor]:
    return load_file(FIXTURE)


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def nets(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The library's F and G under our names."""
    named = {}
    for theirs, ours in NETS.items():
        for kind in ("weight", "bias"):
            named[f"-1.embedding.output.{ours}.{kind}"] = tensors[f"{theirs}.{kind}"]
    return named


def forward(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    slots = {name: t[None] for name, t in tensors.items()}
    return invertible.forward(SiteView(*invertible.PLACE, slots, Owners((0,), (len(x),))), x, "relu")


@torch.no_grad()
@pytest.mark.parametrize("width", [16, 7])
def test_forward_and_inverse_are_the_librarys(library: dict[str, Tensor], width: int) -> None:
    block = under(f"block{width}.", library)
    tensors, x = nets(block), block["x"]
    assert torch.allclose(forward(tensors, x), block["forward"], rtol=0, atol=1e-5)
    assert torch.allclose(invertible.inverse(tensors, x, "relu"), block["inverse"], rtol=0, atol=1e-5)
    shape = cast(Shape, SimpleNamespace(norm=lambda *_: SimpleNamespace(width=width)))
    assert {n: s.shape for n, s in invertible.specs(shape, 2 if width == 16 else 3).items()} == {
        n: tuple(t.shape) for n, t in tensors.items()
    }


@torch.no_grad()
def test_a_language_model_with_a_language_adapter_is_the_librarys(library: dict[str, Tensor]) -> None:
    from transformers import BertConfig, BertModel

    sizes = {
        "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 12,
    }  # fmt: skip
    model, own = BertModel(BertConfig(**sizes)), under("bert.", library)
    model.load_state_dict({name: t for name, t in own.items() if "adapters" not in name})
    encoder, method = Encoder(model.eval(), None, name="library"), Pfeiffer(4, invertible=True)
    tensors = nets(under("invertible_adapters.language.", own))
    for layer in range(2):
        theirs = under(f"encoder.layer.{layer}.output.adapters.language.", own)
        for part, name in (("down", "adapter_down.0"), ("up", "adapter_up")):
            for kind in ("weight", "bias"):
                tensors[f"{layer}.ffn.output.{part}.{kind}"] = theirs[f"{name}.{kind}"]
    assert tensors.keys() == method.tensors(encoder.shape).keys()
    slots = {name: t[None] for name, t in tensors.items()}
    group = Group(method, method.places(encoder.shape), slots, 0, (0,), (1,))
    states = encoder.forward(pack([Segment(library["ids"].tolist())]), [group])
    names = {"dense.weight": "0.weight", "dense.bias": "0.bias", "norm.weight": "2.weight", "norm.bias": "2.bias"}
    head = {ours: library[f"heads.words.{theirs}"] for ours, theirs in names.items()}
    head["output.bias"] = library["heads.words.3.bias"]
    logits = WordHead().logits(head, states, encoder, words=lambda rows: method.words(tensors, rows))
    assert torch.allclose(logits, library["logits"], rtol=0, atol=1e-5 * float(logits.abs().max()))


def lively(method: Method, encoder: Encoder) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    tensors = start(method.tensors(encoder.shape), encoder, 0)
    return {name: t + 0.2 * torch.randn(t.shape, generator=draw) for name, t in tensors.items()}


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_the_inverse_gives_the_embeddings_back(family: str, activation: Any) -> None:
    encoder = tiny(family)
    method = Bottleneck(3, norms=False, invertible=True, invertible_reduction=4, activation=activation)
    method.check(encoder.shape)
    tensors = lively(method, encoder)
    width = encoder.shape.words.shape[1]
    assert lowest(method, encoder.shape) == 0
    seen: list[Tensor] = []
    board_site = encoder.model.get_submodule(encoder.family.outside["embedding.output"])
    hook = board_site.register_forward_hook(lambda *args: seen.append(args[-1]))
    group = Group(method, method.places(encoder.shape), {n: t[None] for n, t in tensors.items()}, 0, (0,), (1,))
    batch = pack([Segment([5, 9, 30, 7])])
    encoder.forward(batch)
    encoder.forward(batch, [group])
    hook.remove()
    before, after = (x.reshape(-1, width) for x in seen)
    assert not torch.allclose(before, after, atol=1e-2)
    assert torch.allclose(method.words(tensors, after), before, rtol=0, atol=1e-5)


def test_it_is_refused_where_the_inverse_cannot_reach_the_words() -> None:
    shape = Shape.of(config("deberta-v2", embedding_size=16))
    for method in (Bottleneck(4, invertible=True), Bapna(4, invertible=True), Pfeiffer(4, invertible=True)):
        with pytest.raises(IntarsiaError, match="width 32, and the word embeddings have the width 16"):
            method.check(shape)
    Bottleneck(4).check(shape)


@pytest.mark.parametrize("method", [Pfeiffer(4), Bapna(4), Bottleneck(4)], ids=str)
def test_old_configs_stay_and_methods_without_it_leave_words_alone(method: Method) -> None:
    assert "invertible" not in str(to_dict(method)) and from_dict(to_dict(method)) == method
    assert not method.inverts_words
    rows = torch.ones(2, 3)
    assert method.words({}, rows) is rows


def test_the_last_layer_can_be_left_out() -> None:
    encoder = tiny("bert")
    method = Pfeiffer(4, layers="all-but-last")
    assert from_dict(to_dict(method)) == method
    assert method.places(encoder.shape) == Pfeiffer(4, layers=(0, 1)).places(encoder.shape)
    with pytest.raises(IntarsiaError, match="single layer"):
        method.tensors(Shape.of(config("bert", num_hidden_layers=1)))
    with pytest.raises(IntarsiaError, match="expected one of: all-but-last"):
        Pfeiffer(4, layers="last")  # type: ignore[arg-type]
    sized = Bottleneck(4, sizes=(3, 2), layers="all-but-last")
    sized.check(encoder.shape)
    assert sized.count(encoder.shape) == sum(s.size for s in sized.tensors(encoder.shape).values())


def test_a_language_is_learned_and_answers_with_the_inverse(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", save_tiny(tmp_path / "base"))
    (tmp_path / "texts.txt").write_text("\n".join(topics(60, 0)))
    method = Pfeiffer(8, invertible=True)
    options = {"learning_rate": 1e-2, "epochs": 4, "batch_size": 16, "max_length": 24}
    bank.learn("language", str(tmp_path / "texts.txt"), method, kind="words", **options)
    (answer,) = bank.predict("language", ["red [MASK] blue green"])
    encoder = bank.encoder
    learned = bank.store.load("language").learned_on(encoder)
    tensors = learned.method_tensors
    name = "-1.embedding.output.f.up.weight"
    assert float(tensors[name].std()) > 2 * float(start(method.tensors(encoder.shape), encoder, 0)[name].std())
    segment = Segment(encoder.tokenizer("red [MASK] blue green")["input_ids"])
    group = Group(method, method.places(encoder.shape), {n: t[None] for n, t in tensors.items()}, 0, (0,), (1,))
    with torch.no_grad():
        state = encoder.forward(pack([segment]), [group])[2:3]
        inverted, left_out = (
            WordHead().logits(learned.head_tensors, state, encoder, words=words).softmax(-1)[0]
            for words in (lambda rows: method.words(tensors, rows), None)
        )
    assert answer.masks is not None
    found = answer.masks[0]["words"][0]
    assert found["probability"] == pytest.approx(float(inverted.max()), abs=1e-5)
    assert abs(float(inverted.max()) - float(left_out.max())) > 1e-3


def test_words_are_learned_over_an_invertible_inlay_and_both_inverses_apply(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", save_tiny(tmp_path / "base"))
    (tmp_path / "texts.txt").write_text("\n".join(topics(40, 0)))
    options = {"kind": "words", "learning_rate": 1e-2, "epochs": 2, "batch_size": 16, "max_length": 24}
    language = Pfeiffer(8, invertible=True)
    bank.learn("language", str(tmp_path / "texts.txt"), language, **options)
    before = (bank.store.load("language")).digest
    domain = Stack("language", Bottleneck(3, norms=False, invertible=True, activation="tanh"))
    bank.learn("domain", str(tmp_path / "texts.txt"), domain, **options)
    assert bank.store.load("language").digest == before
    learned = family.learned_on(bank.store, bank.store.load("domain"), bank.encoder)
    assert learned.method.inverts_words and not Stack(Pfeiffer(3), LoRA(2)).inverts_words
    (answer,) = bank.predict("domain", ["red [MASK] blue green"])
    encoder, method = bank.encoder, learned.method
    (parent,) = learned.parents.values()
    own = {**learned.method_tensors, **{f"0.{name}": t for name, t in parent.method_tensors.items()}}
    rows = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    forward_both = rows
    for number, activation in ((0, "relu"), (1, "tanh")):
        part = {name.removeprefix(f"{number}."): t for name, t in own.items() if name.startswith(f"{number}.")}
        slots = {name: t[None] for name, t in part.items()}
        view = SiteView(*invertible.PLACE, slots, Owners((0,), (6,)))
        forward_both = invertible.forward(view, forward_both, activation)
    assert torch.allclose(method.words(own, forward_both), rows, rtol=0, atol=1e-5)
    (segment,) = encoder.tokenize(["red [MASK] blue green"])
    slots = {name: t[None] for name, t in learned.method_tensors.items()}
    parts = parts_of([Held(method, slots, 0, held(learned))], encoder.shape)
    group = Group(method, method.places(encoder.shape), slots, 0, (0,), (1,), parts)
    with torch.no_grad():
        state = encoder.forward(pack([segment]), [group])[2:3]
        logits = WordHead().logits(learned.head_tensors, state, encoder, words=lambda rows: method.words(own, rows))
    assert answer.masks is not None
    assert answer.masks[0]["words"][0]["probability"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


def held(learned: Learned) -> dict[str, Held]:
    return {
        digest: Held(parent.method, {n: t[None] for n, t in parent.method_tensors.items()}, 0)
        for digest, parent in learned.parents.items()
    }
