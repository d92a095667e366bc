"""The engine: many callers, one owner of the device, the bits of a row asked alone."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia import Bottleneck, Full, Limits, LoRA, Prefix, Settings
from intarsia.bank import store
from intarsia.bank.bank import Bank
from intarsia.errors import DamagedInlay, DeadlineExceeded, IntarsiaError, Overloaded, UnknownTask
from intarsia.serve.ask import Answer, Ask
from intarsia.serve.engine import PART, Engine
from intarsia.serve.recorded import Outputs
from intarsia.tasks.heads import Head
from intarsia.tasks.learned import Learned
from intarsia.tasks.task_kind import TaskKind
from tests.support.families import opinions, tiny_with_words

QUICK = Settings(epochs=1, batch_size=16, learning_rate=1e-2)
WORDS = ["good", "bad", "film", "day", "the", "sun", "is", "so", "hot", "not", "a", "plum", "awful", "great"]
METHODS = {"houlsby": Bottleneck(4), "wide": Bottleneck(6), "lora": LoRA(2), "prefix": Prefix(2), "full": Full()}


def texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=int(draw.integers(1, 30)))) for _ in range(count)]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    bank = intarsia.open(tmp_path_factory.mktemp("bank"), tiny_with_words())
    for name, method in METHODS.items():
        bank.learn(name, opinions(40), method, settings=QUICK)
    for i in range(4):
        bank.learn(f"h{i}", opinions(40), Bottleneck(4), settings=Settings(epochs=1, seed=i, learning_rate=1e-2))
    return bank


KEPT: list[Bank] = []  # an engine ends with its bank


def opened(bank: Bank, **limits: int) -> Bank:
    KEPT.append(intarsia.open(bank.store.folder, bank.encoder, limits=Limits(**limits)))
    return KEPT[-1]


def values(answers: list[Answer]) -> list[object]:
    return [a.error or a.prediction or a.vector.tobytes() for a in answers]  # type: ignore[union-attr]


@pytest.fixture
def held(bank: Bank) -> Iterator[tuple[Engine, Callable[[], None]]]:
    """An engine whose thread waits until it is let go, so that requests queue up."""
    engine = opened(bank, pass_tokens=64, queue_tokens=128).engine
    begun, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        let_go.wait(60)

    engine._on_device(hold, wait=False)
    begun.wait(60)
    yield engine, let_go.set
    let_go.set()
    engine.close()


def test_rows_have_the_same_bits_alone_mixed_and_under_eviction(bank: Bank) -> None:
    names = [task.name for task in bank.tasks()]
    asks = [Ask(names[i % len(names)], text, embed=i % 5 == 0) for i, text in enumerate(texts(60))]
    asks += [Ask(None, text, embed=True) for text in texts(5, seed=1)]
    mixed = values(opened(bank).engine.answer(asks))
    small = opened(bank, slots=2, pass_tokens=64, host_bytes=1, own_weights=1).engine
    assert values(small.answer(asks)) == mixed
    assert small.stats().evictions > 0 and small.stats().host_tasks == 1
    alone = opened(bank).engine
    assert [values(alone.answer([ask]))[0] for ask in asks] == mixed


def test_sixteen_threads_get_the_bits_of_serial_calls_while_tasks_leave(bank: Bank) -> None:
    names = [task.name for task in bank.tasks()]
    calls = [[Ask(names[(i * j) % len(names)], text) for j, text in enumerate(texts(5, i))] for i in range(48)]
    expected = [values(opened(bank).engine.answer(call)) for call in calls[:12]]
    engine = opened(bank, slots=2, pass_tokens=128, host_bytes=100_000).engine

    def ask(i: int) -> list[object]:
        if i % 7 == 3:
            engine.unload(names[i % len(names)])
        return values(engine.answer(calls[i % len(calls)]))

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(96)))
    for i, answers in enumerate(found):
        if i % len(calls) < len(expected):
            assert answers == expected[i % len(calls)], i
        assert answers == found[i % len(calls)], i


def test_a_bad_row_is_answered_for_itself(bank: Bank) -> None:
    own = opened(bank)
    damaged = own.show("h1").path
    content = damaged.read_bytes()
    asks = [Ask("h0", "good"), Ask("nobody", "good"), Ask("h0", ("a", "pair")), Ask("h1", "bad"), Ask("h2", "bad")]
    try:
        damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        answers = own.engine.answer([*asks, Ask(None, "good")])
    finally:
        damaged.write_bytes(content)
    good = opened(bank).engine
    assert (
        values(answers)[0] == values(good.answer(asks[:1]))[0]
        and values(answers)[4] == values(good.answer(asks[4:]))[0]
    )
    assert isinstance(answers[1].error, UnknownTask)
    for place, said in ((2, "single texts"), (3, "digest"), (5, "has no head")):
        assert said in str(answers[place].error), place


def test_one_bad_load_is_one_load_for_all_that_wait(bank: Bank) -> None:
    engine = opened(bank).engine
    ready = threading.Barrier(8)

    def ask(_: int) -> object:
        ready.wait()
        return values(engine.answer([Ask("h0", "good")]))[0]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(str, pool.map(ask, range(8))))) == 1
    assert engine.stats().file_loads == 1


def test_a_call_is_admitted_whole_or_not_at_all(held: tuple[Engine, Callable[[], None]]) -> None:
    engine, let_go = held
    words = "good " * 20
    first = engine.submit([Ask("h0", words)] * 4)
    waiting = engine.stats().queue_tokens
    assert 80 < waiting < 100
    with pytest.raises(Overloaded, match="tokens wait already") as refused:
        engine.submit([Ask("h0", words)] * 3)
    assert refused.value.retry_after > 0 and engine.stats().queue_tokens == waiting and engine.stats().refused == 1
    with pytest.raises(IntarsiaError, match="Send it in several parts"):
        engine.submit([Ask("h0", text) for text in texts(60, 1)])
    let_go()
    assert all(answer.error is None for answer in first.result(60))
    assert engine.stats().queue_tokens == 0


def test_answers_do_not_wait_for_the_next_pass(
    held: tuple[Engine, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, let_go = held
    calls = [engine.submit([Ask("houlsby", " ".join(["good"] * 40))]) for _ in range(3)]  # a pass each
    done: list[list[bool]] = []
    start = engine.predictor.start
    monkeypatch.setattr(
        engine.predictor, "start", lambda *given: (done.append([call.done for call in calls]), start(*given))[1]
    )
    let_go()
    for call in calls:
        call.result()
    assert done == [[False, False, False], [True, False, False], [True, True, False]]


def test_deadlines_and_cancelled_calls_leave_the_queue(held: tuple[Engine, Callable[[], None]]) -> None:
    engine, let_go = held
    late = engine.submit([Ask("h0", "good")], deadline=time.monotonic())
    dropped = engine.submit([Ask("h1", "good")])
    kept = engine.submit([Ask("h2", "good")])
    called: list[bool] = []
    for call in (late, dropped, kept):
        call.add_done_callback(lambda call: called.append(call.done))
    dropped.cancel()
    let_go()
    with pytest.raises(DeadlineExceeded):
        late.result(60)
    with pytest.raises(IntarsiaError, match="cancelled"):
        dropped.result(60)
    assert kept.result(60)[0].prediction is not None
    assert called == [True] * 3 and engine.stats().expired == 1
    assert kept.timing.total >= kept.timing.queue > 0 and engine.stats().rows == 1


def test_a_failing_task_does_not_fail_its_neighbours(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(bank).engine
    bad = engine.resolve("h1", None).key
    plain = engine.predictor.start

    def start(rows: list, held: dict) -> object:  # type: ignore[type-arg]
        if bad in held:
            raise RuntimeError("no memory")
        return plain(rows, held)

    monkeypatch.setattr(engine.predictor, "start", start)
    calls = [engine.submit([Ask(name, "good")]) for name in ("h0", "h1", "h2")]
    assert calls[0].result(60)[0].prediction and calls[2].result(60)[0].prediction
    with pytest.raises(IntarsiaError, match="RuntimeError: no memory"):
        calls[1].result(60)


def test_texts_that_are_too_long_are_counted_or_refused(bank: Bank) -> None:
    engine = opened(bank).engine
    asks = [Ask("h0", "good " * 400), Ask("h0", "good")]
    long, short = engine.answer(asks)
    assert long.truncated and not short.truncated and long.tokens > short.tokens
    assert engine.stats().truncated == 1
    long, again = engine.answer(asks, truncate=False)
    assert "longer than" in str(long.error) and again.prediction == short.prediction


def test_versions_follow_the_bank_without_a_restart(bank: Bank, tmp_path: Path) -> None:
    writer = intarsia.open(tmp_path, bank.encoder)
    writer.store.add(bank.store.load("h0"))
    reader = intarsia.open(tmp_path, bank.encoder)
    first = reader.predict("h0", ["good film"])
    with pytest.raises(UnknownTask):
        reader.predict("h1", ["good film"])
    writer.learn("h0", opinions(40), Bottleneck(4), settings=Settings(epochs=1, seed=9, learning_rate=1e-2))
    second = reader.predict("h0", ["good film"])
    assert second != first
    (old,) = reader.engine.answer([Ask("h0", "good film", version=1)])
    assert old.prediction == first[0] and old.version == 1
    writer.restore("h0", 1)
    assert reader.predict("h0", ["good film"]) == first
    writer.remove("h0")
    with pytest.raises(UnknownTask):
        reader.predict("h0", ["good film"])


def test_a_damaged_file_is_not_read_for_every_request(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bank.store.folder, tmp_path / "bank")
    own = intarsia.open(tmp_path / "bank", bank.encoder)
    (before,) = own.predict("h0", ["good"])
    path = own.show("h0").path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    reads: list[Path] = []
    read = store.read_inlay
    monkeypatch.setattr(store, "read_inlay", lambda path: (reads.append(path), read(path))[1])
    fresh = intarsia.open(tmp_path / "bank", bank.encoder)
    for _ in range(5):
        with pytest.raises(DamagedInlay, match="damaged"):
            fresh.predict("h0", ["good"])
    assert len(reads) <= 2 and not fresh.engine.at_hand("h0", None)
    path.write_bytes(whole)  # counts at once
    assert fresh.predict("h0", ["good"]) == [before] and fresh.engine.at_hand("h0", None)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    again = intarsia.open(tmp_path / "bank", bank.encoder)
    with pytest.raises(DamagedInlay):
        again.predict("h0", ["good"])
    again.learn("h0", opinions(40), Bottleneck(4), settings=QUICK)  # so does a new version
    assert again.predict("h0", ["good"])[0].label


def test_a_large_request_asks_one_version_of_a_task_from_start_to_end(bank: Bank) -> None:
    engine = opened(bank).engine
    inner, asked = engine.resolve, Counter[str]()

    def resolve(name: str, *others: object) -> object:
        asked[name] += 1
        return inner(name, *others)  # type: ignore[arg-type]

    engine.resolve = resolve  # type: ignore[assignment]
    answers = engine.answer([Ask("houlsby", "good"), Ask("lora", "bad")] * PART)
    assert asked == {"houlsby": 1, "lora": 1} and {answer.version for answer in answers} == {1}


def test_vectors_of_the_base_and_of_a_task(bank: Bank) -> None:
    own = opened(bank)
    plain, task = own.embed(["good film", "bad"]), own.embed(["good film", "bad"], "h0")
    assert plain.shape == task.shape == (2, bank.encoder.shape.width) and plain.dtype == np.float32
    assert not np.allclose(plain, task)
    assert np.array_equal(own.embed(["bad", ("bad", "film")])[0], plain[1])
    assert own.embed([]).shape == (0, bank.encoder.shape.width)
    with pytest.raises(IntarsiaError, match="one string"):
        own.embed("good")


def test_a_closed_engine_answers_what_waits_or_says_so(bank: Bank) -> None:
    engine = opened(bank).engine
    call = engine.submit([Ask("h0", text) for text in texts(40)])
    engine.close()
    assert len(call.result(60)) == 40
    with pytest.raises(IntarsiaError, match="closed"):
        engine.answer([Ask("h0", "good")])
    engine.close()


def test_an_engine_ends_with_its_bank(bank: Bank) -> None:
    own = intarsia.open(bank.store.folder, bank.encoder)
    thread = own.engine._thread
    own.predict("h0", ["good"])
    del own
    thread.join(60)
    assert not thread.is_alive()


def test_limits_are_checked() -> None:
    with pytest.raises(IntarsiaError, match="limit slots is 0"):
        Limits(slots=0)


def test_outputs_that_are_not_finite_are_an_error_of_their_task(bank: Bank, tmp_path: Path) -> None:
    own = intarsia.open(tmp_path, bank.encoder)
    own.store.add(bank.store.load("h0"))
    inlay = bank.store.load("h1")
    name = "head.output.weight"
    own.store.add(replace(inlay, tensors=inlay.tensors | {name: torch.full_like(inlay.tensors[name], 3e38)}))
    KEPT.append(own)
    good, bad = own.engine.answer([Ask("h0", "good"), Ask("h1", "good")])
    assert good.prediction == bank.predict("h0", ["good"])[0]
    assert "NaN or infinity" in str(bad.error)


def test_outputs_stay_when_a_later_pass_takes_their_buffers() -> None:
    """On a GPU outputs arrive in buffers that are used again, perhaps before a caller reads them."""
    buffers = {"rows": torch.ones(2, 3), "vectors": torch.ones(2, 4)}
    task = Learned(Bottleneck(4), Head(3), TaskKind("label", ("a", "b", "c")), {})
    outputs = Outputs(buffers, None, np.zeros(2, np.int64))
    outputs.wait()
    rows, vector = outputs.of_rows(slice(0, 2), task, []), outputs.vector(0)
    for buffer in buffers.values():
        buffer.zero_()
    assert np.all(np.stack(rows) == 1) and np.all(vector == 1)
