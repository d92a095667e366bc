"""Many tasks in one pass, in few slots, with nothing rebuilt."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor, Request
from intarsia.serve.served import Served
from intarsia.tasks.heads import Head, Pooling
from intarsia.tasks.learned import Interface, Learned
from intarsia.tasks.task_kind import TaskKind
from tests.support.families import tiny_with_words

TEXTS = ["good film", "the big red apple was cold", "bad", "it is not so very hot and the sun was up", "one two three"]


def learned(encoder: Encoder, number: int, method: Bottleneck, labels: int = 2, pooling: Pooling = "mean") -> Learned:
    specs = {f"method.{k}": v for k, v in method.tensors(encoder.shape).items()}
    head = Head(labels, pooling)
    specs |= {f"head.{k}": v for k, v in head.tensors(encoder.shape).items()}
    draw = torch.Generator().manual_seed(number)
    tensors = {k: v + 0.2 * torch.randn(v.shape, generator=draw) for k, v in start(specs, encoder, number).items()}
    return Learned(method, head, TaskKind("label", tuple(f"l{i}" for i in range(labels))), tensors)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture(scope="module")
def tasks(encoder: Encoder) -> dict[str, Learned]:
    poolings: list[Pooling] = ["mean", "cls", "pooler", "trained-pooler"]
    made = {f"s{i}": learned(encoder, i, Bottleneck(4), 2 + i % 3, poolings[i % 4]) for i in range(6)}
    made |= {f"l{i}": learned(encoder, 10 + i, Bottleneck(8, parallel=True)) for i in range(3)}
    return made


def served(key: str, learned: Learned) -> Served:
    return Served(key, Interface(learned.task_kind), lambda: learned)


def requests(encoder: Encoder, tasks: dict[str, Learned]) -> list[Request]:
    segments = encoder.tokenize(TEXTS)
    return [(served(key, learned), segment) for segment in segments for key, learned in tasks.items()]


def alone(encoder: Encoder, asked: list[Request]) -> list[np.ndarray]:
    return [Predictor(encoder, Limits(slots=1)).predict([one])[0] for one in asked]


@pytest.mark.parametrize("slots", [1, 2, 4, 256])
def test_mixed_requests_equal_separate_ones(encoder: Encoder, tasks: dict[str, Learned], slots: int) -> None:
    asked = requests(encoder, tasks)
    mixed = Predictor(encoder, Limits(slots=slots)).predict(asked)
    for a, b in zip(mixed, alone(encoder, asked), strict=True):
        assert np.array_equal(a, b)


def test_methods_that_differ_in_their_start_only_share_slots(encoder: Encoder) -> None:
    two = {"a": learned(encoder, 1, Bottleneck(4, std=1e-2)), "b": learned(encoder, 2, Bottleneck(4, std=1e-3))}
    predictor = Predictor(encoder)
    predictor.predict(requests(encoder, two))
    (slots,) = predictor.shapes.values()
    assert list(slots.residents) == ["a", "b"]


def test_adding_replacing_and_dropping_touch_one_slot(encoder: Encoder, tasks: dict[str, Learned]) -> None:
    predictor = Predictor(encoder, Limits(slots=4))
    asked = requests(encoder, {key: tasks[key] for key in ("s0", "s1")})
    before = predictor.predict(asked)
    (slots,) = predictor.shapes.values()
    kept = {key: slots.table.buffer[resident.slot].clone() for key, resident in slots.residents.items()}
    memory = slots.table.buffer.data_ptr()
    predictor.hold(served("s2", tasks["s2"]))
    predictor.drop("s2")
    predictor.hold(served("s2", tasks["s3"]))
    predictor.drop("s2")
    predictor.hold(served("s4", tasks["s4"]))
    assert memory == slots.table.buffer.data_ptr()
    for key, row in kept.items():
        assert torch.equal(slots.table.buffer[slots.residents[key].slot], row)
    after = predictor.predict(asked)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_least_recently_asked_makes_room(encoder: Encoder, tasks: dict[str, Learned]) -> None:
    loads: list[str] = []

    def counted(key: str) -> Served:
        return Served(key, Interface(tasks[key].task_kind), lambda: loads.append(key) or tasks[key])  # type: ignore[func-returns-value]

    predictor = Predictor(encoder, Limits(slots=2))
    for key in ["s0", "s1", "s0", "s2", "s0", "s1"]:
        predictor.hold(counted(key))
    assert loads == ["s0", "s1", "s2", "s1"]
    (slots,) = predictor.shapes.values()
    assert list(slots.residents) == ["s0", "s1"]  # the head of s2 has left with its tensors


def test_wide_methods_get_fewer_slots(encoder: Encoder, tasks: dict[str, Learned]) -> None:
    predictor = Predictor(encoder, Limits(slot_bytes=3 * 4 * Bottleneck(4).count(encoder.shape)))
    asked = requests(encoder, {key: tasks[key] for key in ("s0", "s1", "s2", "s3", "s4")})
    predictor.predict(asked)
    (slots,) = predictor.shapes.values()
    assert slots.capacity == 3 and len(slots.residents) == 3


def test_few_slots_of_one_shape_do_not_split_the_tasks_of_another(encoder: Encoder) -> None:
    found = {f"n{i}": learned(encoder, i, Bottleneck(2)) for i in range(6)}
    found |= {f"w{i}": learned(encoder, i, Bottleneck(8)) for i in range(2)}
    predictor = Predictor(encoder, Limits(slot_bytes=100 * 4 * Bottleneck(2).count(encoder.shape)))
    asked = requests(encoder, found)
    for key in found:
        predictor.hold(served(key, found[key]))
    for slots, capacity in zip(predictor.shapes.values(), (6, 1), strict=True):
        slots.capacity = capacity
    keys = [{asked[row][0].key for row in rows} for rows in predictor._plan(asked, {t.key: t for t, _ in asked})]
    assert keys == [{*(f"n{i}" for i in range(6)), "w0"}, {"w1"}]


def test_tensors_that_do_not_fit_their_method_reach_no_slot(encoder: Encoder, tasks: dict[str, Learned]) -> None:
    """A longer tensor would be written into the next task's slot."""
    predictor = Predictor(encoder, Limits(slots=2))
    asked = requests(encoder, {key: tasks[key] for key in ("s0", "s1")})
    before = predictor.predict(asked)
    wide = learned(encoder, 5, Bottleneck(8))
    forged = Learned(Bottleneck(4), wide.head, wide.task_kind, wide.tensors)
    with pytest.raises(IntarsiaError, match="has the shape"):
        predictor.hold(served("forged", forged))
    missing = dict(list(tasks["s2"].tensors.items())[1:])
    with pytest.raises(IntarsiaError, match="None: no tensor"):
        predictor.hold(served("missing", Learned(Bottleneck(4), wide.head, wide.task_kind, missing)))
    assert all(np.array_equal(a, b) for a, b in zip(before, predictor.predict(asked), strict=True))


@pytest.mark.parametrize("slots", [2, 256])
def test_threads_get_the_bits_of_serial_calls(encoder: Encoder, tasks: dict[str, Learned], slots: int) -> None:
    """While tasks evict each other, and others are dropped."""
    segments = encoder.tokenize(TEXTS)
    keys = list(tasks)
    calls = [
        [
            (served(keys[(i + j) % len(keys)], tasks[keys[(i + j) % len(keys)]]), segments[(i * j) % len(segments)])
            for j in range(4)
        ]
        for i in range(24)
    ]
    serial = Predictor(encoder, Limits(slots=slots))
    expected = [serial.predict(call) for call in calls]
    predictor = Predictor(encoder, Limits(slots=slots))

    def ask(i: int) -> list[np.ndarray]:
        if i % 7 == 3:
            predictor.drop(keys[i % len(keys)])
        return predictor.predict(calls[i % len(calls)])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(4 * len(calls))))
    for i, answers in enumerate(found):
        assert all(np.array_equal(a, b) for a, b in zip(answers, expected[i % len(calls)], strict=True)), i


def test_texts_are_cut_to_no_less_than_a_word() -> None:
    encoder = tiny_with_words()
    assert [len(s.ids) for s in encoder.tokenize(["good good good", "bad"], max_length=3)] == [3, 3]
    for pairs, length in ((None, 2), (["bad", "good"], 3)):
        with pytest.raises(IntarsiaError, match="no room for words"):
            encoder.tokenize(["good", "bad"], pairs, max_length=length)
