"""Files that are wrong, incomplete or malicious: an error that names the fault, and nothing in the bank."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import intarsia
from intarsia.errors import ExchangeError
from tests.support.families import save_tiny

ROOT = "base_model.model.bert."
Tensors = dict[str, torch.Tensor]


def config(**changes: Any) -> dict[str, Any]:
    plain = {
        "peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "r": 2, "lora_alpha": 4, "target_modules": ["query"],
        "base_model_name_or_path": "base", "bias": "none", "peft_version": "0.21.2",
    }  # fmt: skip
    return {**plain, **changes}


def tensors(layers: int = 3) -> Tensors:
    torch.manual_seed(3)
    found = {}
    for layer in range(layers):
        name = f"{ROOT}encoder.layer.{layer}.attention.self.query"
        found[f"{name}.lora_A.weight"] = torch.randn(2, 32) / 8
        found[f"{name}.lora_B.weight"] = torch.randn(32, 2) / 8
    return found


def write(folder: Path, flags: dict[str, Any], values: Tensors | None) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(flags))
    if values is not None:
        save_file(values, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("hostile") / "base")


@pytest.fixture
def bank(base: str, tmp_path: Path) -> intarsia.Bank:
    return intarsia.open(tmp_path / "bank", base)


def with_head() -> Tensors:
    head = {"weight": torch.randn(2, 32) / 8, "bias": torch.zeros(2)}
    return {**tensors(), **{f"base_model.model.classifier.{kind}": tensor for kind, tensor in head.items()}}


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    found = tensors()
    key = next(key for key in found if key.endswith(name))
    found[key] = change(found[key])
    return found


def without(name: str) -> Tensors:
    return {key: value for key, value in tensors().items() if not key.endswith(name)}


CASES: dict[str, tuple[dict[str, Any], Tensors, str]] = {
    "another width": (config(), changed("0.attention.self.query.lora_A.weight", lambda t: t[:, :16].clone()), "shape"),
    "another rank": (config(r=3), tensors(), "shape"),
    "a tensor too few": (config(), without("1.attention.self.query.lora_B.weight"), "no tensor"),
    "a layer too few": (config(), tensors(2), "layer.2.attention.self.query"),
    "a layer too many": (config(), tensors(4), "1 layer|2 tensors without a place"),
    "two thousand layers": (config(), tensors(2000), "without a place"),
    "an unknown tensor": (config(), {**tensors(), "other": torch.zeros(2)}, "'other'"),
    "an unknown flag": (config(use_magic=True), tensors(), "use_magic"),
    "a flag that nothing computes": (config(lora_bias=True), tensors(), "lora_bias"),
    "NaN": (config(), changed("lora_A.weight", lambda t: t * float("nan")), "NaN or infinity"),
    "a huge rank": (config(r=10**9), tensors(), "expected a number from 1"),
    "an infinite scale": (config(lora_alpha=float("inf")), tensors(), "lora_alpha"),
    "another peft method": (config(peft_type="XLORA"), tensors(), "XLORA"),
    "another task": (config(task_type="CAUSAL_LM"), tensors(), "CAUSAL_LM"),
    "no head": (config(task_type="SEQ_CLS"), tensors(), "has no head"),
    "a slow pattern": (config(target_modules="(.*a|b+)*query"), tensors(), "very long"),
    "a broken pattern": (config(target_modules="("), tensors(), "not valid"),
    "another base": (config(base_model_name_or_path="bert-base-cased"), tensors(), "base-is-the-same"),
    "whole numbers": (config(), changed("lora_A.weight", lambda t: t.long()), "int64"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_file_is_refused_with_its_fault(case: str, bank: intarsia.Bank, tmp_path: Path) -> None:
    flags, values, fault = CASES[case]
    folder = write(tmp_path / "adapter", flags, values)
    with pytest.raises(ExchangeError, match=fault):
        bank.import_("task", folder)
    assert bank.tasks() == []
    assert not (tmp_path / "bank").exists()


def test_values_that_overflow_are_found_by_the_first_answer(bank: intarsia.Bank, tmp_path: Path) -> None:
    huge = {name: tensor * 1e30 for name, tensor in with_head().items()}
    folder = write(tmp_path / "adapter", config(task_type="SEQ_CLS"), huge)
    with pytest.raises(ExchangeError, match="first answers"):
        bank.import_("task", folder)
    assert bank.tasks() == []


class _Runs:
    """Pickled, it would run a command when it is read."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.proof}",)


@pytest.mark.parametrize("container", ["torch", "pickle"])
def test_no_code_of_a_pickle_runs(container: str, bank: intarsia.Bank, tmp_path: Path) -> None:
    folder, proof = write(tmp_path / "adapter", config(), None), tmp_path / "ran"
    content = {**tensors(), "more": _Runs(proof)}
    file = folder / "adapter_model.bin"
    torch.save(content, file) if container == "torch" else file.write_bytes(pickle.dumps(content))
    with pytest.raises(ExchangeError, match=r"refused|cannot be read"):
        bank.import_("task", folder)
    assert not proof.exists()
    assert bank.tasks() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a":' * 5000, b"\xff\xfe"])
def test_a_broken_configuration_is_refused(content: bytes, bank: intarsia.Bank, tmp_path: Path) -> None:
    folder = write(tmp_path / "adapter", config(), tensors())
    (folder / "adapter_config.json").write_bytes(content)
    with pytest.raises(ExchangeError):
        bank.import_("task", folder, format="peft")
    assert bank.tasks() == []


def test_weights_that_are_not_read_are_named(bank: intarsia.Bank, tmp_path: Path) -> None:
    folder = write(tmp_path / "adapter", config(), tensors())
    save_file({"x": torch.zeros(1)}, folder / "more.safetensors")
    with pytest.raises(ExchangeError, match=re.escape("more.safetensors")):
        bank.import_("task", folder)


def test_the_command_exits_with_2_and_names_what_is_left(base: str, tmp_path: Path) -> None:
    from intarsia.cli import app

    folder = write(tmp_path / "adapter", config(), {**tensors(), "other": torch.zeros(2)})
    command = ["import", "task", str(folder), "--bank", str(tmp_path / "bank"), "--encoder", base]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, ExchangeError)  # `main` turns it into a message and exit code 2
    assert "'other'" in str(result.exception)
    assert not (tmp_path / "bank").exists()


def test_a_right_file_is_imported_by_the_command(base: str, tmp_path: Path) -> None:
    from intarsia.cli import app

    folder = write(tmp_path / "adapter", config(task_type="SEQ_CLS"), with_head())
    command = ["import", "task", str(folder), "--bank", str(tmp_path / "bank"), "--encoder", base, "--labels", "a,b"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "Imported task version 1" in result.output
    header = intarsia.open(tmp_path / "bank").show("task").header
    assert header.labels == ("a", "b")
    assert header.training["imported"]["library"] == "peft 0.21.2"
