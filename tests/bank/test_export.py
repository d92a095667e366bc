"""An exported folder computes what the bank does, in plain `transformers`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import intarsia
from intarsia import methods as m
from intarsia.bank import export as exporting
from intarsia.bank.bank import Bank
from intarsia.bank.inlay import Inlay
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import start
from intarsia.errors import BankError, IntarsiaError
from intarsia.methods import Method, to_dict
from intarsia.tasks.heads import Head, Hidden
from tests.support.families import FAMILY_NAMES, plain_model, tiny_tokenizer
from tests.support.small_methods import SMALL

METHODS = {name: method for name, method in SMALL.items() if method.mergeable}
# Why not, of the pairs that cannot be.
REFUSED = {
    ("albert", "lora"): "share one set of weights",
    ("albert", "dora"): "share one set of weights",
    ("albert", "ia3"): "share one set of weights",
    ("albert", "bitfit"): "share one set of weights",
    ("albert", "layernorm"): "share one set of weights",
    ("albert", "top"): "share one set of weights",
    ("deberta-v2", "lora"): "query and key",
    ("deberta-v2", "dora"): "query and key",
    ("deberta-v2", "ia3"): "query and key",
    ("deberta-v2", "bitfit"): "query and key",
    ("modernbert", "bitfit"): "has no bias",
}
CLASSES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
    "mpnet": "MPNetForSequenceClassification",
    "albert": "AlbertForSequenceClassification",
    "deberta-v2": "DebertaV2ForSequenceClassification",
}
TEXTS = ["good film", "the big red apple was cold and so very hot", "bad", "one two three four " * 12]


@cache
def encoder(family: str) -> Encoder:
    tokens = {f"{kind}_token_id": 2 + (kind in ("eos", "sep")) for kind in ("bos", "eos", "cls", "sep")}
    model = plain_model(family, **(tokens if family == "modernbert" else {}))
    return Encoder(model, tiny_tokenizer(model.config.pad_token_id), name=f"tiny-{family}")


def inlay(base: Encoder, method: Method, pooling: str = "mean", **changes: Any) -> Inlay:
    """One whose every tensor does something."""
    draw = torch.Generator().manual_seed(7)
    shape, labels = base.shape, changes.get("labels", ("no", "yes", "perhaps"))
    head = Head(len(labels) or 1, pooling, changes.pop("hidden", None))  # type: ignore[arg-type]
    specs = {f"method.{k}": v for k, v in method.tensors(shape).items()}
    specs |= {f"head.{k}": v for k, v in head.tensors(shape, method.row_width(shape)).items()}
    tensors = {k: v + 0.2 * torch.randn(v.shape, generator=draw) for k, v in start(specs, base, 1).items()}
    if "method.values" in tensors:
        everywhere = torch.randperm(sum(w.size for w in method.trained(shape)), generator=draw)  # type: ignore[attr-defined]
        tensors["method.index"] = everywhere[: tensors["method.values"].shape[0]].sort().values
    counts = {"method": method.count(shape), "head": head.count(shape, method.row_width(shape))}
    known: dict[str, Any] = {
        "name": "task", "kind": "label", "labels": labels, "method": to_dict(method),
        "head": {**head.to_dict(), **changes.pop("head", {})},
        "encoder": {"name": base.name, "fingerprint": base.fingerprint, "tokenizer": base.tokenizer_fingerprint},
        "parameters": {**counts, "total": sum(counts.values()), "base": shape.parameters},
        "metrics": {}, "training": {"max_length": 16},
        "data": {"pairs": False}, "versions": {}, "parents": (), "created": "", "tensors": tensors,
    }  # fmt: skip
    return Inlay(**{**known, **changes})


def bank_with(folder: Path, base: Encoder, *inlays: Inlay) -> Bank:
    bank = intarsia.open(folder / "bank", base)
    for one in inlays:
        bank.store.add(one)
    return bank


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_and_method(family: str, method: str, tmp_path: Path) -> None:
    base, poolings = encoder(family), ["trained-pooler", "mean", "cls"]
    pooling = poolings[(FAMILY_NAMES.index(family) + list(METHODS).index(method)) % 3]
    if (family, method) in REFUSED:
        bank = bank_with(tmp_path, base, inlay(base, METHODS[method], pooling))
        with pytest.raises(IntarsiaError, match=REFUSED[family, method]):
            bank.export("task", tmp_path / "out")
        assert [p.name for p in tmp_path.iterdir()] == ["bank"]
        return
    bank = bank_with(tmp_path, base, inlay(base, METHODS[method], pooling))
    done = bank.export("task", tmp_path / "out")
    assert done.difference <= 1e-4 and done.version == 1
    assert done.bytes == sum(p.stat().st_size for p in (tmp_path / "out").iterdir())
    assert len({p.stat().st_mode for p in (tmp_path / "out").iterdir()}) == 1
    alone = pooling == "trained-pooler" and family in CLASSES
    assert done.model == CLASSES[family] if alone else "ForSequence" not in done.model
    assert (done.head is None) == alone == (not (tmp_path / "out" / "head.safetensors").exists())
    stored = load_file(tmp_path / "out" / "model.safetensors")
    by_name = {k: next(v for n, v in stored.items() if n.endswith(k)) for k in base.weights if "pooler" not in k}
    assert any(not torch.equal(by_name[k], base.weights[k]) for k in by_name)
    base.check_frozen()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bank", "out"]


@pytest.mark.parametrize("family", [f for f in CLASSES if f != "deberta-v2"])
def test_the_bases_own_pooler_is_the_classes_dense_layer(family: str, tmp_path: Path) -> None:
    base = encoder(family)
    method = m.Full() if family in ("albert", "roberta") else m.BitFit(pooler=True)
    done = bank_with(tmp_path, base, inlay(base, method, "pooler")).export("task", tmp_path / "out")
    assert done.model == CLASSES[family] and done.difference <= 1e-4


@pytest.mark.parametrize(
    "method",
    [
        m.LoRA(targets=("value", "attention.dense", "ffn.up"), layers=(1,)),
        m.BitFit(sites=("value", "ffn.up", "ffn.norm")),
    ],
    ids=["lora", "bitfit"],
)
def test_deberta_without_query_and_key(method: Method, tmp_path: Path) -> None:
    base = encoder("deberta-v2")
    done = bank_with(tmp_path, base, inlay(base, method, "trained-pooler")).export("task", tmp_path / "out")
    assert done.difference <= 1e-4


PLAIN = """
import json, os, re, sys
sys.modules["intarsia"] = None  # importing it fails
try:
    import intarsia
except ImportError:
    pass
else:
    raise SystemExit("intarsia was imported")
found = {}
for folder, arguments in json.load(sys.stdin):
    os.chdir(folder)
    (lines,) = re.findall("```python\\n(.*?)```", open("README.md").read(), re.S)
    names = {}
    exec(lines, names)
    found[folder] = names["logits"](*arguments).tolist()
sys.stdout = sys.__stdout__
print("found: " + json.dumps(found))
"""


def test_the_lines_of_the_readme_run_without_intarsia(tmp_path: Path) -> None:
    bert, distil = encoder("bert"), encoder("distilbert")
    no_pooler = plain_model("bert")
    no_pooler.pooler = None
    bare = Encoder(no_pooler, tiny_tokenizer(), name="/models/bare")
    many = tuple(f"l{i}" for i in range(12))
    score = {"kind": "score", "labels": (), "head": {"mean": 2.5, "spread": 1.25}}
    cases = {
        "mean": (bert, inlay(bert, m.LoRA(2), "mean")),
        "labels": (bert, inlay(bert, m.IA3(), "trained-pooler", kind="labels", labels=many)),
        "pairs": (bert, inlay(bert, m.BitFit(), "pooler", data={"pairs": True})),
        "score": (bert, inlay(bert, m.LayerNorms(), "cls", **score)),
        "pooler": (distil, inlay(distil, m.Full(), "trained-pooler")),
        "score-pairs": (distil, inlay(distil, m.LoRA(2), "mean", **score, data={"pairs": True})),
        "hidden": (distil, inlay(distil, m.LoRA(2), "cls", hidden=Hidden("relu"))),
        "hidden-norm": (bert, inlay(bert, m.LoRA(2), "pooler", hidden=Hidden("gelu_exact", norm=True))),
        "bare": (bare, inlay(bare, m.TopLayers(1), "cls", training={})),
    }
    expected, asked = {}, []
    for name, (base, one) in cases.items():
        bank_with(tmp_path / name, base, one).export("task", tmp_path / name / "out")
        others = TEXTS[::-1] if one.data["pairs"] else None
        model = exporting._Model(one, exporting.mergeable(one), base)
        expected[str(tmp_path / name / "out")] = model._bank_logits(TEXTS, others)
        asked.append([str(tmp_path / name / "out"), [TEXTS, others] if others else [TEXTS]])
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], input=json.dumps(asked), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "nitialized" not in done.stderr  # no weight was made up
    found = json.loads(done.stdout.rpartition("found: ")[2])
    for folder, logits in expected.items():
        assert torch.allclose(torch.tensor(found[folder]), logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))
    text = (tmp_path / "score" / "out" / "README.md").read_text()
    assert "2.5 (mean)" in text and "* 1.25 + 2.5" in text and "cut to 16 tokens" in text and "single texts" in text
    assert "pairs of texts" in (tmp_path / "pairs" / "out" / "README.md").read_text()
    bare_text = (tmp_path / "bare" / "out" / "README.md").read_text()
    assert "cut to 40 tokens" in bare_text and "`bare`" in bare_text and "/models" not in bare_text
    config = json.loads((tmp_path / "labels" / "out" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification" and config["label2id"]["l11"] == 11
    assert [config["id2label"][str(i)] for i in range(12)] == list(many)


def test_the_served_version_and_an_older_one(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = encoder("bert")
    bank = bank_with(tmp_path, base, inlay(base, m.LoRA(2), "trained-pooler"), inlay(base, m.IA3(), "trained-pooler"))
    assert bank.export("task", tmp_path / "new").version == 2
    task_kind = bank.predict("task", TEXTS)
    bank.restore("task", 1)
    assert bank.export("task", tmp_path / "old", version=2).version == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "old")
    inputs = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")  # the limit is the tokenizer's own
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "old")
    with torch.no_grad():
        probabilities = model(**inputs).logits.softmax(-1).tolist()
    for row, answer in zip(probabilities, task_kind, strict=True):
        named = {model.config.id2label[i]: p for i, p in enumerate(row)}
        assert named == pytest.approx(answer.probabilities, abs=1e-4)
    assert Encoder.load(tmp_path / "old").shape.family == "bert"  # a base like any other


@pytest.mark.parametrize(
    "method", [m.Bottleneck(4), m.PAL(12), m.Prefix(2), m.Features()], ids=lambda method: method.name
)
def test_methods_that_cannot_be_merged_are_refused(method: Method, tmp_path: Path) -> None:
    base = encoder("bert")
    bank = bank_with(tmp_path, base, inlay(base, method))
    able = ", ".join(name for name, kind in m.METHODS.items() if kind.mergeable)
    assert "lora" in able and method.name not in able
    with pytest.raises(IntarsiaError, match=f"{method.name}.*can be merged: {able}."):
        bank.export("task", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = encoder("bert")
    bank = bank_with(tmp_path, base, inlay(base, m.LoRA(2)))
    bank.export("task", tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    monkeypatch.setattr(m.LoRA, "merge", lambda *_: None)
    for folder, force in (("other", False), ("out", True)):
        with pytest.raises(BankError, match="differ from the bank's"):
            bank.export("task", tmp_path / folder, force=force)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bank", "out"]


def test_folders_are_replaced_only_when_told_and_never_those_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = encoder("bert")
    bank = bank_with(tmp_path, base, inlay(base, m.LoRA(2)))
    out = tmp_path / "new" / "out"
    out.mkdir(parents=True)
    bank.export("task", out)  # an empty one is taken
    (out / "mine.txt").write_text("x")
    with pytest.raises(IntarsiaError, match="--force"):
        bank.export("task", out)
    assert (out / "mine.txt").exists()
    bank.export("task", out, force=True)
    assert not (out / "mine.txt").exists() and [p.name for p in out.parent.iterdir()] == ["out"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(IntarsiaError, match="is a file"):
        bank.export("task", tmp_path / "file", force=True)
    with pytest.raises(IntarsiaError, match="holds the bank"):
        bank.export("task", tmp_path, force=True)
    monkeypatch.chdir(out)
    with pytest.raises(IntarsiaError, match="current working directory"):
        bank.export("task", ".", force=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "name", str(out))
    with pytest.raises(IntarsiaError, match="base"):
        bank.export("task", out, force=True)
    with pytest.raises(IntarsiaError, match=r"Cannot create the folder .*A part of the path is a file"):
        bank.export("task", tmp_path / "file" / "below")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from intarsia.cli import main

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "base"
    plain_model("bert").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    base = Encoder.load(folder)
    bank_with(tmp_path, base, inlay(base, m.LoRA(2)), inlay(base, m.Bottleneck(4), name="adapter"))
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["intarsia", "export", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        predictions = capsys.readouterr()
        return int(ended.value.code or 0), predictions.out, predictions.err

    code, out, err = run("task", "--merged", "out")
    assert (
        code == 0
        and "note: No class of transformers" in err
        and "Wrote task version 1 to out: BertModel, head in head.safetensors" in out
    )
    assert re.search(r"logits of 5 texts differ by at most \d\.\de-\d\d of the largest", out)
    assert run("task", "--merged", "out", "--force", "--version", "1")[0] == 0
    for arguments, message in [
        (["task", "--merged", "out"], "not empty"),
        (["tusk", "--merged", "out2"], "task"),
        (["task", "--merged", "out2", "--version", "3"], "no version 3"),
        (["adapter", "--merged", "out2"], "lora, dora, ia3, bitfit"),
        (["task"], "--merged"),
    ]:
        code, _, err = run(*arguments)
        assert code == 2 and message in err and "Traceback" not in err
    assert not (tmp_path / "out2").exists()


def test_no_pipeline_puts_the_labels_over_a_random_head(tmp_path: Path) -> None:
    from transformers import AutoConfig, pipeline

    base = encoder("bert")
    bank = bank_with(tmp_path, base, inlay(base, METHODS["lora"], "mean"))
    folder = tmp_path / "plain"
    assert bank.export("task", folder).head == "head.safetensors"
    assert AutoConfig.from_pretrained(folder).num_labels == 0
    assert "cannot open this folder" in (folder / "README.md").read_text()
    with pytest.raises(Exception):  # noqa: B017  # of transformers or torch: a head without outputs
        pipeline("text-classification", model=str(folder))(["a text"])
