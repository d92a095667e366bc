"""Differences in composable-sft's format compute here what they compute there, and damaged ones are refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from intarsia.bank.importing import inlay_of_adapter
from intarsia.encoder.encoder import Encoder
from intarsia.errors import ExchangeError
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.reading import read_adapter
from intarsia.exchange.sft import _by_column, _by_row
from intarsia.exchange.source import Source
from tests.exchange.fixtures.bases import HERE, base_model, batch
from tests.exchange.real.compare import largest, outputs
from tests.exchange.real.sft_format import encoded

FOLDER = HERE / "sft"
FAMILIES: dict[str, str] = json.loads((FOLDER / "made.json").read_text())["families"]
VALUE = "bert.encoder.layer.0.attention.self.value.weight"


@cache
def encoder(family: str = "bert") -> Encoder:
    return Encoder(base_model(family), None, name="base")


def read(folder: Path, family: str = "bert") -> Adapter:
    format, adapter = read_adapter(Source(folder), encoder(family), base_is_the_same=True)
    assert format == "sft"
    return adapter


@pytest.mark.parametrize("case", FAMILIES)
def test_a_fixture_computes_the_same_here(case: str) -> None:
    base = encoder(FAMILIES[case])
    adapter = read(FOLDER / case, FAMILIES[case])
    assert adapter.kind == "label" and adapter.method.name == "lt-sft"
    given = batch(base.model.config.pad_token_id or 0)
    found = outputs(inlay_of_adapter("case", adapter.with_labels(None), base, {}), base, given)
    assert largest(found, load_file(FOLDER / f"{case}.expected.safetensors"), given) <= 2e-5


@pytest.mark.parametrize("size", [(5,), (4, 7), (3, 4, 5)])
def test_numbers_by_row_and_by_column(size: tuple[int, ...]) -> None:
    tensor = torch.arange(1.0, 1 + int(np.prod(size))).reshape(size)
    by_column = torch.from_numpy(np.cumsum(encoded(tensor)["index_steps"]))
    rows = torch.arange(tensor.numel())
    assert torch.equal(_by_column(rows, size).sort().values, by_column)
    assert torch.equal(_by_row(_by_column(rows, size), size), rows)
    assert np.array_equal(tensor.numpy().flatten(order="F"), tensor.flatten()[_by_row(by_column, size)].numpy())


def write(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(content, folder / "pytorch_diff.bin")
    return folder


def difference(**changes: Any) -> dict[str, Any]:
    plain = {"size": torch.Size((16, 16)), "index_steps": [np.int64(3), 2, 200], "values": torch.ones(3)}
    return {"diffs": {VALUE: {**plain, **changes}}, "abs": {}}


def test_names_of_numpy_1_are_read(tmp_path: Path) -> None:
    new = write(tmp_path / "new", difference()) / "pytorch_diff.bin"
    old = tmp_path / "old"
    old.mkdir()
    with zipfile.ZipFile(new) as source, zipfile.ZipFile(old / "pytorch_diff.bin", "w") as target:
        for entry in source.namelist():
            content = source.read(entry)
            if entry.endswith("data.pkl"):
                assert b"numpy._core.multiarray" in content
                content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            target.writestr(entry, content)
    one, other = read(tmp_path / "new"), read(old)
    assert torch.equal(one.tensors["index"], other.tensors["index"]) and one.kind == "none"


DAMAGED: dict[str, tuple[Callable[[], Any], str]] = {
    "another layer": (lambda: {"diffs": {VALUE.replace("0", "7"): difference()["diffs"][VALUE]}, "abs": {}}, "layer.7"),
    "another size": (lambda: difference(size=torch.Size((16, 17))), "size"),
    "no size": (lambda: difference(size="large"), "size"),
    "a step backwards": (lambda: difference(index_steps=[9, -2, 4]), "ascending"),
    "an entry twice": (lambda: difference(index_steps=[9, 0, 4]), "ascending"),
    "beyond the end": (lambda: difference(index_steps=[9, 2, 400]), "below 256"),
    "a negative number": (lambda: difference(index_steps=[-9, 2, 4]), "ascending"),
    "huge steps": (lambda: difference(index_steps=[9, 2, 2**60]), "ascending"),
    "steps that are not numbers": (lambda: difference(index_steps=["a", 2, 3]), "ascending"),
    "a value too few": (lambda: difference(values=torch.ones(2)), "a value each"),
    "no tensor": (lambda: difference(values=[1.0, 2.0, 3.0]), "a value each"),
    "NaN": (lambda: difference(values=torch.full((3,), float("nan"))), "NaN or infinity"),
    "an unknown entry": (lambda: difference(mask=1), "mask"),
    "an unknown part": (lambda: {**difference(), "more": 1}, "more"),
    "an unknown whole tensor": (lambda: {**difference(), "abs": {"cls.bias": torch.ones(2)}}, "cls.bias"),
    "no difference": (lambda: {"diffs": {}, "abs": {}}, "no entry"),
    "something else": (lambda: [1, 2], "no difference of composable-sft"),
    "a head of another width": (lambda: {**difference(), "abs": {
        "classifier.weight": torch.ones(2, 5), "classifier.bias": torch.ones(2)}}, "shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_with_its_fault(name: str, tmp_path: Path) -> None:
    content, fault = DAMAGED[name]
    with pytest.raises(ExchangeError, match=fault):
        read(write(tmp_path / "adapter", content()))
