"""Tasks that leave their bank as adapters, and come back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia import IA3, Bottleneck, DoRA, LayerNorms, LoRA, LotteryTicket, Pfeiffer, Prefix
from intarsia.errors import ExchangeError, IntarsiaError
from intarsia.methods import Method
from tests.support.families import opinions, save_tiny

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "max_length": 20}
FORMATS: list[tuple[str, Method]] = [
    ("peft", LoRA(3, targets=("query", "ffn.up"))),
    ("peft", LoRA(2, layers=(1,), biases="targets")),
    ("peft", LoRA(2, biases="all")),
    ("peft", DoRA(3)),
    ("peft", IA3()),
    ("peft", LayerNorms()),
    ("peft", Prefix(4, offset=4)),
    ("adapterhub", Pfeiffer(3)),
    ("adapterhub", Bottleneck(4, norms=False, layers=(0, 2), sizes=(3, 5), norm_before=True)),
    ("adapterhub", LoRA(3, targets=("query", "ffn.up"), layers=(1,))),
    ("adapterhub", IA3(sites=("key", "value", "ffn.up"))),
    ("adapterhub", Prefix(4)),
    ("sft", LotteryTicket(entries=50)),
    ("sft", LotteryTicket(entries=50, norms=True)),
]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Bank:
    folder = tmp_path_factory.mktemp("exports")
    return intarsia.open(folder / "bank", save_tiny(folder / "base"))


@pytest.mark.parametrize(("format", "method"), FORMATS, ids=str)
def test_what_leaves_and_comes_back_answers_the_same(
    format: str, method: Method, bank: intarsia.Bank, tmp_path: Path
) -> None:
    texts = [row["text"] for row in opinions(8, seed=3)]
    name = f"task{FORMATS.index((format, method))}"
    bank.learn(name, opinions(40), method, pooling="trained-pooler", calibrate=False, **QUICK)
    done = bank.export(name, tmp_path / "out", format=format, license="apache-2.0")
    assert done.format == format and done.difference < 1e-5
    labels = bank.show(name).header.labels
    unnamed = format == "sft"  # its files do not name their base
    back = bank.import_(f"{name}-back", tmp_path / "out", labels=labels, base_is_the_same=unnamed)
    assert back.header.training["imported"]["format"] == format
    before, _ = bank.predict_proba(name, texts)
    after, _ = bank.predict_proba(f"{name}-back", texts)
    assert torch.allclose(torch.tensor(after), torch.tensor(before), atol=1e-5)


def test_the_card_says_what_it_is(bank: intarsia.Bank, tmp_path: Path) -> None:
    bank.learn("carded", opinions(40), LoRA(2), pooling="trained-pooler", **QUICK)
    bank.export("carded", tmp_path / "out", format="peft", license="cc-by-4.0")
    text = (tmp_path / "out" / "README.md").read_text()
    assert text.startswith('---\nbase_model: "base"\nlibrary_name: "peft"\nlicense: "cc-by-4.0"\n')
    assert "`no`, `yes`" in text and "test examples" in text and "PeftModel.from_pretrained" in text
    assert "id2label={0: 'no', 1: 'yes'}" in text
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["query", "value"] and config["task_type"] == "SEQ_CLS"


def test_the_temperature_is_in_the_weights(bank: intarsia.Bank, tmp_path: Path) -> None:
    bank.learn("cold", opinions(40), LoRA(2), pooling="trained-pooler", calibrate=False, **QUICK)
    inlay = bank.store.load("cold")
    entry = bank.store.add(dataclasses.replace(inlay, name="warm", head={**inlay.head, "temperature": 2.5}))
    bank.export("warm", tmp_path / "out", format="peft")
    bank.import_("warm-back", tmp_path / "out", labels=entry.header.labels)
    texts = [row["text"] for row in opinions(6, seed=3)]
    before, _ = bank.predict_proba("warm", texts)
    after, _ = bank.predict_proba("warm-back", texts)
    assert torch.allclose(torch.tensor(after), torch.tensor(before), atol=1e-5)


@pytest.mark.parametrize(
    ("format", "method", "pooling", "reason"),
    [
        ("peft", Pfeiffer(4), "trained-pooler", "no method that computes pfeiffer"),
        ("peft", Prefix(4), "trained-pooler", "offset=4"),
        ("peft", LoRA(2), "mean", "no class of transformers has this head"),
        ("sft", LoRA(2), "trained-pooler", "no sparse difference"),
        ("nonsense", LoRA(2), "mean", "format"),
    ],
)
def test_what_a_format_cannot_express_is_refused(
    format: str, method: Method, pooling: Any, reason: str, bank: intarsia.Bank, tmp_path: Path
) -> None:
    bank.learn("refused", opinions(40), method, pooling=pooling, serve_anyway=True, **QUICK)
    with pytest.raises(IntarsiaError, match=reason):
        bank.export("refused", tmp_path / "out", format=format)
    assert list(tmp_path.iterdir()) == []


def test_differences_are_numbered_by_column(bank: intarsia.Bank, tmp_path: Path) -> None:
    method = LotteryTicket(entries=30)
    bank.learn("sparse", opinions(40), method, pooling="trained-pooler", **QUICK)
    bank.export("sparse", tmp_path / "out", format="sft")
    content = torch.load(tmp_path / "out" / "pytorch_diff.bin", weights_only=True)
    inlay, base = bank.store.load("sparse"), bank.encoder.weights
    merged = method.weights(
        "sparse-1", bank.encoder.shape, {"values": inlay.tensors["method.values"]},
        {"index": inlay.tensors["method.index"]}, base,
    )  # fmt: skip
    assert content["diffs"].keys() == {f"bert.{name}" for name in merged}
    for name, tensor in merged.items():
        entry = content["diffs"][f"bert.{name}"]
        numbers = torch.tensor(entry["index_steps"]).cumsum(0)
        flat = base[name].T.reshape(-1).clone() if base[name].ndim == 2 else base[name].clone()
        flat[numbers] += entry["values"]
        found = flat.reshape(tensor.T.shape).T if tensor.ndim == 2 else flat
        assert torch.allclose(found, tensor, atol=1e-6)


def test_an_adapter_of_another_kind_of_head_takes_the_kind(bank: intarsia.Bank, tmp_path: Path) -> None:
    bank.learn("kinds", opinions(40), LotteryTicket(entries=30), pooling="pooler", **QUICK)
    bank.export("kinds", tmp_path / "out", format="sft")
    tags = bank.import_("tags", tmp_path / "out", kind="tags", labels=["no", "yes"], base_is_the_same=True).header
    assert (tags.kind, tags.head["pooling"]) == ("tags", "none")
    with pytest.raises(ExchangeError, match="2 different labels"):
        bank.import_("tags", tmp_path / "out", labels=["one"], base_is_the_same=True)
