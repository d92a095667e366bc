"""Merging inlays of a bank: what the new inlay holds, answers and says about where it comes from."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import intarsia
from intarsia import BitFit, LoRA, LotteryTicket, Pfeiffer, Stack
from intarsia.bank.bank import Bank
from intarsia.bank.inlay_of import headless_inlay
from intarsia.cli import app
from intarsia.encoder.slots import start
from intarsia.errors import BankError, IntarsiaError
from intarsia.lab.model_card import card
from intarsia.lab.task_report import gather, page
from tests.bank.test_families import add
from tests.support.families import opinions, save_tiny

TEXTS = ["good film", "an awful day", "great great book"]
QUICK: dict[str, Any] = {"epochs": 1, "learning_rate": 3e-3, "max_length": 16}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    folder = tmp_path_factory.mktemp("merging")
    bank = intarsia.open(folder / "bank", save_tiny(folder / "base"))
    for seed in (1, 2):
        bank.learn(f"lora{seed}", opinions(seed=seed), LoRA(2), **QUICK)
        bank.learn(f"bitfit{seed}", opinions(seed=seed), BitFit(), **QUICK)
    bank.learn("adapter1", opinions(seed=1), Pfeiffer(2), **QUICK)
    bank.learn("adapter2", opinions(seed=2), Pfeiffer(2), **QUICK)
    bank.learn("reseeded", opinions(seed=2), Pfeiffer(2), seed=4, **QUICK)
    others = [{**row, "label": row["label"].upper()} for row in opinions()]
    bank.learn("shouted", others, LoRA(2), **QUICK)
    return bank


def tensors(bank: Bank, name: str) -> dict[str, torch.Tensor]:
    return dict(bank.store.load(name).tensors)


def test_a_linear_merge_of_an_inlay_with_itself_is_that_inlay(bank: Bank) -> None:
    bank.merge("same", {"adapter1": 0.5, "adapter1@1": 0.5})
    one, same = tensors(bank, "adapter1"), tensors(bank, "same")
    assert one.keys() == same.keys() and all(torch.equal(one[name], same[name]) for name in one)
    assert [p.label for p in bank.predict("same", TEXTS)] == [p.label for p in bank.predict("adapter1", TEXTS)]


def test_biases_are_merged_as_differences_from_the_base(bank: Bank) -> None:
    bank.merge("both", {"bitfit1": 1.0, "bitfit2": 1.0}, "arithmetic", scale=0.5)
    one, two, both = (tensors(bank, name) for name in ("bitfit1", "bitfit2", "both"))
    base = start(BitFit().tensors(bank.encoder.shape), bank.encoder, 0)
    for name, tensor in base.items():
        expected = tensor + 0.5 * (one[f"method.{name}"] + two[f"method.{name}"] - 2 * tensor)
        assert torch.allclose(both[f"method.{name}"], expected, atol=1e-6), name
    weight = "head.output.weight"  # both started with the seed 0
    assert torch.allclose(both[weight], 0.5 * (one[weight] + two[weight]), atol=1e-6)


def test_what_was_merged_is_in_its_provenance(bank: Bank) -> None:
    entry = bank.merge("exact", {"lora1": 0.7, "lora2": -0.3}, "concat", check=opinions(20, seed=5))
    header = entry.header
    assert header.method["rank"] == 4 and header.parents == ()
    origin = header.training["merged"]
    assert origin == {
        "how": "concat", "scale": 1.0, "head": "merged",
        "from": [
            {"name": "lora1", "version": 1, "digest": bank.show("lora1").header.digest, "weight": 0.7},
            {"name": "lora2", "version": 1, "digest": bank.show("lora2").header.digest, "weight": -0.3},
        ],
    }  # fmt: skip
    assert (
        header.metrics["test"]["examples"] == 20
        and header.metrics["test"]["too_few"]
        and header.training["max_length"] == 16
    )
    assert "temperature" not in header.head
    assert page(gather(bank, "exact")) and card(bank.show("exact"), None)
    with pytest.raises(BankError, match="weight"):
        inlay = bank.store.load("exact")
        wrong = {**origin, "from": [{**origin["from"][0], "weight": "x"}]}
        bank.store.add(dataclasses.replace(inlay, training={**inlay.training, "merged": wrong}))
    assert bank.verify() == []
    bank.remove("exact")  # it is the parent of nothing, and nothing is its parent


@pytest.mark.parametrize("how", ["arithmetic", "ties", "dare", "svd"])
def test_every_merge_answers(bank: Bank, how: str) -> None:
    entry = bank.merge("try", {"lora1": 1.0, "lora2": 1.0}, how, serve_anyway=True)
    assert 0 <= entry.header.training["merged"]["relative_error"] < 1
    assert len(bank.predict("try", TEXTS)) == 3


def test_labels_decide_about_the_head(bank: Bank) -> None:
    with pytest.raises(IntarsiaError, match=r"lora1@1 and shouted@1 differ in their kind.*head='lora1'"):
        bank.merge("x", {"lora1": 0.5, "shouted": 0.5})
    named = bank.merge("x", {"lora1": 0.5, "shouted": 0.5}, head="shouted").header
    assert named.labels == ("NO", "YES") and named.training["merged"]["head"] == "shouted"
    assert torch.equal(tensors(bank, "x")["head.output.weight"], tensors(bank, "shouted")["head.output.weight"])
    bare = bank.merge("language", {"lora1": 0.5, "shouted": 0.5}, head="none").header
    assert (bare.kind, bare.labels) == ("none", ())
    for name, options, reason in (
        ("x", {"head": "tone"}, "none of the merged tasks with a head: lora1@1, shouted@1"),
        ("x", {"head": "none", "check": opinions(8)}, "no answers to score"),
    ):
        with pytest.raises(IntarsiaError, match=reason):
            bank.merge(name, {"lora1": 0.5, "shouted": 0.5}, **options)


def test_sparse_differences_of_a_language_and_a_task_are_added(bank: Bank) -> None:
    shape = bank.encoder.shape
    for name, entries in (("language", [3, 70, 200]), ("sparse", [70, 90])):
        values = {"index": torch.tensor(entries), "values": torch.arange(1.0, 1 + len(entries))}
        inlay = headless_inlay(name, LotteryTicket(entries=len(entries)), values, bank.encoder, data={})
        bank.store.add(inlay, encoder=bank.encoder)
    entry = bank.merge("sum", {"language": 1.0, "sparse": 1.0}, "arithmetic")
    found = tensors(bank, "sum")
    assert found["method.index"].tolist() == [3, 70, 90, 200]
    assert found["method.values"].tolist() == [1.0, 3.0, 2.0, 3.0]
    assert entry.header.parameters["method"] == 4 == LotteryTicket(entries=4).count(shape)


def test_a_composition_keeps_its_parents(bank: Bank) -> None:
    add(bank, "medical", Pfeiffer(2), seed=8)
    add(bank, "general", Pfeiffer(2), seed=9)
    for seed, name, above in ((1, "one", "medical"), (2, "two", "medical"), (3, "far", "general")):
        add(bank, name, Stack(above, Pfeiffer(3)), seed=seed)
    entry = bank.merge("three", {"one": 0.5, "two": 0.5})
    assert entry.header.parents == (bank.show("medical").header.digest,)
    with pytest.raises(IntarsiaError, match="different methods"):
        bank.merge("three", {"one": 0.5, "far": 0.5})


def test_random_starts_must_be_common(bank: Bank) -> None:
    assert bank.merge("sum", {"adapter1": 1.0, "adapter2": -0.5}, "ties").header.kind == "label"
    with pytest.raises(IntarsiaError, match="started with different random values"):
        bank.merge("sum", {"adapter1": 1.0, "reseeded": 1.0}, "ties")
    assert bank.merge("mean", {"adapter1": 0.5, "reseeded": 0.5}).header.method == bank.show("adapter1").header.method
    with pytest.raises(IntarsiaError, match="mapping from tasks to weights"):
        bank.merge("sum", ["adapter1"])  # type: ignore[arg-type]


def test_the_command(bank: Bank) -> None:
    folder, runner = ["--bank", str(bank.store.folder)], CliRunner()
    done = runner.invoke(app, ["merge", "cli", "lora1=0.7", "lora2=0.3", "--how", "svd", "--rank", "1", *folder])
    assert done.exit_code == 0, done.output
    assert "lora1@1 0.7, lora2@1 0.3" in done.stdout and "lora-1" in done.stdout
    assert "svd of lora1@1 0.7" in runner.invoke(app, ["show", "cli", *folder]).stdout
    plain = runner.invoke(app, ["merge", "cli", "lora1", "lora2", "--json", "--serve-anyway", *folder])
    assert [f["weight"] for f in json.loads(plain.stdout)["training"]["merged"]["from"]] == [0.5, 0.5]
    both = runner.invoke(app, ["merge", "cli", "lora1", "lora2=-1", "--how", "arithmetic", "--json", *folder])
    assert [f["weight"] for f in json.loads(both.stdout)["training"]["merged"]["from"]] == [1.0, -1.0]
    for given in (["lora1=x"], ["lora1=1", "lora1=2"]):
        refused = runner.invoke(app, ["merge", "cli", *given, *folder])
        assert isinstance(refused.exception, IntarsiaError)
