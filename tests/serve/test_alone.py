"""Every method from learning to answers: kept bit for bit, served as trained; tasks that changed the base, alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.bank.bank import Bank
from intarsia.bank.inlay import read_inlay
from intarsia.encoder.encoder import Encoder
from intarsia.methods import (
    IA3,
    PAL,
    Bapna,
    BitFit,
    Bottleneck,
    DiffPruning,
    Features,
    Full,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Method,
    Pfeiffer,
    Prefix,
    TopLayers,
    from_dict,
)
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks import TaskData, load_data
from intarsia.tasks.heads import Pooling
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train
from intarsia.train.run import Run
from intarsia.train.step import predict
from tests.support.families import opinions, tiny_with_words
from tests.support.inlays import write_inlay

QUICK = Settings(learning_rate=5e-3, epochs=1, batch_size=16)
TASKS: dict[str, tuple[Method, Pooling]] = {
    "houlsby": (Bottleneck(4), "mean"),
    "single": (Bottleneck(4, places_in_layer="ffn"), "cls"),
    "attention-only": (Bottleneck(4, places_in_layer="attention"), "mean"),
    "parallel": (Bottleneck(4, parallel=True, inner_norm="batch"), "mean"),
    "pfeiffer": (Pfeiffer(4), "pooler"),
    "bapna": (Bapna(4), "mean"),
    "pal": (PAL(8, 2), "trained-pooler"),
    "lora": (LoRA(2), "mean"),
    "ia3": (IA3(), "mean"),
    "prefix": (Prefix(2), "mean"),
    "bitfit": (BitFit(pooler=True), "pooler"),
    "layernorm": (LayerNorms(), "mean"),
    "features": (Features(), "cls"),
    "features-mix": (Features(mix=True), "pooler"),
    "features-hidden": (Features(hidden=5), "mean"),
    "top": (TopLayers(1), "pooler"),
    "full": (Full(), "pooler"),
    "lt-sft": (LotteryTicket(entries=60), "mean"),
    "lt-sft-2": (LotteryTicket(0.01, rounds=2, norms=True), "pooler"),
    "diff-pruning": (DiffPruning(entries=60), "mean"),
}
TEXTS = ["good film", "an awful day", "the sun is so hot", "great big apple and a poor small plum", "it"]


@cache
def encoder() -> Encoder:
    return tiny_with_words()


@cache
def data() -> TaskData:
    return load_data(opinions(40))


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """One bank with a task of every method."""
    bank = intarsia.open(tmp_path_factory.mktemp("bank"), encoder())
    for name, (method, pooling) in TASKS.items():
        bank.learn(name, data(), method=method, pooling=pooling, settings=QUICK)
    return bank


def probabilities(bank: Bank, requests: list[tuple[str, str]]) -> np.ndarray:
    return np.array([list((p.probabilities or {}).values()) for p in bank.predict(requests)])


@pytest.mark.parametrize("name", TASKS)
def test_what_is_kept_is_what_was_trained_bit_for_bit(bank: Bank, name: str, tmp_path: Path) -> None:
    method, pooling = TASKS[name]
    inlay = bank.store.load(name)
    trained = train(Job(name, data(), method, pooling, QUICK), encoder())
    assert inlay.tensors.keys() == trained.tensors.keys()
    for tensor, value in trained.tensors.items():
        assert torch.equal(inlay.tensors[tensor], value) and inlay.tensors[tensor].dtype == value.dtype
    assert from_dict(inlay.method) == method
    write_inlay(inlay, tmp_path / "copy")
    again = read_inlay(tmp_path / "copy")
    assert all(torch.equal(again.tensors[k], v) for k, v in inlay.tensors.items())
    assert (tmp_path / "copy").read_bytes() == bank.show(name).path.read_bytes()


@pytest.mark.parametrize("name", TASKS)
def test_the_accounting_counts_what_was_trained(bank: Bank, name: str) -> None:
    counts, inlay = bank.show(name).header.parameters, bank.store.load(name)
    known = {"method.index"}  # where values stand is not trained
    known |= {k for k in inlay.tensors if k.endswith((".inner.mean", ".inner.variance"))}
    kept = {k: v.numel() for k, v in inlay.tensors.items() if k not in known}
    assert counts["method"] == sum(n for k, n in kept.items() if k.startswith("method."))
    assert counts["head"] == sum(n for k, n in kept.items() if k.startswith("head."))
    assert counts["base"] == encoder().shape.parameters


@pytest.mark.parametrize("name", TASKS)
def test_a_task_answers_as_it_did_in_training(bank: Bank, name: str) -> None:
    method, pooling = TASKS[name]
    run = Run(Job(name, data(), method, pooling, QUICK), encoder())
    inlay = bank.store.load(name)
    last = {f"method.{k}" for k in run.phases[-1].specs} | set(run.head_specs)
    kept = {k.removeprefix("method."): v for k, v in inlay.tensors.items() if k not in last}
    run.enter(len(run.phases) - 1, kept, {k: v for k, v in inlay.tensors.items() if k in last})
    served = probabilities(bank, [(name, e.text) for e in data().dev])
    assert np.allclose(predict(run, "dev"), served, atol=1e-5)
    assert len(np.unique(served.round(6))) > 2  # it does not say the same of everything


def test_mixed_requests_of_all_methods_equal_separate_ones(bank: Bank) -> None:
    """Those that changed the base too, more of them than are kept ready, in any order."""
    requests = [(name, text) for text in TEXTS for name in TASKS]
    assert sum(method.changes_base for method, _ in TASKS.values()) > Limits().own_weights
    fresh = intarsia.open(bank.store.folder, encoder())
    mixed = probabilities(fresh, requests)
    assert np.array_equal(mixed, probabilities(fresh, requests))
    assert np.array_equal(mixed, probabilities(fresh, requests[::-1])[::-1])
    for request, answer in zip(requests, mixed, strict=True):
        assert np.array_equal(probabilities(fresh, [request])[0], answer), request
    encoder().check_frozen()


def test_one_call_over_whole_sparse_and_small_tasks(bank: Bank) -> None:
    names = ["full", "lt-sft", "houlsby", "lora", "features-hidden"]
    fresh = intarsia.open(bank.store.folder, encoder())
    before = encoder().fingerprint
    found = fresh.predict([(name, text) for text in TEXTS for name in names])
    assert [p.task for p in found] == names * len(TEXTS)
    for i, name in enumerate(names):
        alone = intarsia.open(bank.store.folder, encoder()).predict(name, TEXTS)
        for a, b in zip(alone, found[i :: len(names)], strict=True):
            assert a.label == b.label and a.probability == pytest.approx(b.probability, abs=1e-5)
    encoder().check_frozen()
    assert encoder().fingerprint == before


def served(bank: Bank) -> dict[str, Served]:
    inlays = {name: bank.store.load(name) for name in TASKS}
    return {
        name: Served(name, inlay.interface, lambda inlay=inlay: inlay.learned_on(encoder()))
        for name, inlay in inlays.items()
    }


def test_weights_of_few_tasks_are_kept_ready(bank: Bank) -> None:
    """Also while one call asks many of them."""
    known, predictor = served(bank), Predictor(encoder())
    changing = [name for name, (method, _) in TASKS.items() if method.changes_base]
    segment = encoder().tokenize(["good film"])[0]
    first = predictor.predict([(known[name], segment) for name in changing])
    assert (
        list(predictor.residents.own_weights) == changing[-Limits().own_weights :]
        and len(changing) > Limits().own_weights
    )
    again = [predictor.predict([(known[name], segment)])[0] for name in reversed(changing)][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    predictor.drop(changing[0])
    assert changing[0] not in predictor.residents.own_weights


def test_a_dropped_task_answers_anew(bank: Bank) -> None:
    """Whatever its method was before."""
    known = served(bank)
    segment = encoder().tokenize(["good film and a plum"])[0]
    expected = {name: Predictor(encoder()).predict([(task, segment)])[0] for name, task in known.items()}
    predictor = Predictor(encoder(), Limits(slots=2))
    for name in ["full", "lt-sft", "houlsby", "full", "lora", "top", "houlsby", "features", "lora"]:
        predictor.drop("one")
        one = Served("one", known[name].interface, known[name].load)
        assert np.allclose(predictor.predict([(one, segment)])[0], expected[name], atol=1e-6), name
    for slots in predictor.shapes.values():  # no slot is lost
        assert len(slots.residents) + len(slots.free) == 2
    assert [key for slots in predictor.shapes.values() for key in slots.residents] == ["one"]
