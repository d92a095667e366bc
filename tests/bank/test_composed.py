"""Tasks that are learned over inlays of the bank: what is stored, answered, swapped, scored and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import intarsia
from intarsia import Bottleneck, Fuse, Parallel, Pfeiffer, Stack
from intarsia.bank.bank import Bank
from intarsia.cli import app
from intarsia.errors import IntarsiaError, MissingParent
from intarsia.methods import from_dict
from intarsia.serve.ask import Ask
from intarsia.train.grid import Grid
from tests.bank.test_families import add
from tests.support.families import opinions, save_tiny

TEXTS = ["good film", "an awful day", "great great book", "poor red apple"]
QUICK: dict[str, Any] = {"epochs": 2, "learning_rate": 3e-3, "max_length": 16}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    folder = tmp_path_factory.mktemp("composed")
    bank = intarsia.open(folder / "bank", save_tiny(folder / "base"))
    for seed, name in enumerate(("medical", "legal")):
        add(bank, name, Pfeiffer(4), seed=seed)
        lively(bank, name)
    bank.learn("triage", opinions(), Stack("medical", Pfeiffer(3)), **QUICK)
    bank.learn("plain", opinions(), Pfeiffer(3), **QUICK)
    return bank


def lively(bank: Bank, name: str) -> None:
    """Replace an inlay by one whose values are far from 0."""
    import dataclasses

    inlay = bank.store.load(name)
    random = torch.Generator().manual_seed(len(name))
    tensors = {n: 0.3 * torch.randn(t.shape, generator=random) for n, t in inlay.tensors.items()}
    bank.store.add(dataclasses.replace(inlay, tensors=tensors), encoder=bank.encoder)
    bank.remove(name, 1)


def numbers(answers: list[Any]) -> np.ndarray:
    return np.array([[*(answer.probabilities or {}).values()] for answer in answers])


def test_a_task_stores_what_it_trained_and_leaves_its_parent_as_it_was(bank: Bank) -> None:
    header, parent = bank.show("triage").header, bank.show("medical")
    shape = bank.encoder.shape
    assert header.parents == (parent.header.digest,)
    assert header.parameters["method"] == Pfeiffer(3).count(shape)
    assert {name.split(".")[1] for name in header.layout if name.startswith("method.")} == {"1"}
    assert bank.verify() == []
    again = intarsia.open(bank.store.folder, bank.encoder)
    assert np.array_equal(numbers(again.predict("triage", TEXTS)), numbers(bank.predict("triage", TEXTS)))


def test_swap_answers_with_another_inlay_below(bank: Bank) -> None:
    before = numbers(bank.predict("triage", TEXTS))
    swapped = numbers(bank.predict("triage", TEXTS, swap={"medical": "legal"}))
    assert not np.allclose(before, swapped)
    assert np.array_equal(before, numbers(bank.predict("triage", TEXTS, swap={"medical": "medical"})))
    assert np.array_equal(before, numbers(bank.predict("triage", TEXTS))), "a swap is for one call"
    rows = opinions(12, seed=3)
    gold = [row["label"] for row in rows]
    answers = bank.predict("triage", [row["text"] for row in rows], swap={"medical": "legal"})
    accuracy = sum(a.label == label for a, label in zip(answers, gold, strict=True)) / len(rows)
    found = bank.evaluate("triage", rows, swap={"medical": "legal"}, metric="accuracy")
    assert found.interval.value == pytest.approx(accuracy)


def test_a_hand_made_child_of_the_swapped_parent_answers_the_same(bank: Bank) -> None:
    """A swap is what the child's tensors compute over the other parent."""
    import dataclasses

    from intarsia.bank import family
    from intarsia.methods import parents, to_dict

    inlay = bank.store.load("triage")
    method = family.resolved(bank.store, Stack("legal", from_dict(inlay.method).parts[1]))  # type: ignore[attr-defined]
    digests = tuple(p.digest for p in parents(method))
    made = dataclasses.replace(inlay, name="over-legal", method=to_dict(method), parents=digests)
    bank.store.add(made, encoder=bank.encoder)
    expected = numbers(bank.predict("over-legal", TEXTS))
    assert np.array_equal(numbers(bank.predict("triage", TEXTS, swap={"medical": "legal"})), expected)


def test_parallel_answers_are_those_of_each_task(bank: Bank) -> None:
    found = bank.predict(Parallel("triage", "plain"), TEXTS)
    for name in ("triage", "plain"):
        alone = bank.predict(name, TEXTS)
        assert np.allclose(numbers([row[name] for row in found]), numbers(alone), atol=1e-6)


def test_a_sweep_tries_compositions(bank: Bank) -> None:
    grid = Grid(("stack(medical, pfeiffer-2)", "fuse(medical, legal) static=yes"), epochs=(1,))
    entry = bank.sweep({"swept": opinions(40)}, grid, max_length=16)["swept"]
    assert len(entry.header.training["grid"]) == 2
    assert entry.header.parents[0] == bank.show("medical").header.digest
    assert len(bank.predict("swept", TEXTS)) == 4


def test_compositions_nest_over_tasks_of_the_bank(bank: Bank) -> None:
    bank.learn("deep", opinions(40), Fuse("triage", Stack("legal", Pfeiffer(2)), "plain"), **{**QUICK, "epochs": 1})
    digests = {name: bank.show(name).header.digest for name in ("triage", "medical", "legal", "plain")}
    assert set(bank.show("deep").header.parents) == set(digests.values())
    assert len(bank.predict("deep", TEXTS)) == 4
    assert {child.name for child in bank.relatives("medical").children} >= {"triage", "deep"}


def test_a_lost_parent_is_reported_at_once_also_by_a_bank_that_has_answered(bank: Bank, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bank.store.folder, tmp_path / "bank")
    own = intarsia.open(tmp_path / "bank", bank.encoder)
    assert len(own.predict("triage", TEXTS)) == 4
    own.remove("medical", force=True)
    with pytest.raises(MissingParent, match=r"triage version 1 cannot be used: .* no intact copy of medical@2"):
        own.predict("triage", TEXTS)
    assert len(own.predict("plain", TEXTS)) == 4
    assert len(own.predict("triage", TEXTS, swap={"medical": "legal"})) == 4, "the lost parent is not needed"
    answers = own.engine.answer([Ask(name, "good") for name in ("triage", "plain")])
    assert [answer.error is None for answer in answers] == [False, True]
    bank.copy("medical", own)
    assert len(own.predict("triage", TEXTS)) == 4


def test_a_moved_family_answers_and_is_scored(bank: Bank, tmp_path: Path) -> None:
    other = intarsia.open(tmp_path / "other", save_tiny(tmp_path / "base", seed=1))
    entry = bank.move("triage", other, check=opinions(20, seed=4))
    assert entry.header.training["moved"]["new_score"] == entry.header.metrics["test"]["value"]
    assert [e.name for e in other.tasks()] == ["medical", "triage"] and other.verify() == []
    assert len(other.predict("triage", TEXTS)) == 4


def test_merged_compositions_answer(bank: Bank) -> None:
    bank.learn("triage2", opinions(seed=2), Stack("medical", Pfeiffer(3)), **QUICK)
    entry = bank.merge("both", {"triage": 1.0, "triage2": 1.0}, "ties", check=opinions(20, seed=4))
    assert entry.header.parents == bank.show("triage").header.parents
    assert entry.header.metrics["test"]["examples"] == 20 and len(bank.predict("both", TEXTS)) == 4


def test_the_command_line(bank: Bank, tmp_path: Path) -> None:
    folder, runner = ["--bank", str(bank.store.folder)], CliRunner()
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in opinions(40)))
    learned = runner.invoke(
        app,
        ["learn", "cli", str(data), "--method", "stack(medical, pfeiffer-2)", "--epochs", "1", "--json", *folder],
    )
    assert learned.exit_code == 0, learned.output
    assert json.loads(learned.stdout)["method_name"] == "stack(medical, pfeiffer-2)"
    swapped = runner.invoke(app, ["predict", "triage", TEXTS[0], "--swap", "medical=legal", *folder])
    expected = bank.predict("triage", TEXTS[:1], swap={"medical": "legal"})[0]
    assert json.loads(swapped.stdout)["label"] == expected.label
    scored = runner.invoke(app, ["evaluate", "triage", str(data), "--swap", "medical=legal", "--json", *folder])
    assert (
        json.loads(scored.stdout)["value"]
        == bank.evaluate("triage", str(data), swap={"medical": "legal"}).interval.value
    )
    headless = runner.invoke(app, ["predict", "medical", "good", *folder])
    assert isinstance(headless.exception, IntarsiaError) and "has no head" in str(headless.exception)
    refused = runner.invoke(app, ["learn", "x", str(data), "--method", "stack(medcal, pfeiffer-2)", *folder])
    assert "Did you mean 'medical'" in str(refused.exception)


def test_a_parent_with_a_head_is_a_parent_too(bank: Bank) -> None:
    bank.learn("over", opinions(40), Stack("plain", Bottleneck(2)), **{**QUICK, "epochs": 1})
    assert bank.show("over").header.parents == (bank.show("plain").header.digest,)
    assert len(bank.predict("over", TEXTS)) == 4


def test_a_composed_task_is_explained(bank: Bank) -> None:
    for by in ("occlusion", "gradients"):
        (found,) = bank.explain("triage", TEXTS[:1], by=by)  # type: ignore[arg-type]
        assert len(found.words) == 2
    (answer,) = bank.predict("triage", TEXTS[:1])
    assert found.label == answer.label


def test_a_composed_task_is_exported_with_its_parents_only(bank: Bank, tmp_path: Path) -> None:
    for format in ("merged", "peft", "adapterhub"):
        with pytest.raises(IntarsiaError, match=r"built on other inlays of the bank.*--format inlay"):
            bank.export("triage", tmp_path / "out", format=format)
    assert not (tmp_path / "out").exists()


def test_show_names_a_composition_in_one_line(bank: Bank) -> None:
    shown = CliRunner().invoke(app, ["show", "triage", "--bank", str(bank.store.folder)]).output
    assert "stack(medical@2, pfeiffer-3)" in shown and "digest': " not in shown
