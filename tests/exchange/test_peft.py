"""Fixtures that the real peft wrote (fixtures/make_peft.py) compute here what they computed there."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from intarsia.encoder.encoder import Encoder
from intarsia.errors import ExchangeError
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.peft import shortest
from intarsia.exchange.reading import read_adapter
from intarsia.exchange.source import Source
from tests.exchange.fixtures.bases import HERE, base_model, batch
from tests.exchange.real.compare import largest, outputs

FOLDER = HERE / "peft"
FAMILIES: dict[str, str] = json.loads((FOLDER / "made.json").read_text())["families"]
METHODS = {"vera": "lora", "adalora": "lora", "norms": "layernorm", "prefix-roberta": "prefix", "dora": "dora",
           "ia3": "ia3", "prefix": "prefix"}  # fmt: skip


@cache
def encoder(family: str) -> Encoder:
    return Encoder(base_model(family), None, name="base")


def read(folder: Path, family: str) -> Adapter:
    format, adapter = read_adapter(Source(folder), encoder(family))
    assert format == "peft"
    return adapter


@pytest.mark.parametrize("case", FAMILIES)
def test_a_fixture_computes_the_same_here(case: str) -> None:
    from intarsia.bank.importing import inlay_of_adapter

    base = encoder(FAMILIES[case])
    adapter = read(FOLDER / case, FAMILIES[case])
    assert adapter.method.name == METHODS.get(case, "lora")
    assert adapter.library == "peft 0.21.2"
    given = batch(base.model.config.pad_token_id or 0)
    found = outputs(inlay_of_adapter("case", adapter.with_labels(None), base, {}), base, given)
    assert largest(found, load_file(FOLDER / f"{case}.expected.safetensors"), given) <= 2e-5


def changed(tmp_path: Path, case: str, tensors: Any = None, **flags: Any) -> Path:
    """Return a copy of a fixture with other flags, and its tensors as `tensors` changes them."""
    folder = tmp_path / case
    shutil.copytree(FOLDER / case, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **flags}))
    if tensors is not None:
        weights = folder / "adapter_model.safetensors"
        save_file(tensors(load_file(weights)), weights)
    return folder


def without(*ends: str) -> Any:
    return lambda found: {name: t for name, t in found.items() if not name.endswith(ends)}


def cut(end: str) -> Any:
    return lambda found: {name: t[..., :-1].contiguous() if name.endswith(end) else t for name, t in found.items()}


HOSTILE: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "AdaLoRA with another E": ("adalora", cut("lora_E"), {}, "lora_E"),
    "AdaLoRA without E": ("adalora", without("lora_E"), {}, "no tensor"),
    "AdaLoRA of a huge rank": ("adalora", lambda found: {
        n: torch.zeros(5000, t.shape[1]) if n.endswith("lora_A") else t for n, t in found.items()}, {}, "too large"),
    "AdaLoRA with an unknown flag": ("adalora", None, {"use_magic": 1}, "use_magic"),
    "VeRA without projections": ("vera", without("vera_A", "vera_B"), {}, "save_projection=True"),
    "VeRA with narrow projections": ("vera", cut("vera_A"), {}, "do not cover"),
    "VeRA of another rank": ("vera", None, {"r": 2}, "do not cover"),
    "(IA)³ with a gain of another width": ("ia3", cut("ia3_l"), {}, "shape"),
    "(IA)³ with other places": ("ia3", None, {"feedforward_modules": ["value"]}, "shape"),
    "(IA)³ with a slow pattern": ("ia3", None, {"feedforward_modules": "(.*a|b+)*query"}, "very long"),
    "(IA)³ without a target": ("ia3", without("layer.1.attention.self.key.ia3_l"), {}, "no ia3_l"),
    "norms without a bias": ("norms", without("layer.0.output.LayerNorm.ln_tuning_layers.bias"), {}, "no tensor"),
    "norms of infinity": ("norms", lambda found: {n: t / 0 for n, t in found.items()}, {}, "NaN or infinity"),
    "a prefix for more layers": ("prefix", None, {"num_layers": 3}, "num_layers is 3"),
    "a prefix of another size": ("prefix", None, {"num_virtual_tokens": 4}, "shape"),
    "a prefix as long as the base": ("prefix", lambda found: {
        n: torch.zeros(40, t.shape[1]) if n == "prompt_embeddings" else t for n, t in found.items()},
        {"num_virtual_tokens": 40}, "leaves no position"),
    "a prefix of an encoder and a decoder": ("prefix", None, {"num_transformer_submodules": 2}, "submodules"),
    "prompt tuning": ("prefix", None, {"peft_type": "PROMPT_TUNING"}, "no place"),
    "DoRA without magnitudes": ("dora", without("lora_magnitude_vector"), {}, "lora_magnitude_vector"),
    "a head that was not saved": ("modernbert", without("head.dense.weight"), {}, "head.dense.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_changed_file_is_refused_with_its_fault(name: str, tmp_path: Path) -> None:
    case, tensors, flags, fault = HOSTILE[name]
    with pytest.raises(Exception, match=fault) as found:
        read(changed(tmp_path, case, tensors, **flags), FAMILIES[case]).check(encoder(FAMILIES[case]).shape)
    assert isinstance(found.value, ExchangeError) or "positions" in str(found.value)


def test_patterns_scales_and_notes() -> None:
    adapter = read(FOLDER / "lora-patterns", "bert")
    assert any("padded with zeros" in note for note in adapter.folded)
    assert read(FOLDER / "prefix", "bert").max_length == 37  # of 40 positions


def test_the_shortest_names_that_name_only_these() -> None:
    every = ["a.0.query", "a.1.query", "a.0.out.dense", "a.0.dense", "b.dense"]
    assert shortest(["a.0.query", "a.1.query"], every) == ["query"]
    assert shortest(["a.0.query"], every) == ["0.query"]
    assert shortest(["a.0.dense"], every) == ["0.dense"]
    assert shortest(["a.0.dense"], [*every, "xdense"], "") == ["0.dense"]
