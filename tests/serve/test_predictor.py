"""Many tasks in one pass, in few slots, with nothing rebuilt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck
from intarsia.serve.predictor import Predictor
from intarsia.tasks.heads import Head, Pooling
from intarsia.tasks.learned import Learned
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


def requests(encoder: Encoder, keys: list[str]) -> list[tuple[str, object]]:
    segments = encoder.tokenize(TEXTS)
    return [(key, segment) for segment in segments for key in keys]


def alone(encoder: Encoder, tasks: dict[str, Learned], asked: list[tuple[str, object]]) -> list[np.ndarray]:
    return [Predictor(encoder, tasks.__getitem__, slots=1).predict([one])[0] for one in asked]  # type: ignore[list-item]


@pytest.mark.parametrize("slots", [1, 2, 4, 256])
def test_mixed_requests_equal_separate_ones(encoder: Encoder, tasks: dict[str, Learned], slots: int) -> None:
    asked = requests(encoder, list(tasks))
    mixed = Predictor(encoder, tasks.__getitem__, slots=slots).predict(asked)  # type: ignore[arg-type]
    for a, b in zip(mixed, alone(encoder, tasks, asked), strict=True):
        assert np.allclose(a, b, atol=1e-5)


def test_methods_that_differ_in_their_start_only_share_a_stack(encoder: Encoder) -> None:
    two = {"a": learned(encoder, 1, Bottleneck(4, std=1e-2)), "b": learned(encoder, 2, Bottleneck(4, std=1e-3))}
    predictor = Predictor(encoder, two.__getitem__)
    predictor.predict(requests(encoder, ["a", "b"]))  # type: ignore[arg-type]
    assert len(predictor.stacks) == 1


def test_adding_replacing_and_dropping_touch_one_slot(encoder: Encoder, tasks: dict[str, Learned]) -> None:
    predictor = Predictor(encoder, tasks.__getitem__, slots=4)
    asked = requests(encoder, ["s0", "s1"])
    before = predictor.predict(asked)  # type: ignore[arg-type]
    stack = predictor.residents["s0"].stack
    kept = {key: stack.slots.buffer[slot].clone() for key, slot in stack.residents.items()}
    memory = stack.slots.buffer.data_ptr()
    predictor.put("s2", tasks["s2"])
    predictor.put("s2", tasks["s3"])
    predictor.drop("s2")
    predictor.put("s4", tasks["s4"])
    assert memory == stack.slots.buffer.data_ptr()
    for key, row in kept.items():
        assert torch.equal(stack.slots.buffer[stack.residents[key]], row)
    after = predictor.predict(asked)  # type: ignore[arg-type]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_least_recently_asked_makes_room(encoder: Encoder, tasks: dict[str, Learned]) -> None:
    loads: list[str] = []

    def source(key: str) -> Learned:
        loads.append(key)
        return tasks[key]

    predictor = Predictor(encoder, source, slots=2)
    for key in ["s0", "s1", "s0", "s2", "s0", "s1"]:
        predictor.hold(key)
    assert loads == ["s0", "s1", "s2", "s1"]


def test_texts_are_cut_to_no_less_than_a_word() -> None:
    encoder = tiny_with_words()
    assert [len(s.ids) for s in encoder.tokenize(["good good good", "bad"], max_length=3)] == [3, 3]
    for pairs, length in ((None, 2), (["bad", "good"], 3)):
        with pytest.raises(IntarsiaError, match="no room for words"):
            encoder.tokenize(["good", "bad"], pairs, max_length=length)
