"""The arithmetic of merges, against plain references and against peft where peft is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from intarsia import DoRA, LoRA, LotteryTicket, Pfeiffer, Stack
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import Method
from intarsia.methods.merging import (
    HOW,
    Merge,
    concatenated,
    dare,
    factors_of,
    merge_method,
    ties,
    trimmed,
    weighted,
)
from intarsia.methods.norms import LayerNorms
from tests.support.families import tiny
from tests.support.small_methods import FORMS, SMALL

PEFT = json.loads((Path(__file__).parent.parent / "fixtures" / "peft_merges.json").read_text())
ENCODER = tiny()
SHAPE = ENCODER.shape


def vectors() -> list[Tensor]:
    return [torch.tensor(v) for v in PEFT["vectors"]["vectors"]]


def random_tensors(method: Method, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(spec.shape, generator=generator) for name, spec in method.stored(SHAPE).items()}


def begun(method: Method) -> dict[str, Tensor]:
    return start(method.stored(SHAPE), ENCODER, 0)


def merged(how: str, method: Method, tensors: list[Any], weights: tuple[float, ...], **options: Any) -> Any:
    common = options.pop("common", True)
    methods = options.pop("methods", [method] * len(tensors))
    return merge_method(Merge(weights, how, **options), SHAPE, methods, tensors, begun(method), common=common)


@pytest.mark.parametrize("density", ["0.2", "0.5", "1.0"])
def test_ties_is_that_of_peft_for_equal_weights(density: str) -> None:
    expected = torch.tensor(PEFT["vectors"]["ties"][density])
    assert torch.allclose(ties(vectors(), (1.0, 1.0, 1.0), float(density)), expected, atol=1e-6)


def test_ties_is_the_weighted_mean_of_those_that_agree() -> None:
    given, weights, density = [v.numpy() for v in vectors()], (0.7, -0.2, 1.5), 0.4
    expected = np.zeros(len(given[0]))
    kept = [np.where(np.argsort(np.argsort(-abs(v))) < int(density * len(v)), v, 0) for v in given]
    for i in range(len(expected)):
        votes = [w * v[i] for w, v in zip(weights, kept, strict=True)]
        sign = np.sign(sum(votes))
        agree = [(abs(w), vote) for w, vote in zip(weights, votes, strict=True) if vote and np.sign(vote) == sign]
        if agree:
            expected[i] = sum(vote for _, vote in agree) / sum(w for w, _ in agree)
    assert np.allclose(ties(vectors(), weights, density).numpy(), expected, atol=1e-6)


def test_the_other_sums() -> None:
    weights = PEFT["vectors"]["arithmetic"]["weights"]
    assert torch.allclose(weighted(vectors(), weights), torch.tensor(PEFT["vectors"]["arithmetic"]["value"]))
    assert (trimmed(vectors()[0], 0.2) != 0).sum() == 8 and (trimmed(vectors()[0], 1e-9) != 0).sum() == 1
    dropped = dare([torch.ones(20_000)] * 2, 0.75, seed=3)
    assert set(dropped[0].unique().tolist()) == {0.0, 4.0} and abs(float(dropped[0].mean()) - 1) < 0.05
    assert not torch.equal(*dropped)
    again = dare([torch.ones(20_000)] * 2, 0.75, seed=3)
    assert torch.equal(dropped[1], again[1])


def summed(*names: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors of the concatenation of peft's adapters, and the plain sum of their products."""
    given = [PEFT["lora"]["adapters"][name] for name in names]
    pairs = [(torch.tensor(g["b"]), torch.tensor(g["a"])) for g in given]
    scales = [w * g["alpha"] / len(g["a"]) for w, g in zip(PEFT["lora"]["weights"], given, strict=True)]
    total = sum((s * b @ a for s, (b, a) in zip(scales, pairs, strict=True)), torch.zeros(()))
    return *concatenated(pairs, scales), total


def test_products_are_those_of_peft() -> None:
    b, a, total = summed("one", "two")
    assert torch.allclose(b @ a, total, atol=1e-5)
    assert torch.allclose(b @ a, torch.tensor(PEFT["lora"]["delta"]["cat"]), atol=1e-5)
    b, a = factors_of(total, PEFT["lora"]["svd_rank"])
    assert torch.allclose(b @ a, torch.tensor(PEFT["lora"]["delta"]["svd"]), atol=1e-5)
    b, a, linear = summed("one", "three")
    theirs = torch.tensor(PEFT["lora"]["delta"]["linear"])  # adds A and B, each by roots of the weights
    assert torch.allclose(b @ a, linear, atol=1e-5)
    assert (theirs - linear).norm() > 0.3 * linear.norm(), "peft's linear is not the sum of the differences"
    b, a = factors_of(total, 9)  # a rank above that of the matrix
    assert b.shape == (5, 9) and torch.allclose(b @ a, total, atol=1e-5)


def delta(method: LoRA, tensors: Any, name: str = "1.query") -> Tensor:
    product: Tensor = tensors[f"{name}.b.weight"] @ tensors[f"{name}.a.weight"] * (method.alpha / method.rank)
    return product


def test_lora_merges_products_and_not_their_factors() -> None:
    methods = [LoRA(2, alpha=6.0), LoRA(3, alpha=3.0)]
    given = [random_tensors(m, i) for i, m in enumerate(methods)]
    expected = 0.5 * delta(methods[0], given[0]) - 2 * delta(methods[1], given[1])
    options: dict[str, Any] = {"methods": methods, "common": False}
    exact = merged("concat", methods[0], given, (0.5, -2.0), **options)
    assert exact.method == LoRA(5, alpha=5.0) and exact.lost is None
    assert torch.allclose(delta(exact.method, exact.tensors), expected, atol=1e-5)
    five = merged("svd", methods[0], given, (0.5, -2.0), rank=5, **options)
    assert torch.allclose(delta(five.method, five.tensors), expected, atol=1e-4) and five.lost < 1e-5
    less = merged("arithmetic", methods[0], given, (0.5, -2.0), **options)
    u, s, v = torch.linalg.svd(expected)
    assert torch.allclose(delta(less.method, less.tensors), u[:, :3] * s[:3] @ v[:3], atol=1e-4)
    assert less.method.rank == 3 and 0 < less.lost < 1
    same = merged("linear", methods[0], [given[0], given[0]], (0.5, 0.5))
    assert torch.allclose(delta(same.method, same.tensors), delta(methods[0], given[0]), atol=1e-5)


def test_trained_biases_of_lora_are_differences_from_the_base() -> None:
    method = LoRA(2, biases="targets")
    given = [random_tensors(method, i) for i in (1, 2)]
    base, name = begun(method), "0.query.bias"
    found = merged("concat", method, given, (1.0, -0.5)).tensors[name]
    expected = base[name] + (given[0][name] - base[name]) - 0.5 * (given[1][name] - base[name])
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("method", [Pfeiffer(3), LayerNorms()])
def test_tensors_are_merged_as_differences_from_the_start(method: Method) -> None:
    one, two, base = random_tensors(method, 1), random_tensors(method, 2), begun(method)
    for name in base:
        linear = merged("linear", method, [one, two], (0.25, 0.75)).tensors[name]
        assert torch.allclose(linear, 0.25 * one[name] + 0.75 * two[name], atol=1e-6)
        added = merged("arithmetic", method, [one, two], (1.0, -1.0), scale=0.3).tensors[name]
        assert torch.allclose(added, base[name] + 0.3 * (one[name] - two[name]), atol=1e-5)
    same = merged("linear", method, [one, one], (0.5, 0.5)).tensors
    assert all(torch.equal(same[name], one[name]) for name in one)
    kept = merged("ties", method, [one, two], (1.0, 1.0)).tensors
    moved = sum(int((kept[name] != base[name]).sum()) for name in base)
    assert 0.2 <= moved / sum(t.numel() for t in base.values()) <= 0.4


def test_sparse_differences_add_up() -> None:
    methods = [LotteryTicket(entries=3), LotteryTicket(entries=2)]
    given = [
        {"index": torch.tensor([2, 5, 9]), "values": torch.tensor([1.0, 2.0, 3.0])},
        {"index": torch.tensor([5, 8]), "values": torch.tensor([-2.0, 4.0])},
    ]
    found = merged("arithmetic", methods[0], given, (1.0, 1.0), methods=methods, common=False)
    assert found.tensors["index"].tolist() == [2, 8, 9], "an entry that cancels goes"
    assert found.tensors["values"].tolist() == [1.0, 4.0, 3.0] and found.method == LotteryTicket(entries=3)
    with pytest.raises(IntarsiaError, match="they cancel"):
        merged("arithmetic", methods[0], given[:1] * 2, (1.0, -1.0))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", [*SMALL, *FORMS])
def test_every_method_is_merged_or_refused_with_a_reason(name: str, how: str) -> None:
    method = {**SMALL, **FORMS}[name]
    given = [random_tensors(method, seed) for seed in (1, 2)]
    for seed, tensors in enumerate(given):
        if "index" in tensors:
            entries = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))[: len(tensors["index"])]
            tensors["index"] = entries.sort().values
    weights = (0.5, 0.5) if how == "linear" else (1.0, -0.5)
    only_lora = how in ("concat", "svd") and not isinstance(method, LoRA)
    if isinstance(method, DoRA) or only_lora:
        with pytest.raises(IntarsiaError, match="adds products" if only_lora else "norm of the whole"):
            merged(how, method, given, weights)
        return
    found = merged(how, method, given, weights, drop=0.5)
    expected = found.method.stored(SHAPE)
    assert {n: tuple(t.shape) for n, t in found.tensors.items()} == {n: spec.shape for n, spec in expected.items()}
    assert found.method.count(SHAPE) == sum(spec.size for spec in found.method.tensors(SHAPE).values() if spec.trained)
    assert all(bool(tensor.isfinite().all()) for tensor in found.tensors.values())
    found.method.check_values(SHAPE, found.tensors)


@pytest.mark.parametrize(
    "call, reason",
    [
        (lambda: merged("linear", Pfeiffer(3), [{}, {}], (0.5, 0.6)), "sum to 1.1; expected 1"),
        (lambda: merged("mean", Pfeiffer(3), [{}, {}], (0.5, 0.5)), "how 'mean' is not known"),
        (lambda: merged("ties", Pfeiffer(3), [{}, {}], (1, 1), common=False), "started with different random values"),
        (lambda: merged("concat", Pfeiffer(3), [{}, {}], (1, 1)), "concat adds products"),
        (lambda: merged("linear", DoRA(2), [{}, {}], (0.5, 0.5)), "depends on the norm of the whole changed weight"),
        (lambda: merged("linear", Stack(LoRA(2)), [{}, {}], (0.5, 0.5)), "with the part lora"),
        (
            lambda: merged("linear", LoRA(2), [{}, {}], (0.5, 0.5), methods=[LoRA(2), LoRA(2, targets=("key",))]),
            "different methods",
        ),
        (
            lambda: merged("linear", LoRA(2), [{}, {}], (0.5, 0.5), methods=[LoRA(2), Pfeiffer(2)]),
            "different methods",
        ),
        (lambda: merged("dare", LoRA(2), [{}, {}], (1, 1), drop=1.0), "drop 1.0"),
        (lambda: merged("svd", LoRA(2), [{}, {}], (1, 1), rank=0), "rank 0"),
        (lambda: merged("concat", LoRA(2), [random_tensors(LoRA(2), 0)] * 2, (1, 1), rank=3), "sum of all ranks, 4"),
        (lambda: merged("linear", LoRA(2), [], ()), "not all of them 0"),
    ],
)
def test_what_is_not_defined_is_refused(call: Any, reason: str) -> None:
    with pytest.raises(IntarsiaError, match=reason):
        call()
