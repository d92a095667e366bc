"""Fixtures that the real adapters library wrote (fixtures/make_adapterhub.py) compute here what they computed there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia import IA3, Bottleneck, DoRA, LoRA, Prefix
from intarsia.bank.export_card import card
from intarsia.bank.importing import answers, inlay_of_adapter
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.slots import start
from intarsia.errors import ExchangeError, IntarsiaError
from intarsia.exchange import adapterhub
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.modules import Modules
from intarsia.exchange.reading import read_adapter
from intarsia.exchange.source import Source
from intarsia.methods import Method
from intarsia.tasks.heads import Head, Hidden
from tests.exchange.fixtures.bases import HERE, base_model, batch
from tests.support.tiny_models import tiny_tokenizer

FOLDER = HERE / "adapterhub"
FAMILIES: dict[str, str] = {
    **json.loads((FOLDER / "made.json").read_text())["families"],
    "version_1": "bert",
    "fusion": "bert",
}


@cache
def encoder(family: str) -> Encoder:
    return Encoder(base_model(family), None, name="base")


def read(folder: Path, family: str = "bert") -> Adapter:
    format, adapter = read_adapter(Source(folder), encoder(family), base_is_the_same=True)
    assert format == "adapterhub"
    return adapter


def computed(adapter: Adapter, base: Encoder) -> dict[str, torch.Tensor]:
    """Return the states and logits of an adapter for the fixtures' batch, with padding as in it."""
    given = batch(base.model.config.pad_token_id or 0)
    mask = given["attention_mask"].bool()
    rows = [ids[m].tolist() for ids, m in zip(given["input_ids"], mask, strict=True)]
    packed = pack([Segment(row, [0] * len(row)) for row in rows])
    parts = {n: inlay_of_adapter(n, parent, base, {}).learned_on(base) for n, parent in adapter.parents.items()}
    states, logits = answers(inlay_of_adapter("a", adapter.with_labels(None), base, {}), base, packed, parts)
    found = torch.zeros(*mask.shape, states.shape[-1])
    found[mask] = states
    return {"hidden": found} | ({} if adapter.head is None else {"logits": logits})


def assert_same(found: dict[str, torch.Tensor], case: str) -> None:
    expected = load_file(FOLDER / f"{case}.expected.safetensors")
    mask = batch(0)["attention_mask"].bool()
    for name, tensor in expected.items():
        apart = (found[name] - tensor)[mask] if tensor.ndim == 3 else found[name] - tensor
        assert float(apart.abs().max()) <= 2e-5, name


@pytest.mark.parametrize("case", FAMILIES)
def test_a_fixture_computes_the_same_here(case: str) -> None:
    family = FAMILIES[case]
    adapter = read(FOLDER / case, family)
    assert_same(computed(adapter, encoder(family)), case)
    if adapter.head is not None and family != "modernbert" and case != "plain_class":
        assert (adapter.kind, adapter.labels) == ("label", ("no", "yes"))
    assert adapter.library == ("adapter-transformers" if case == "version_1" else "adapters 1.3.0")


@pytest.mark.parametrize("case", [case for case in FAMILIES if case != "fusion"])
def test_what_was_imported_goes_back(case: str, tmp_path: Path) -> None:
    base = encoder(FAMILIES[case])
    adapter = read(FOLDER / case, FAMILIES[case]).with_labels(None)
    adapterhub.write(replace(adapter, name="back"), Modules(base), tmp_path)
    back = read(tmp_path, FAMILIES[case])
    assert (back.method, back.kind, back.head) == (adapter.method, adapter.kind, adapter.head)
    assert back.labels == (() if adapter.head is None else adapter.labels)
    assert_same(computed(back, base), case)


@pytest.mark.parametrize(("case", "line"), [("seq_bn", "AutoAdapterModel"), ("modernbert", "adapters.init(model)")])
def test_the_card_has_the_lines_that_load_it(case: str, line: str) -> None:
    base = encoder(FAMILIES[case])
    adapter = read(FOLDER / case, FAMILIES[case]).with_labels(None)
    inlay = inlay_of_adapter("task", adapter, base, {})
    text = card(inlay, adapter, Modules(base), 1, "adapterhub", None)
    assert line in text and "load_adapter" in text


REFUSED: dict[str, tuple[Method, str]] = {
    "trained norms": (Bottleneck(4), "trained LayerNorms"),
    "depth": (Bottleneck(4, norms=False, depth=2), "more than one hidden layer"),
    "another place": (LoRA(2, targets=("attention.dense",)), "attention.dense"),
    "gains of inputs": (IA3(), "ffn.down.input"),
    "an offset": (Prefix(2, offset=2), "offset"),
    "biases": (LoRA(2, biases="all"), "trained biases"),
    "DoRA": (DoRA(2), "no method that computes dora"),
    "reads h + x": (Bottleneck(4, norms=False, sum_before=True), "sum_before"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_adapters_cannot_compute_is_not_exported(case: str, tmp_path: Path) -> None:
    method, reason = REFUSED[case]
    base = encoder("bert")
    tensors = start(method.stored(base.shape), base, 0)
    with pytest.raises(ExchangeError, match=reason):
        adapterhub.write(Adapter(method=method, tensors=tensors, name="x"), Modules(base), tmp_path)


@pytest.mark.parametrize(("pooling", "hidden"), [("mean", None), ("cls", Hidden("relu", norm=True))])
def test_a_head_that_adapters_does_not_have_is_not_exported(pooling: Any, hidden: Any, tmp_path: Path) -> None:
    base = encoder("bert")
    adapter = read(FOLDER / "seq_bn")
    head = Head(2, pooling, hidden)
    tensors = start(head.tensors(base.shape), base, 0)
    with pytest.raises(ExchangeError, match="heads of adapters"):
        adapterhub.write(replace(adapter, head=head, head_tensors=tensors, name="x"), Modules(base), tmp_path)


def changed(tmp_path: Path, case: str, **flags: Any) -> Path:
    """Return a copy of a fixture with other flags; None removes one."""
    folder = tmp_path / case
    shutil.copytree(FOLDER / case, folder)
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text())
    config["config"] = {k: v for k, v in {**config["config"], **flags}.items() if v != "removed"}
    file.write_text(json.dumps(config))
    return folder


FLAGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gating": ("seq_bn", {"use_gating": True}, "mean over all tokens of the padded"),
    "an unknown flag": ("seq_bn", {"magic": 1}, "magic"),
    "no place": ("seq_bn", {"output_adapter": False}, "no place"),
    "another size": ("seq_bn", {"reduction_factor": 4}, r"needs \(4, 16\)"),
    "a size of nonsense": ("seq_bn", {"reduction_factor": -1}, "reduction_factor"),
    "no size for a layer": ("sizes", {"reduction_factor": {"0": 4}}, "for the layer 1"),
    "an unknown activation": ("seq_bn", {"non_linearity": "sin"}, "activation 'sin'"),
    "an unknown scaling": ("seq_bn", {"scaling": "wild"}, "scaling"),
    "post_add without its norm": ("par_bn", {"is_parallel": False, "residual_before_ln": "post_add"}, "adapters fails"),
    "a layer too few": ("seq_bn", {"leave_out": [1]}, "without a place"),
    "a layer that is not there": ("seq_bn", {"leave_out": [7]}, "leave_out"),
    "all layers left out": ("seq_bn", {"leave_out": [0, 1]}, "all layers"),
    "an unknown method": ("seq_bn", {"architecture": "other"}, "'other'"),
    "prompt tuning": ("seq_bn", {"architecture": "prompt_tuning"}, "tokens before the text"),
    "a huge rank": ("lora", {"r": 10**9}, "expected a number from 1"),
    "another rank": ("lora", {"r": 3}, "shape"),
    "a huge prefix": ("prefix", {"prefix_length": 10**7}, "expected a number"),
    "another prefix": ("prefix", {"prefix_length": 3}, "prefix tensor"),
    "a matrix that adapters does not have": ("lora", {"attn_matrices": ["q", "o"]}, "'o'"),
    "a union in a union": ("union", {"configs": [{"architecture": "union", "configs": []}]}, "union inside a union"),
    "no union": ("union", {"configs": {}}, "configs"),
    "a mode that is not there": ("ia3", {"composition_mode": "divide"}, "divide"),
    "a rank of gains": ("ia3", {"r": 2}, "needs r = 1"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_a_flag_that_cannot_be_computed_is_refused(case: str, tmp_path: Path) -> None:
    fixture, flags, fault = FLAGS[case]
    with pytest.raises(IntarsiaError, match=fault):
        read(changed(tmp_path, fixture, **flags))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    three = Encoder(_with_layers(3), None, name="base")
    with pytest.raises(ExchangeError, match=r"no tensor 'bert.encoder.layer.2"):
        read_adapter(Source(FOLDER / "seq_bn"), three, base_is_the_same=True)
    with pytest.raises(ExchangeError, match="family 'bert'"):
        read(FOLDER / "seq_bn", "roberta")
    with pytest.raises(ExchangeError, match="base-is-the-same"):
        read_adapter(Source(FOLDER / "seq_bn"), encoder("bert"))


def _with_layers(layers: int) -> Any:
    from transformers import AutoModel

    from tests.exchange.fixtures.bases import small_config

    config = small_config("bert")
    config.num_hidden_layers = layers
    return AutoModel.from_config(config).eval()


@pytest.mark.parametrize("change", ["missing", "extra", "nan", "layers", "wrong shape", "renamed twice"])
def test_wrong_tensors_are_refused(change: str, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(FOLDER / "par_bn", folder)
    tensors = load_file(folder / "adapter.safetensors")
    name = "bert.encoder.layer.0.output.adapters.a.adapter_up.weight"
    if change == "missing":
        del tensors[name]
    elif change == "extra":
        tensors["bert.encoder.layer.0.output.adapters.b.adapter_up.weight"] = tensors[name].clone()
    elif change == "nan":
        tensors[name][0, 0] = torch.nan
    elif change == "layers":
        tensors |= {name.replace("layer.0", f"layer.{i}"): tensors[name].clone() for i in range(2, 2000)}
    elif change == "wrong shape":
        tensors[name] = tensors[name].T.contiguous()
    else:
        tensors[name.replace(".adapters.", ".layer_text_task_adapters.")] = tensors[name].clone()
    save_file(tensors, folder / "adapter.safetensors")
    faults = {"missing": "no tensor", "extra": "without a place", "nan": "NaN", "layers": "without a place",
              "wrong shape": "shape", "renamed twice": "old and their new"}  # fmt: skip
    with pytest.raises(ExchangeError, match=faults[change]):
        read(folder)


def test_copies_of_a_prefix_must_be_equal(tmp_path: Path) -> None:
    folder = tmp_path / "prefix"
    shutil.copytree(FOLDER / "prefix", folder)
    tensors = torch.load(folder / "pytorch_adapter.bin", weights_only=True)
    last = [name for name in tensors if name.endswith("wte.weight")][-1]
    tensors[last] = tensors[last] + 1
    torch.save(tensors, folder / "pytorch_adapter.bin")
    with pytest.raises(ExchangeError, match="should be a copy"):
        read(folder)


def test_old_lora_had_no_scaling(tmp_path: Path) -> None:
    folder = changed(tmp_path, "lora")
    file = folder / "adapter_config.json"
    file.write_text(file.read_text().replace("adapters.1.3.0", "adapters.1.0.1"))
    old, new = read(folder), read(FOLDER / "lora")
    assert old.method.alpha == old.method.rank  # type: ignore[attr-defined]
    assert new.method.alpha == 3 * new.method.rank  # type: ignore[attr-defined]


def test_gelu_changed_its_meaning(tmp_path: Path) -> None:
    new = read(changed(tmp_path / "new", "seq_bn", non_linearity="gelu"))
    old = read(changed(tmp_path / "old", "version_1", non_linearity="gelu"))
    assert (new.method.activation, old.method.activation) == ("gelu_exact", "gelu")  # type: ignore[attr-defined]
    older = read(changed(tmp_path / "older", "version_1", non_linearity="gelu_orig"))
    assert older.method.activation == "gelu_exact"  # type: ignore[attr-defined]


def test_the_names_of_old_flags_are_known(tmp_path: Path) -> None:
    folder = changed(tmp_path, "version_1", ln_after="removed", LN_after=False, mh_adapter="removed", MH_Adapter=False)
    assert_same(computed(read(folder), encoder("bert")), "version_1")


def head(tmp_path: Path, **flags: Any) -> Path:
    folder = tmp_path / "head"
    shutil.copytree(FOLDER / "seq_bn", folder)
    config = json.loads((folder / "head_config.json").read_text())
    config["config"] |= flags
    (folder / "head_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ({"head_type": "multiple_choice"}, "multiple_choice"),
        ({"layers": 3}, "3 layers"),
        ({"num_labels": 3}, "shape"),
        ({"label2id": {"no": 0, "yes": 2}}, "not 0 to 1"),
        ({"label2id": ["no"]}, "label2id"),
        ({"activation_function": "sin"}, "sin"),
        ({"more": 1}, "more"),
    ],
)
def test_a_head_that_cannot_be_computed_is_refused(flags: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match=fault):
        read(head(tmp_path, **flags))


def test_a_head_that_cannot_be_computed_can_be_left_out(tmp_path: Path) -> None:
    folder = head(tmp_path, head_type="multiple_choice")
    _, adapter = read_adapter(Source(folder), encoder("bert"), base_is_the_same=True, headless=True)
    assert adapter.kind == "none"


def test_an_interface_of_the_users_own_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(FOLDER / "modernbert", folder)
    file = folder / "adapter_interface.json"
    interface = json.loads(file.read_text())
    interface["interface"]["layer_ln_2"] = "attn_norm"
    file.write_text(json.dumps(interface))
    with pytest.raises(ExchangeError, match="another interface"):
        read(folder, "modernbert")


def test_a_head_without_labels_gets_numbered_ones(tmp_path: Path) -> None:
    adapter = read(head(tmp_path, label2id=None))
    assert adapter.labels == () and adapter.with_labels(None).labels == ("LABEL_0", "LABEL_1")


@pytest.fixture
def bank(tmp_path: Path) -> intarsia.Bank:
    return intarsia.open(tmp_path / "bank", Encoder(base_model("bert"), tiny_tokenizer(), name="base"))


def test_a_setup_becomes_a_composition_over_inlays_of_its_own(bank: intarsia.Bank) -> None:
    entry = bank.import_("fused", FOLDER / "fusion", base_is_the_same=True)
    assert [e.name for e in bank.tasks()] == ["fused", "fused-a", "fused-b"]
    assert len(entry.header.parents) == 2 and entry.header.labels == ("no", "yes")
    bank.import_("single", FOLDER / "seq_bn", base_is_the_same=True)
    texts = ["a good film", "bad apple", "the sun"]
    mixed = bank.predict([(task, text) for text in texts for task in ("fused", "single")])
    assert [a.probabilities for a in mixed[::2]] == [a.probabilities for a in bank.predict("fused", texts)]
    assert [a.probabilities for a in mixed[1::2]] == [a.probabilities for a in bank.predict("single", texts)]


FUSION_FAULTS: dict[str, tuple[str, Any, str]] = {
    "an unknown block": ("adapter_setup.json", {"adapter_setup": {"type": "Average", "children": []}}, "divides"),
    "no tree": ("adapter_setup.json", {"adapter_setup": "a"}, "type with children"),
    "two heads": ("adapter_setup.json", {"head_setup": ["h", "i"]}, "one head"),
    "a folder outside": ("adapter_setup.json", {"head_setup": "../fusion"}, "no folder"),
    "an unknown flag": ("adapter_setup.json", {"more": 1}, "more"),
    "a temperature": ("a,b/adapter_fusion_config.json", {"config": {"temperature": True}}, "temperature"),
    "other names": ("a,b/adapter_fusion_config.json", {"adapter_names": ["b", "a"]}, "fuses a, b"),
}


@pytest.mark.parametrize("case", FUSION_FAULTS)
def test_a_wrong_setup_is_refused_and_nothing_is_stored(case: str, bank: intarsia.Bank, tmp_path: Path) -> None:
    file, change, fault = FUSION_FAULTS[case]
    folder = tmp_path / "fusion"
    shutil.copytree(FOLDER / "fusion", folder)
    config = json.loads((folder / file).read_text())
    config |= {"config": config["config"] | change["config"]} if "config" in change else change
    (folder / file).write_text(json.dumps(config))
    with pytest.raises(ExchangeError, match=fault):
        bank.import_("fused", folder, base_is_the_same=True)
    assert bank.tasks() == []


def test_parts_are_removed_if_the_composition_cannot_be_stored(
    bank: intarsia.Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("intarsia.bank.succession.add", fails)
    with pytest.raises(OSError, match="no space"):
        bank.import_("fused", FOLDER / "fusion", base_is_the_same=True)
    assert bank.tasks() == []


def test_a_pickle_with_code_is_refused(tmp_path: Path) -> None:
    import pickle

    folder, proof = tmp_path / "seq_bn", tmp_path / "ran"
    shutil.copytree(FOLDER / "seq_bn", folder)

    class Runs:
        def __reduce__(self) -> Any:
            return Path.touch, (proof,)

    (folder / "pytorch_adapter.bin").write_bytes(pickle.dumps({"x": Runs()}))
    with pytest.raises(ExchangeError, match=r"refused|cannot be read"):
        read(folder)
    assert not proof.exists()
