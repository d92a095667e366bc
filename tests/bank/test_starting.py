"""Training that continues from the weights of a task."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch

import intarsia
from intarsia import BitFit, DiffPruning, LoRA, LotteryTicket, Pfeiffer, TopLayers
from intarsia.bank.starting import begin
from intarsia.errors import IntarsiaError
from intarsia.methods import Method
from intarsia.tasks import load_data
from intarsia.train.job import Job, Settings
from intarsia.train.run import Run
from tests.support.families import opinions, save_tiny

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "max_length": 20}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Bank:
    folder = tmp_path_factory.mktemp("starting")
    return intarsia.open(folder / "bank", save_tiny(folder / "base"))


def started(bank: intarsia.Bank, name: str, rows: Any = None) -> Run:
    """The run that continues from a task, before its first step."""
    data = load_data(rows or opinions(40))
    begun = begin(bank.store, bank.encoder, name, data, None, None)
    settings = Settings.for_method(begun.method, **QUICK)
    job = Job("next", data, begun.method, begun.pooling, settings, begun.hidden, begun.start)
    return Run(job, bank.encoder)


@pytest.mark.parametrize(
    "method",
    [LoRA(2), Pfeiffer(4), BitFit(), LotteryTicket(entries=40), DiffPruning(entries=40), TopLayers(1)],
    ids=lambda method: method.name,
)
def test_a_run_starts_with_the_tensors_of_the_task(method: Method, bank: intarsia.Bank) -> None:
    name = method.name
    bank.learn(name, opinions(40), method, pooling="cls", **QUICK)
    stored, run = bank.store.load(name).tensors, started(bank, name)
    found = run.result().learned.tensors
    assert run.job.pooling == "cls"
    assert found.keys() == stored.keys()
    for key, tensor in stored.items():
        assert torch.equal(found[key].cpu(), tensor), key


def test_other_labels_get_a_new_head_of_the_same_form(bank: intarsia.Bank) -> None:
    bank.learn("two", opinions(40), LoRA(2), pooling="trained-pooler", **QUICK)
    rows = [{**row, "label": f"{row['label']}{i % 3}"} for i, row in enumerate(opinions(60))]
    run, stored = started(bank, "two", rows), bank.store.load("two").tensors
    assert run.head.pooling == "trained-pooler" and run.head.outputs == 6
    found = run.result().learned.tensors
    assert torch.equal(found["method.0.query.b.weight"], stored["method.0.query.b.weight"])
    assert found["head.output.weight"].shape == (6, 32)
    assert not run.job.start or run.job.start.describe()["head"] is False


def test_scores_keep_their_meaning_in_other_units(bank: intarsia.Bank) -> None:
    rows = [
        {"text": row["text"], "label": 2.0 + (row["label"] == "yes") + i / 100} for i, row in enumerate(opinions(40))
    ]
    bank.learn("score", rows, LoRA(2), kind="score", **QUICK)
    moved = [{**row, "label": 10 * row["label"]} for row in rows]  # type: ignore[operator]
    data = load_data(moved, kind="score")
    begun = begin(bank.store, bank.encoder, "score", data, None, None)
    run = Run(Job("next", data, begun.method, begun.pooling, Settings.for_method(begun.method, **QUICK),
                  start=begun.start), bank.encoder)  # fmt: skip
    kind, learned = run.task_kind, run.result().learned.tensors
    inlay = bank.store.load("score")
    before = inlay.tensors["head.output.bias"] * inlay.head["spread"] + inlay.head["mean"]
    after = learned["head.output.bias"] * kind.spread + kind.mean
    assert torch.allclose(before, after, atol=1e-4)


def test_it_learns_further_and_says_from_where(bank: intarsia.Bank) -> None:
    rows = opinions(60)
    first = bank.learn("grows", rows, LoRA(2), epochs=2, batch_size=8, max_length=20)
    entry = bank.learn("grown", rows, start_from="grows@1", epochs=2, batch_size=8, max_length=20)
    origin = entry.header.training["start_from"]
    assert origin == {"task": "grows", "version": 1, "digest": first.header.digest, "head": True}
    assert entry.header.method == first.header.method
    assert bank.store.load("grows").tensors.keys() == bank.store.load("grown").tensors.keys()


def test_an_interrupted_run_resumes_with_the_same_weights(bank: intarsia.Bank) -> None:
    rows, options = opinions(60), {**QUICK, "epochs": 3, "start_from": "base-task"}
    bank.learn("base-task", rows, LoRA(2), **QUICK)
    whole = bank.learn("whole", rows, **options)

    def interrupt(progress: Any) -> None:
        if progress.step == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bank.learn("halved", rows, watch=interrupt, **options)
    seen: list[int] = []
    halved = bank.learn("halved", rows, watch=lambda p: seen.append(p.resumed_at), **options)
    assert seen[0] == 4
    one, other = (bank.store.load(entry.name).tensors for entry in (whole, halved))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_what_cannot_continue_is_refused(bank: intarsia.Bank) -> None:
    bank.learn("fixed", opinions(40), LoRA(2), **QUICK)
    with pytest.raises(IntarsiaError, match="cannot continue from 'fixed' with the method lora-4"):
        bank.learn("next", opinions(40), "lora-4", start_from="fixed", **QUICK)
    with pytest.raises(IntarsiaError, match="no version 7"):
        bank.learn("next", opinions(40), start_from="fixed@7", **QUICK)
    with pytest.raises(IntarsiaError, match="fixed@2"):
        bank.learn("next", opinions(40), start_from="fixed@x", **QUICK)
