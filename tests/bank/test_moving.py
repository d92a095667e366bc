"""Moving inlays to another base of the same shape: what moves as it is, what as a difference, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import intarsia
from intarsia import BitFit, Bottleneck, LoRA, LotteryTicket, Pfeiffer, Prefix, Stack
from intarsia.bank.bank import Bank
from intarsia.bank.inlay_of import headless_inlay
from intarsia.bank.moving import moved_tensors
from intarsia.cli import app
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError, IntarsiaWarning, Refused
from intarsia.methods import Method, to_dict
from tests.bank.test_families import add
from tests.support.families import config, opinions, save_tiny, tiny, tiny_tokenizer, tiny_with_words
from tests.support.small_methods import FORMS, SMALL

QUICK: dict[str, Any] = {"epochs": 1, "learning_rate": 3e-3, "max_length": 16}
METHODS: dict[str, Method] = {
    "lora": LoRA(2, biases="targets"), "houlsby": Bottleneck(2), "bitfit": BitFit(), "prefix": Prefix(2),
    "sparse": LotteryTicket(entries=40),
}  # fmt: skip
ROWS = opinions(20, seed=7)


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bank, Bank]:
    """Two bases of one shape and vocabulary, the first with tasks."""
    folder = tmp_path_factory.mktemp("moving")
    old = intarsia.open(folder / "bank0", save_tiny(folder / "base0"))
    new = intarsia.open(folder / "bank1", shifted(folder / "base1", seed=1))
    for name, method in METHODS.items():
        old.learn(name, opinions(), method, **QUICK)
    return old, new


def shifted(folder: Path, seed: int) -> str:
    """A base whose biases are 1 larger than those of the base of this seed, and whose norms' weights are 1 larger."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(save_tiny(folder, seed))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(1.0)
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_tied_to_the_base_moves_as_a_difference(banks: tuple[Bank, Bank], name: str) -> None:
    old, new = banks
    entry = old.move(name, new, check=ROWS)
    method, shape = METHODS[name], old.encoder.shape
    before, after = old.store.load(name).tensors, new.store.load(name).tensors
    specs = method.stored(shape)
    theirs, ours = start(specs, old.encoder, 0), start(specs, new.encoder, 0)
    for tensor, spec in specs.items():
        given, moved = before[f"method.{tensor}"], after[f"method.{tensor}"]
        if spec.start == "base":
            assert torch.allclose(moved - ours[tensor], given - theirs[tensor], atol=1e-6), tensor
            assert not torch.equal(moved, given)
        else:
            assert torch.equal(moved, given), tensor
    assert torch.equal(before["head.output.weight"], after["head.output.weight"])
    origin, header = entry.header.training["moved"], entry.header
    assert origin["digest"] == old.show(name).header.digest and origin["same_vocabulary"]
    assert (origin["from"]["fingerprint"], origin["to"]["fingerprint"]) == (
        old.encoder.fingerprint, new.encoder.fingerprint,
    )  # fmt: skip
    assert origin["old_score"] == old.evaluate(name, ROWS).interval.value
    assert origin["new_score"] == new.evaluate(name, ROWS).interval.value == header.metrics["test"]["value"]
    assert header.encoder["fingerprint"] == new.encoder.fingerprint and "dev" not in header.metrics
    assert len(new.predict(name, ["good film"])) == 1


def test_there_and_back_gives_the_same_inlay(banks: tuple[Bank, Bank]) -> None:
    old, new = banks
    old.move("houlsby", new, check=ROWS, new_name="away")
    new.move("away", old, check=ROWS, new_name="back")
    one, back = old.store.load("houlsby").tensors, old.store.load("back").tensors
    assert all(torch.allclose(one[name], back[name], atol=1e-6) for name in one)


def test_a_base_moved_by_a_constant_moves_its_inlays_with_it(tmp_path: Path) -> None:
    """A new base whose biases are the old ones plus 1: so are those of a moved inlay."""
    old = intarsia.open(tmp_path / "old", tiny_with_words())
    new = intarsia.open(tmp_path / "new", shifted(tmp_path / "base", seed=0))
    add(old, "biases", BitFit(), seed=1)
    old.move("biases", new)
    before, after = (bank.store.load("biases").tensors for bank in (old, new))
    assert all(torch.allclose(after[name], before[name] + 1, atol=1e-6) for name in before)


@pytest.mark.parametrize("name", [*SMALL, *FORMS])
def test_every_method_moves(banks: tuple[Bank, Bank], name: str) -> None:
    old, new = (bank.encoder for bank in banks)
    specs = {**SMALL, **FORMS}[name].stored(old.shape)
    random = torch.Generator().manual_seed(0)
    given = {n: torch.randn(spec.shape, generator=random) for n, spec in specs.items()}
    moved = moved_tensors(given, specs, old, new)
    there = moved_tensors(moved, specs, new, old)
    theirs, ours = start(specs, old, 0), start(specs, new, 0)
    assert moved.keys() == given.keys()
    for n, spec in specs.items():
        shift = ours[n] - theirs[n] if spec.start == "base" else torch.zeros(())
        assert torch.allclose(moved[n], given[n] + shift, atol=1e-5) and torch.allclose(there[n], given[n], atol=1e-5)


def test_a_family_moves_together_and_once(banks: tuple[Bank, Bank], tmp_path: Path) -> None:
    old, _ = banks
    new = intarsia.open(tmp_path / "new", tiny_with_words(seed=1))
    add(old, "medical", Bottleneck(2), seed=1)
    for seed, name in enumerate(("first", "second")):
        add(old, name, Stack("medical", Pfeiffer(2)), seed=seed)
        old.move(name, new)
    assert [(e.name, e.version) for e in new.tasks()] == [("first", 1), ("medical", 1), ("second", 1)]
    digest = new.show("medical").header.digest
    assert new.show("first").header.parents == new.show("second").header.parents == (digest,)
    assert digest != old.show("medical").header.digest and new.verify() == []
    assert new.show("medical").header.training["moved"]["digest"] == old.show("medical").header.digest


def test_what_cannot_be_meant_is_refused(banks: tuple[Bank, Bank], tmp_path: Path) -> None:
    old, new = banks
    with pytest.raises(IntarsiaError, match="scored on the new base before it is kept: give labelled rows of 'lora'"):
        old.move("lora", new)
    with pytest.raises(Refused, match="the same base"):
        old.move("lora", intarsia.open(tmp_path / "same", old.encoder), check=ROWS)
    for changes, what in (({"num_hidden_layers": 2}, "layers: 3 and 2"), ({"intermediate_size": 40}, "linear layers")):
        with pytest.raises(Refused, match=f"differ in their {what}"):
            old.move("lora", intarsia.open(tmp_path / what, tiny(**changes)), check=ROWS)
    assert not (tmp_path / "layers: 3 and 2" / "bank.json").exists(), "nothing was stored"


def test_a_vocabulary_matters_to_what_depends_on_it(banks: tuple[Bank, Bank], tmp_path: Path) -> None:
    from transformers import AutoModel

    old, _ = banks
    torch.manual_seed(5)
    foreign = Encoder(AutoModel.from_config(config("bert")).eval(), tiny_tokenizer(pad=1), name="foreign")
    new = intarsia.open(tmp_path / "new", foreign)
    words = [w.name for w in old.encoder.shape.weights].index(old.encoder.shape.words.name)
    assert words == 0, "entry 1 is in the word embeddings"
    for name, entry in (("in the words", 1), ("elsewhere", old.encoder.shape.parameters - 10_000)):
        tensors = {"index": torch.tensor([entry]), "values": torch.ones(1)}
        inlay = headless_inlay(name.replace(" ", "-"), LotteryTicket(entries=1), tensors, old.encoder, data={})
        old.store.add(inlay, encoder=old.encoder)
    with pytest.raises(Refused, match="changes the word embeddings"):
        old.move("in-the-words", new)
    with pytest.warns(IntarsiaWarning, match="reads its texts in other tokens"):
        entry = old.move("elsewhere", new)
    assert entry.header.training["moved"]["same_vocabulary"] is False
    assert entry.header.method == to_dict(LotteryTicket(entries=1))


def test_the_command(banks: tuple[Bank, Bank], tmp_path: Path) -> None:
    old, new = banks
    rows, runner = tmp_path / "rows.csv", CliRunner()
    rows.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in ROWS))
    given = ["move", "lora", "--to", str(new.store.folder), "--as", "cli", "--bank", str(old.store.folder)]
    done = runner.invoke(app, [*given, "--check", str(rows), "--to-encoder", new.encoder.name])
    assert done.exit_code == 0 and "on the old base" in done.stdout, done.output
    shown = json.loads(runner.invoke(app, ["show", "cli", "--json", "--bank", str(new.store.folder)]).stdout)
    assert shown["training"]["moved"]["name"] == "lora"
    assert "lora@1 on" in runner.invoke(app, ["show", "cli", "--bank", str(new.store.folder)]).stdout
    missing = runner.invoke(app, ["move", "lora", "--to", str(tmp_path / "none"), "--bank", str(old.store.folder)])
    assert isinstance(missing.exception, IntarsiaError) and "--to-encoder" in str(missing.exception)
