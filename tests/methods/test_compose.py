"""The value objects of compositions: names, nesting, configurations, counts, and refusals."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from intarsia import Average, Bottleneck, Features, Fuse, LoRA, LotteryTicket, Parallel, Pfeiffer, Split, Stack
from intarsia.encoder.shape import Shape
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import (
    BitFit,
    Method,
    Parent,
    from_dict,
    full_name,
    names,
    parents,
    resolve,
    running_key,
    short_name,
    swap,
    to_dict,
)
from intarsia.methods.compose import USUAL_RATE
from intarsia.methods.method import lowest
from intarsia.tasks.heads import Head
from intarsia.tasks.learned import Learned
from intarsia.tasks.task_kind import TaskKind
from intarsia.train.job import Settings
from tests.support.families import tiny


def parent(task: str, method: Method | None = None, version: int = 1) -> Parent:
    return Parent(f"digest of {task}", task, version, method or Pfeiffer(3))


NESTED = Stack(Fuse("a", Stack("b@2", Pfeiffer(4)), static=True), LoRA(2), residual="library")


def bert_base() -> Shape:
    from transformers import BertConfig

    return Shape.of(BertConfig())


def test_names_are_resolved_at_every_depth_once() -> None:
    assert names(NESTED) == ("a", "b@2")
    asked: list[str] = []

    def lookup(name: str) -> Parent:
        asked.append(name)
        return parent(name)

    resolved = resolve(NESTED, lookup)
    assert names(resolved) == () and asked == ["a", "b@2"]
    assert [p.task for p in parents(resolved)] == ["a", "b@2"]
    assert resolve(LoRA(2), lookup) == LoRA(2)


def test_parents_are_listed_once_with_the_parents_of_parents() -> None:
    language = parent("language")
    task = Parent("digest", "task", 3, Stack(language, Pfeiffer(2)))
    assert parents(Fuse(language, task, Pfeiffer(3))) == (language, task)


def test_swap_replaces_own_parts_and_not_those_of_a_parent() -> None:
    medical, legal = parent("medical"), parent("legal")
    method = Fuse(Stack(medical, Pfeiffer(4)), Parent("d", "t", 1, Stack(medical, Pfeiffer(2))))
    swapped = swap(method, {medical.digest: legal})
    assert isinstance(swapped, Fuse) and swapped.methods[0] == Stack(legal, Pfeiffer(4))
    assert swapped.methods[1] == method.methods[1]


@pytest.mark.parametrize(
    "method",
    [
        NESTED,
        Stack(parent("a"), Pfeiffer(4, layers=(0, 1)), residual="paper"),
        Fuse(parent("a"), parent("b"), static=True, temperature=True),
        Average(parent("a"), "b", weights=(0.25, 0.75)),
        Split(LoRA(2, targets=("key",)), parent("b", Stack(parent("c"), BitFit()))),
    ],
)
def test_a_configuration_keeps_all_types(method: Method) -> None:
    import json

    config = json.loads(json.dumps(to_dict(method)))
    assert from_dict(config) == method and to_dict(from_dict(config)) == config
    assert pickle.loads(pickle.dumps(method)) == method
    assert eval(repr(method)) == method


def test_names_are_those_of_the_command_line() -> None:
    method = Stack(parent("medical", version=3), Pfeiffer(48), residual="paper")
    assert short_name(to_dict(method)) == "stack(medical, pfeiffer-48)"
    assert full_name(to_dict(method)) == "stack(medical@3, pfeiffer-48) residual=paper"
    assert full_name(to_dict(Fuse("a", Stack("b", LoRA(4, alpha=3.0))))) == "fuse(a, stack(b, lora-4 alpha=3))"


def test_compositions_of_one_structure_share_slots_whatever_their_parents() -> None:
    one, other = Stack(parent("a"), Pfeiffer(4)), Stack(parent("b"), Pfeiffer(4, std=0.5))
    assert running_key(one) == running_key(other) != running_key(Stack(parent("a", Pfeiffer(5)), Pfeiffer(4)))
    assert running_key(one) != running_key(Stack(Pfeiffer(3), Pfeiffer(4)))
    assert running_key(one) != running_key(Stack(parent("a"), Pfeiffer(4), residual="paper"))


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: Stack(), "Stack has 0 parts"),
        (lambda: Stack(Pfeiffer), "the class Pfeiffer"),
        (lambda: Stack(Features(), LoRA()), "stored states of the plain base"),
        (lambda: Stack(parent("a", Features()), LoRA()), "stored states of the plain base"),
        (lambda: Stack(BitFit(pooler=True), LoRA()), "changes the input of the head"),
        (lambda: Stack("a", residual="other"), "residual 'other' is not known"),
        (lambda: Average("a", "b", weights=(0.5, 0.6)), "sum to 1.1"),
        (lambda: Average("a", "b", weights=(1.0,)), "2 parts and 1 weights"),
        (lambda: Split("a"), "expected two"),
        (lambda: Fuse("a", dropout=1.5), "dropout 1.5"),
        (lambda: Parallel("a", "a"), "twice"),
        (lambda: Parallel(Stack("a")), "expected names of tasks"),
        (lambda: deep(9), "more than 8 levels"),
        (lambda: from_dict({"type": "stack", "parts": "abc"}), "not a list"),
        (lambda: from_dict({"type": "stack", "parts": [{"type": "parent", "task": "a"}]}), "expected an object"),
        (lambda: from_dict({"type": "fuse", "parts": ["a"], "static": 3}), "options of the method 'fuse'"),
        (lambda: from_dict({"type": "stack", "parts": [3]}), "a method is 3"),
        (lambda: from_dict(hostile(5000)), "more than 8 levels"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(make: Any, reason: str) -> None:
    with pytest.raises(IntarsiaError, match=reason):
        make()


def deep(levels: int) -> Method:
    method: Method = Pfeiffer(2)
    for _ in range(levels):
        method = Parent("d", "t", 1, Stack(method, Pfeiffer(2)))
    return method


def hostile(levels: int) -> dict[str, Any]:
    config: dict[str, Any] = {"type": "lora"}
    for _ in range(levels):
        config = {"type": "stack", "parts": [config]}
    return config


def test_a_name_is_refused_where_tensors_are_needed() -> None:
    with pytest.raises(IntarsiaError, match="the task 'a' as a part"):
        Stack("a", Pfeiffer(2)).tensors(bert_base())


def test_the_counts_of_fusion_are_those_of_the_paper() -> None:
    shape = bert_base()
    children = [parent(str(i), Pfeiffer()) for i in range(3)]
    assert Fuse(*children).count(shape) == Fuse(*children[:2]).count(shape) == 21_252_096
    assert Fuse(*children, static=True).count(shape) == 14_174_208
    houlsby = [parent(str(i), Bottleneck(64)) for i in range(2)]
    assert Fuse(*houlsby).count(shape) == 2 * 21_252_096


@pytest.mark.parametrize(
    "method",
    [
        Stack(parent("a"), Pfeiffer(4)),
        Fuse(parent("a"), Stack(parent("b", LoRA(2)), Bottleneck(2)), temperature=True),
        Average(LoRA(2), parent("b"), Stack(BitFit(), Pfeiffer(2))),
        Split(Pfeiffer(3), Bottleneck(4)),
        Stack(parent("a", LotteryTicket(0.01)), LotteryTicket(0.02)),
    ],
)
def test_a_composition_has_only_what_it_trains(method: Method) -> None:
    encoder = tiny("bert")
    specs = method.tensors(encoder.shape)
    assert method.count(encoder.shape) == sum(spec.size for spec in specs.values() if spec.trained)
    assert all(name[0] in "0123456789" or name.startswith("fusion.") for name in specs)
    assert not any(name.startswith("0.") for name in specs) or not isinstance(method.methods[0], Parent)  # type: ignore[attr-defined]
    assert lowest(method, encoder.shape) == 0


def test_a_fusion_starts_near_the_mean_of_its_parts() -> None:
    encoder = tiny("bert")
    method = Fuse(parent("a"), parent("b"), temperature=True)
    tensors = start(method.tensors(encoder.shape), encoder, 0)
    value = tensors["fusion.0.ffn.output.value.weight"]
    assert torch.equal(value.diag(), torch.ones(len(value))) and float(value[0, 1]) == pytest.approx(1e-6)
    assert float(tensors["fusion.0.ffn.output.temperature"]) == 50.0
    specs = method.tensors(encoder.shape)
    assert not specs["fusion.0.ffn.output.value.weight"].decay and specs["fusion.0.ffn.output.query.weight"].decay


def learned(method: Method, parents: dict[str, Learned] | None = None) -> Learned:
    encoder = tiny("bert")
    head = Head(2)
    specs = {f"method.{k}": v for k, v in method.stored(encoder.shape).items()}
    specs |= {f"head.{k}": v for k, v in head.tensors(encoder.shape).items()}
    return Learned(method, head, TaskKind("label", ("a", "b")), start(specs, encoder, 0), parents or {})


def test_an_inlay_is_checked_with_its_parents() -> None:
    shape, a = tiny("bert").shape, parent("a")
    method = Stack(a, Pfeiffer(4))
    good = learned(method, {a.digest: learned(Pfeiffer(3))})
    good.check(shape)
    with pytest.raises(IntarsiaError, match=r"built on a@1 \(digest of a\), which was not given"):
        learned(method).check(shape)
    with pytest.raises(IntarsiaError, match="has the method pfeiffer-2"):
        learned(method, {a.digest: learned(Pfeiffer(2))}).check(shape)
    broken = learned(Pfeiffer(3))
    del broken.tensors["method.0.ffn.output.up.bias"]  # type: ignore[attr-defined]
    with pytest.raises(IntarsiaError, match="is missing, but the method pfeiffer"):
        learned(method, {a.digest: broken}).check(shape)


def test_a_composition_trains_by_the_recipe_of_what_it_trains() -> None:
    for part in (Pfeiffer(4), LotteryTicket(0.01), BitFit(), Bottleneck(4)):
        assert Settings.for_method(Stack(parent("a"), part)) == Settings.for_method(part)
        assert Settings.for_method(Stack("a", Average("b", part))) == Settings.for_method(part)
    assert Settings.for_method(Stack(LotteryTicket(0.01), Pfeiffer(4))).learning_rate == 5e-5
    assert Settings.for_method(Fuse("a", "b")).learning_rate == 5e-5
    assert Settings.for_method(Average("a", "b")) == Settings()
    assert Settings().learning_rate == USUAL_RATE
