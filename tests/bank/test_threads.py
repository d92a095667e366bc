"""Many threads ask one bank while versions arrive, tasks are restored and tasks are removed."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.errors import UnknownTask
from tests.support.families import opinions, tiny_with_words

TEXTS = ["good good film", "bad", "the sun was not so bad"]
QUICK = Settings(epochs=1, batch_size=16, learning_rate=1e-2)


def test_answers_are_those_of_a_version_that_was_served(tmp_path: Path) -> None:
    """Also where a version number is used again after a removal: labels and tensors of an answer belong together."""
    writer = intarsia.open(tmp_path, tiny_with_words())
    for name in ("a", "b"):
        writer.learn(name, opinions(40), Bottleneck(4), settings=QUICK)
    first = writer.store.load("a")
    turned = replace(first, labels=tuple(f"{label}!" for label in first.labels))  # other labels, other digest
    allowed = set()
    for inlay in (first, turned):
        writer.remove("a")
        writer.store.add(inlay)
        allowed |= {(p.label, p.probability) for p in intarsia.open(tmp_path, writer.encoder).predict("a", TEXTS)}
    reader = intarsia.open(tmp_path, writer.encoder)
    done = threading.Event()

    def ask(_: int) -> int:
        count = 0
        while not done.is_set() or count == 0:
            try:
                answers = reader.predict([(name, text) for text in TEXTS for name in ("a", "b")])
            except UnknownTask:
                continue  # between a removal and the next version
            assert {(p.label, p.probability) for p in answers if p.task == "a"} <= allowed
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, i) for i in range(4)]
        try:
            for inlay in itertools.islice(itertools.cycle((turned, first)), 40):
                writer.remove("a")
                writer.store.add(inlay)
        finally:
            done.set()
        assert all(call.result() for call in asking)


def test_a_cold_start_from_many_threads_makes_one_engine(tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path, tiny_with_words())
    bank.learn("a", opinions(40), Bottleneck(4), settings=QUICK)
    cold = intarsia.open(tmp_path, bank.encoder)
    ready = threading.Barrier(6)

    def ask(_: int) -> tuple[object, list[float | None]]:
        ready.wait()
        return cold.engine, [p.probability for p in cold.predict("a", TEXTS)]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, range(6)))
    assert len({id(engine) for engine, _ in found}) == 1
    (slots,) = cold.engine.predictor.shapes.values()
    assert len(slots.residents) == 1
    assert all(answers == found[0][1] for _, answers in found)
    assert found[0][1] == pytest.approx([p.probability for p in bank.predict("a", TEXTS)])
