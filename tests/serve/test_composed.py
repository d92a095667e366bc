"""Compositions in the predictor and the engine: the same bits alone and beside others, and parents once in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.methods import (
    Average,
    Bottleneck,
    Fuse,
    LoRA,
    LotteryTicket,
    Method,
    Parent,
    Pfeiffer,
    Prefix,
    Stack,
    swap,
)
from intarsia.methods.compose import parent_tensors
from intarsia.serve.ask import Ask
from intarsia.serve.engine import Engine
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.serve.shared_trunk import shared_trunk
from intarsia.tasks.learned import Interface, Learned
from tests.support.compiled_for import in_pytorch as in_pytorch
from tests.support.composed import Frozen, learned
from tests.support.families import tiny, tiny_with_words
from tests.support.segments import segments

LENGTHS = [7, 4, 9, 6, 1, 12, 5]
ROWS = segments(LENGTHS, pairs=False)


class Tasks:
    """Frozen inlays, which are tasks of their own, and tasks that are built on them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.frozen = encoder, Frozen(encoder)
        self.served: dict[str, Served] = {}
        self.loads: list[str] = []
        self.methods: dict[str, Method] = {}

    def parent(self, name: str, method: Method, seed: int) -> Parent:
        part = self.frozen.add(name, method, seed)
        self._serve(name, part.digest, self.frozen.parents[part.digest])
        return part

    def add(self, name: str, method: Method, seed: int = 0) -> None:
        self._serve(name, name, learned(method, self.encoder, seed, self.frozen.parents))

    def _serve(self, name: str, key: str, task: Learned) -> None:
        def load() -> Learned:
            self.loads.append(name)
            return task

        self.methods[name] = task.method
        self.served[name] = Served(key, Interface(task.task_kind), load, name, 1)

    def resolve(self, name: str, version: int | None, swap: object = ()) -> Served:
        return self.served[name]


def compositions(encoder: Encoder, pfeiffer: bool = True) -> Tasks:
    tasks = Tasks(encoder)
    adapter = Pfeiffer if pfeiffer else lambda size, layers=None: Bottleneck(size, norms=False, layers=layers)
    a, b, c = (tasks.parent(name, adapter(3), seed) for seed, name in enumerate("abc"))  # type: ignore[operator]
    lora, houlsby = tasks.parent("lora", LoRA(2), 4), tasks.parent("houlsby", Bottleneck(3), 5)
    tasks.add("single", adapter(4), 6)  # type: ignore[operator]
    tasks.add("stack-a", Stack(a, adapter(4)), 7)  # type: ignore[operator]
    tasks.add("stack-b", Stack(b, adapter(4)), 8)  # type: ignore[operator]
    tasks.add("stack-a-2", Stack(a, adapter(4)), 9)  # type: ignore[operator]
    tasks.add("paper", Stack(c, adapter(4), residual="paper"), 10)  # type: ignore[operator]
    tasks.add("fuse", Fuse(a, b, c), 11)
    tasks.add("fuse-stacks", Fuse(Stack(a, b), houlsby, static=True), 12)
    tasks.add("average", Average(lora, houlsby, LoRA(3)), 13)
    tasks.add("task", Stack(tasks.parent("inner", Stack(a, lora), 14), b, Bottleneck(2)), 15)
    return tasks


@cache
def bert_tasks() -> Tasks:
    return compositions(tiny("bert"))


def answers(predictor: Predictor, tasks: Tasks, names: Sequence[str], rows: Sequence[Segment]) -> list[np.ndarray]:
    return predictor.predict([(tasks.served[name], row) for name, row in zip(names, rows, strict=True)])


def test_the_same_bits_alone_and_beside_all_others() -> None:
    tasks = bert_tasks()
    names = [name for name in tasks.served for _ in ROWS]
    rows = ROWS * len(tasks.served)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    mixed = answers(Predictor(tasks.encoder), tasks, [names[i] for i in order], [rows[i] for i in order])
    for number, i in enumerate(order[::3]):
        (alone,) = answers(Predictor(tasks.encoder), tasks, [names[i]], [rows[i]])
        assert np.array_equal(mixed[3 * number], alone), names[i]


def test_few_slots_keep_all_that_a_task_is_built_on() -> None:
    """A fusion over a stack over a language, and over as many further inlays as there are slots."""
    tasks = Tasks(tiny("bert"))
    language, *others = (tasks.parent(f"p{seed}", Pfeiffer(3), seed) for seed in range(4))
    stacked = tasks.parent("stacked", Stack(language, Pfeiffer(2)), 10)
    tasks.add("fused", Fuse(stacked, *others), 11)
    (expected,) = answers(Predictor(tasks.encoder), tasks, ["fused"], ROWS[:1])
    few = Predictor(tasks.encoder, Limits(slots=3))
    answers(few, tasks, ["stacked"], ROWS[:1])
    for _ in range(2):
        (found,) = answers(few, tasks, ["fused"], ROWS[:1])
        assert np.array_equal(found, expected)


def test_a_row_full_of_nan_leaves_its_neighbours_as_they_were() -> None:
    tasks = compositions(tiny("bert"))
    names = [name for name in tasks.served for _ in range(2)]
    rows = (ROWS * 20)[: len(names)]
    predictor = Predictor(tasks.encoder)
    before = answers(predictor, tasks, names, rows)
    broken = {"stack-a", "fuse", "task"}
    for name in broken:
        for tensor in tasks.served[name].load().tensors.values():
            tensor.fill_(float("nan"))
        predictor.drop(name)
    after = answers(predictor, tasks, names, rows)
    for name, old, new in zip(names, before, after, strict=True):
        assert np.isnan(new).all() if name in broken else np.array_equal(old, new), name


def test_a_broken_parent_breaks_only_what_is_built_on_it() -> None:
    tasks = compositions(tiny("bert"))
    names, rows = list(tasks.served), (ROWS * 20)[: len(tasks.served)]
    before = answers(Predictor(tasks.encoder), tasks, names, rows)
    for tensor in tasks.served["c"].load().tensors.values():
        tensor.fill_(float("nan"))
    after = answers(Predictor(tasks.encoder), tasks, names, rows)
    for name, old, new in zip(names, before, after, strict=True):
        assert np.isnan(new).all() if name in ("c", "paper", "fuse") else np.array_equal(old, new), name


def test_parents_are_on_the_device_once_and_read_once() -> None:
    tasks = compositions(tiny("bert"))
    engine = Engine(tasks.encoder, tasks.resolve)
    try:
        for i in range(20):
            tasks.add(f"child-{i}", Stack(tasks.methods["stack-a"].parts[0], Pfeiffer(4)), 30 + i)  # type: ignore[attr-defined]
        for i in range(20):
            assert engine.predictor.encoder is tasks.encoder
            engine.load(f"child-{i}")
        shapes = list(engine.predictor.shapes.values())
        assert sorted(len(slots.residents) for slots in shapes) == [1, 20]  # one parent, twenty children
        assert engine.host.loads == 21 and len(engine.host) == 21
        assert tasks.loads == [f"child-{i}" for i in range(20)]
    finally:
        engine.close()


def test_a_parent_leaves_with_its_children_and_never_before_them() -> None:
    tasks = compositions(tiny("bert"))
    predictor = Predictor(tasks.encoder, Limits(slots=2))
    expected = {name: answers(Predictor(tasks.encoder), tasks, [name], ROWS[:1])[0] for name in tasks.served}
    draw = np.random.default_rng(0)
    for _ in range(30):
        names = list(draw.choice(list(tasks.served), 4, replace=False))
        for name, found in zip(names, answers(predictor, tasks, names, ROWS[:1] * 4), strict=True):
            assert np.array_equal(found, expected[name]), name
        in_slots = {
            (id(t.table.tensors), r.slot): key for t in predictor.shapes.values() for key, r in t.residents.items()
        }
        for slots in predictor.shapes.values():
            for resident in slots.residents.values():
                assert resident.held is not None
                for digest, parent in resident.held.parents.items():
                    # Where one task needs more inlays than there are slots, the others have slots of their own.
                    assert in_slots.get((id(parent.tensors), parent.slot), digest) == digest
    predictor.drop(next(iter(tasks.frozen.parents)))  # "a", on which most are built
    left = {name for name, task in tasks.served.items() if predictor.residents.find(task.key)}
    assert not left & {"stack-a", "stack-a-2", "fuse", "fuse-stacks", "inner", "task"}


def test_an_engine_with_little_memory_answers_the_same() -> None:
    encoder = tiny_with_words()
    tasks = compositions(encoder)
    names = [name for _ in range(3) for name in tasks.served]
    asks = [
        Ask(name, text) for name, text in zip(names, ["good film", "a bad day", "it is so hot"] * 100, strict=False)
    ]
    found = []
    for limits in (Limits(), Limits(slots=2, host_bytes=1, pass_tokens=64)):
        engine = Engine(encoder, tasks.resolve, limits)
        try:
            found.append([answer.prediction for answer in engine.answer(asks)])
        finally:
            engine.close()
    assert found[0] == found[1] and None not in found[0]


def test_a_task_with_another_parent_is_that_parents_task() -> None:
    tasks = bert_tasks()
    task, parts = tasks.served["stack-a"].load(), {p.task: p for p in [tasks.methods["stack-b"].parts[0]]}  # type: ignore[attr-defined]
    digest = tasks.methods["stack-a"].parts[0].digest  # type: ignore[attr-defined]
    swapped = replace(task, method=swap(task.method, {digest: parts["b"]}))
    swapped.check(tasks.encoder.shape)
    found = Served("swapped", Interface(task.task_kind), lambda: swapped)
    predictor = Predictor(tasks.encoder)
    plain, other = predictor.predict([(tasks.served["stack-a"], ROWS[0]), (found, ROWS[0])])
    again = learned(swapped.method, tasks.encoder, 7, tasks.frozen.parents)
    (expected,) = predictor.predict([(Served("again", Interface(task.task_kind), lambda: again), ROWS[0])])
    assert np.array_equal(other, expected) and not np.allclose(plain, other, atol=1e-4)


def test_sparse_differences_add_up_and_come_off_bit_for_bit() -> None:
    encoder = tiny("bert")
    tasks = Tasks(encoder)
    language = tasks.parent("language", LotteryTicket(entries=200), 1)
    topic = tasks.parent("topic", LotteryTicket(entries=300), 2)
    tasks.add("both", Stack(language, topic), 3)
    tasks.add("adapter", Stack(language, Pfeiffer(3), tasks.parent("lora", LoRA(2), 5)), 4)
    predictor = Predictor(encoder)
    before = answers(predictor, tasks, ["language", "topic"], ROWS[:2])
    both, adapter = answers(predictor, tasks, ["both", "adapter"], ROWS[:2])
    after = answers(predictor, tasks, ["language", "topic"], ROWS[:2])
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    shape, base = encoder.shape, dict(encoder.weights)
    stacked = Stack(language, topic)
    own = {digest: inlay.method_tensors for digest, inlay in tasks.frozen.parents.items()}
    found = stacked.weights("train", shape, parent_tensors(stacked, own), {}, base)
    for name, weight in found.items():
        expected = base[name].reshape(-1).clone()
        for part in (language, topic):
            start = 0
            for parameter in part.method.trained(shape):
                index = own[part.digest]["index"]
                inside = (index >= start) & (index < start + parameter.size)
                if parameter.name == name:
                    expected[index[inside] - start] += own[part.digest]["values"][inside]
                start += parameter.size
        assert torch.equal(weight.reshape(-1), expected), name
    assert np.isfinite(both).all() and np.isfinite(adapter).all()
    encoder.check_frozen()


# ---- several answers to one text


def parallel_tasks(encoder: Encoder) -> Tasks:
    tasks = Tasks(encoder)
    language = tasks.parent("language", Bottleneck(3, norms=False), 1)
    top = (2,)
    for i in range(3):
        tasks.add(f"upper-{i}", Bottleneck(4, layers=top, norms=False), 10 + i)
        tasks.add(f"stack-{i}", Stack(language, Bottleneck(4, layers=top, norms=False)), 20 + i)
    tasks.add("prefix", Prefix(2, layers=(1, 2)), 30)
    tasks.add("everywhere", Bottleneck(4, norms=False), 31)
    return tasks


@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet", "albert", "distilbert"])
@pytest.mark.usefixtures("in_pytorch")  # all methods in one pass
def test_rows_of_one_text_share_layers_and_keep_their_bits(family: str) -> None:
    tasks = parallel_tasks(tiny(family))
    names = [name for _ in ROWS for name in tasks.served]
    rows = [row for row in ROWS for _ in tasks.served]
    computed: list[int] = []
    below = tasks.encoder.states_below

    def counted(batch: object, layer: int, groups: object = (), *, compiled: bool = False) -> torch.Tensor:
        computed.append(batch.rows)  # type: ignore[attr-defined]
        return below(batch, layer, groups, compiled=compiled)  # type: ignore[arg-type]

    tasks.encoder.states_below = counted  # type: ignore[method-assign]
    together = answers(Predictor(tasks.encoder), tasks, names, rows)
    # Below layer 2: the plain base, the language, the prefix and the adapter everywhere; the language itself is a task.
    filling = len(Predictor(tasks.encoder)._filling(rows, ()))  # the row, if any, that fills the pass
    assert computed == [5 * len(ROWS) + filling]
    for name, row, found in zip(names, rows, together, strict=True):
        assert np.array_equal(found, answers(Predictor(tasks.encoder), tasks, [name], [row])[0]), name


def test_nothing_is_shared_where_nothing_is_equal() -> None:
    shape = tiny("bert").shape
    top, all_layers = Bottleneck(2, layers=(2,)), Bottleneck(2)
    same, other = [ROWS[0], ROWS[0]], [ROWS[0], ROWS[1]]
    assert shared_trunk(other, ["a", "b"], {"a": top, "b": top}, shape) is None
    assert shared_trunk(same, ["a", "b"], {"a": all_layers, "b": top}, shape) is None
    found = shared_trunk(same, ["a", None], {"a": top, None: None}, shape)
    assert found is not None and (found.layer, found.rows, found.source) == (2, [0], [0, 0])


def test_the_engine_answers_several_tasks_to_each_text() -> None:
    encoder = tiny_with_words()
    tasks = parallel_tasks(encoder)
    engine = Engine(encoder, tasks.resolve)
    try:
        texts = ["good film", "an awful day", "the sun is so hot"]
        asks = [Ask(name, text) for text in texts for name in ("upper-0", "stack-1", "upper-2")]
        together = engine.answer(asks)
        alone = [engine.answer([ask])[0] for ask in asks]
        assert [a.prediction for a in together] == [a.prediction for a in alone]
    finally:
        engine.close()
