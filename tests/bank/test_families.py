"""Families: inlays that are built on frozen inlays of the bank, which resolves them by digest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import intarsia
from intarsia import Bottleneck, Fuse, LoRA, Pfeiffer, Stack
from intarsia.bank import family
from intarsia.bank.bank import Bank
from intarsia.bank.catalog import Catalog
from intarsia.bank.inlay_of import headless_inlay
from intarsia.cli import app
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import start
from intarsia.errors import BankError, IntarsiaError, MissingParent, Refused, UnknownTask
from intarsia.methods import Method, Parent, from_dict, parents
from tests.support.families import opinions, tiny_with_words


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture
def bank(encoder: Encoder, tmp_path: Path) -> Bank:
    """A family of three generations: triage over medical, urgent over triage and general."""
    bank = intarsia.open(tmp_path / "bank", encoder)
    add(bank, "medical", Pfeiffer(4), seed=1)
    add(bank, "general", Pfeiffer(4), seed=2)
    add(bank, "triage", Stack("medical", Pfeiffer(3)), seed=3)
    add(bank, "urgent", Fuse("triage", "general"), seed=4)
    add(bank, "alone", LoRA(2), seed=5)
    return bank


def add(bank: Bank, name: str, method: Method, seed: int = 0) -> Any:
    """Store an inlay without training."""
    resolved = family.resolved(bank.store, method)
    tensors = start(resolved.stored(bank.encoder.shape), bank.encoder, seed)
    inlay = headless_inlay(name, resolved, tensors, bank.encoder, data={"source": "a test"})
    return bank.store.add(inlay, encoder=bank.encoder)


def digest(bank: Bank, name: str, version: int | None = None) -> str:
    return bank.show(name, version).header.digest


def test_names_become_digests_and_only_what_was_trained_is_stored(bank: Bank, encoder: Encoder) -> None:
    header = bank.show("triage").header
    assert header.parents == (digest(bank, "medical"),)
    assert header.parameters["method"] == Pfeiffer(3).count(encoder.shape)
    assert all(name.startswith("method.1.") for name in header.layout)
    assert bank.show("urgent").header.parents == tuple(digest(bank, n) for n in ("triage", "medical", "general"))
    add(bank, "medical", Pfeiffer(4), seed=9)
    method = family.resolved(bank.store, Stack("medical@1", "medical", Pfeiffer(2)))
    assert [(p.task, p.version, p.digest) for p in parents(method)] == [
        ("medical", 1, digest(bank, "medical", 1)), ("medical", 2, digest(bank, "medical", 2)),
    ]  # fmt: skip


def test_parents_are_loaded_by_digest_with_their_own(bank: Bank, encoder: Encoder) -> None:
    learned = family.learned_on(bank.store, bank.store.load("urgent"), encoder)
    assert learned.parents.keys() == set(bank.show("urgent").header.parents)
    triage = learned.parents[digest(bank, "triage")]
    assert triage.parents[digest(bank, "medical")] is learned.parents[digest(bank, "medical")]
    shared = family.shared_parents()
    both = [family.learned_on(bank.store, bank.store.load("triage"), encoder, loaded=shared) for _ in range(2)]
    assert both[0].parents[digest(bank, "medical")] is both[1].parents[digest(bank, "medical")]
    del both, learned
    assert not shared


def test_unknown_names_say_what_was_meant(bank: Bank) -> None:
    for name, message in (
        ("medcal", "no task 'medcal'. Did you mean 'medical'"),
        ("pfeifer-48", "did you mean 'pfeiffer-48'"),
        ("medical@7", "no version 7"),
        ("medical@x", "such as medical@2"),
    ):
        with pytest.raises(IntarsiaError, match=message):
            bank.learn("x", opinions(), Stack(name, Pfeiffer(2)))
    with pytest.raises(UnknownTask, match="'medical'"):
        bank.learn("x", opinions(), "stack(medcal, pfeiffer-2)")


def test_a_parent_in_use_stays(bank: Bank) -> None:
    for name, version in (("medical", None), ("medical", 1), ("triage", 1)):
        with pytest.raises(Refused, match=f"{name}@1 cannot be removed: .* built on it"):
            bank.remove(name, version)
    bank.restore("medical", 1)
    bank.remove("medical", 1)  # version 2 has the same digest
    assert bank.verify() == [] and bank.show("triage").state == "ok"
    with pytest.raises(Refused, match="urgent version 1 is built on it"):
        bank.remove("general")
    bank.remove("urgent")
    bank.remove("triage")
    bank.remove("medical")


def test_a_removal_lists_the_bank_only_after_composed_versions_were_added(
    bank: Bank, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str | None] = []
    listing = Catalog._listing
    monkeypatch.setattr(Catalog, "_listing", lambda self, name: listed.append(name) or listing(self, name))
    other = intarsia.open(tmp_path / "bank", encoder)  # as another process

    def whole_listings(remove: str) -> int:
        listed.clear()
        bank.remove(remove)
        return listed.count(None)

    assert whole_listings("alone") == 1, "this process has not listed the bank since the compositions were added"
    for owner in (bank, other):
        add(owner, "x", LoRA(2))
        assert whole_listings("x") == 0, "tasks without parents change nothing"
    add(other, "y", LoRA(2))
    add(other, "over", Stack("y", Pfeiffer(3)))
    with pytest.raises(Refused, match=r"y@1 cannot be removed: over version 1 is built on it"):
        bank.remove("y")
    other.remove("over")
    assert whole_listings("y") == 0


def test_a_lost_parent_is_named_and_all_else_works(bank: Bank, encoder: Encoder, tmp_path: Path) -> None:
    backup = intarsia.open(tmp_path / "backup", encoder)
    bank.copy("medical", backup)
    bank.remove("medical", force=True)
    lost = "no intact copy of medical@1"
    with pytest.raises(MissingParent, match=lost):
        bank.embed(["good film"], "triage")
    for call in (
        lambda: family.learned_on(bank.store, bank.store.load("urgent"), encoder),
        lambda: bank.restore("triage", 1),
        lambda: family.parent_named(bank.store, "triage"),
    ):
        with pytest.raises(MissingParent, match=lost):
            call()
    assert [(p.name, p.state) for p in bank.verify()] == [("triage", "incomplete"), ("urgent", "incomplete")]
    assert bank.embed(["good film"], "alone").shape == (1, encoder.shape.width)
    assert bank.relatives("triage").lost[0].startswith("medical@1")
    backup.copy("medical", bank)
    assert bank.verify() == [] and bank.relatives("urgent").lost == []


def test_a_damaged_parent_is_a_lost_one(bank: Bank) -> None:
    path = bank.show("medical").path
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    states = {p.name: p.state for p in bank.verify()}
    assert states == {"medical": "damaged", "triage": "incomplete", "urgent": "incomplete"}


def test_the_cost_counts_each_parent_once(bank: Bank, encoder: Encoder) -> None:
    shape = encoder.shape
    served = sum(entry.header.parameters["method"] for entry in bank.tasks())
    assert bank.cost().method == served and bank.cost().parents == ()
    add(bank, "medical", LoRA(3), seed=9)  # version 1 is no longer served, but triage and urgent are built on it
    cost = bank.cost()
    assert cost.method == served + LoRA(3).count(shape)
    assert [(p.name, p.version) for p in cost.parents] == [("medical", 1)]
    assert cost.total == pytest.approx(1 + cost.method / shape.parameters)


def test_a_family_is_copied_once_and_to_its_own_base_only(bank: Bank, encoder: Encoder, tmp_path: Path) -> None:
    other = intarsia.open(tmp_path / "other", encoder)
    add(other, "general", Bottleneck(2), seed=7)  # another task of this name
    entries = bank.copy("urgent", other)
    assert [(e.name, e.version) for e in entries] == [("general", 2), ("medical", 1), ("triage", 1), ("urgent", 1)]
    assert [e.header.digest for e in entries] == [digest(bank, e.name) for e in entries]
    assert other.show("general").version == 1, "a copied parent does not take over"
    assert [e.version for e in bank.copy("urgent", tmp_path / "other")] == [2, 1, 1, 1]
    assert len(other.versions("general")) == 2 and other.verify() == []
    foreign = intarsia.open(tmp_path / "foreign", tiny_with_words(1))
    add(foreign, "x", LoRA(2))
    with pytest.raises(Refused, match="made for another base"):
        bank.copy("urgent", foreign)
    assert [e.name for e in foreign.tasks()] == ["x"]
    with pytest.raises(Refused, match="into itself"):
        bank.copy("urgent", bank)


def test_a_file_that_contradicts_itself_is_refused(bank: Bank, encoder: Encoder) -> None:
    inlay = bank.store.load("triage")
    for changes, fault in (
        ({"parents": ()}, "other inlays than it states"),
        ({"parents": ("ab" * 32,)}, "other inlays than it states"),
        ({"method": {"type": "stack", "parts": ["medical", inlay.method["parts"][1]]}}, "names the task 'medical'"),
    ):
        with pytest.raises(BankError, match=fault):
            dataclasses.replace(inlay, **changes).check()
    method = from_dict(inlay.method)
    stranger = Parent("ab" * 32, "stranger", 1, Pfeiffer(4))
    foreign = headless_inlay("x", Stack(stranger, method.parts[1]), inlay.tensors, encoder, data={})  # type: ignore[attr-defined]
    with pytest.raises(MissingParent, match="stranger@1"):
        bank.store.add(dataclasses.replace(foreign, tensors=inlay.tensors), encoder=encoder)


def test_a_swap_names_a_parent_of_the_task(bank: Bank) -> None:
    header = bank.show("urgent").header
    found = family.swapped_parents(bank.store, "urgent", header, {"triage": "medical", "general@1": "alone"})
    assert {old: new.task for old, new in found.items()} == {
        digest(bank, "triage"): "medical", digest(bank, "general"): "alone",
    }  # fmt: skip
    with pytest.raises(IntarsiaError, match=r"not built on 'medical'.*Its parents are: triage@1, general@1"):
        bank.predict("urgent", ["good"], swap={"medical": "alone"})
    with pytest.raises(IntarsiaError, match="not built on other inlays"):
        bank.predict("alone", ["good"], swap={"medical": "alone"})
    with pytest.raises(IntarsiaError, match="swap: expected a mapping"):
        bank.predict("alone", ["good"], swap="medical=alone")  # type: ignore[call-overload]


def test_the_command_line_knows_families(bank: Bank, tmp_path: Path) -> None:
    folder, runner = ["--bank", str(bank.store.folder)], CliRunner()
    shown = json.loads(runner.invoke(app, ["show", "medical", "--json", *folder]).stdout)
    assert shown["children"] == [{"name": "triage", "version": 1}, {"name": "urgent", "version": 1}]
    text = runner.invoke(app, ["show", "urgent", *folder]).stdout
    assert "built on" in text and "triage@1" in text and "fuse(triage@1, general@1)" in text
    assert "parent of" in runner.invoke(app, ["show", "triage", *folder]).stdout
    refused = runner.invoke(app, ["remove", "medical", "--yes", *folder])
    assert isinstance(refused.exception, Refused)
    copied = runner.invoke(app, ["copy", "triage", "--to", str(tmp_path / "other"), *folder])
    assert copied.exit_code == 0 and "with medical@1" in copied.stdout
    assert runner.invoke(app, ["remove", "medical", "--yes", "--force", *folder]).exit_code == 0
    tasks = runner.invoke(app, ["tasks", *folder]).stdout
    assert "incomplete: triage is built on medical@1" in tasks
    rows = json.loads(runner.invoke(app, ["tasks", "--json", *folder]).stdout)["tasks"]
    assert [row["name"] for row in rows if "lost_parents" in row] == ["triage", "urgent"]
    checked = runner.invoke(app, ["verify", *folder])
    assert checked.exit_code == 1 and "0 damaged, 2 incomplete" in checked.stdout


def test_parents_are_found_in_constant_time(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str | None] = []
    look = type(bank.store._catalog).look
    monkeypatch.setattr(
        type(bank.store._catalog), "look", lambda self, name=None, **k: listed.append(name) or look(self, name, **k)
    )
    assert bank.store.find(digest(bank, "medical")) is not None
    assert set(listed) == {"medical"}
