"""The whole: learn, keep and use tasks, none disturbing another."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.encoder.encoder import Encoder
from intarsia.errors import BankError, IntarsiaError
from tests.support.families import opinions, save_tiny, tiny_with_words

QUICK = Settings(learning_rate=3e-3, epochs=3, batch_size=16)
TEXTS = ["good film", "an awful day", "the sun is so hot", "great big apple and a poor small plum"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def colours(count: int = 60) -> list[dict[str, str]]:
    rows = opinions(count, seed=5)
    names = ["red", "blue", "green"]
    return [
        {"text": f"{' '.join(w for w in r['text'].split() if w not in names)} {names[i % 3]}", "label": names[i % 3]}
        for i, r in enumerate(rows)
    ]


def pairs(count: int = 60) -> list[dict[str, str]]:
    rows = opinions(count, seed=9)
    return [{"text_a": r["text"], "text_b": "it was so", "label": r["label"]} for r in rows]


def test_tasks_arrive_in_a_stream_and_none_disturbs_another(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = bank.learn("opinion", opinions(), method=Bottleneck(8), settings=QUICK)
    assert entry.version == 1 and 0 <= entry.header.metrics["test"]["low"] <= entry.header.metrics["test"]["high"] <= 1
    first = bank.predict("opinion", TEXTS)
    content = entry.path.read_bytes()
    bank.learn("colour", colours(), method=Bottleneck(4), settings=QUICK, pooling="cls")
    bank.learn("agrees", pairs(), method=Bottleneck(8), settings=QUICK)
    assert entry.path.read_bytes() == content
    assert bank.predict("opinion", TEXTS) == first  # bit for bit
    assert intarsia.open(tmp_path / "bank", encoder).predict("opinion", TEXTS) == first

    mixed = bank.predict([("opinion", TEXTS[0]), ("colour", TEXTS[0]), ("agrees", (TEXTS[1], "it was so"))])
    assert [p.task for p in mixed] == ["opinion", "colour", "agrees"]
    assert mixed[0].label == first[0].label
    assert mixed[0].probability == pytest.approx(first[0].probability, abs=1e-5)
    assert set(mixed[1].probabilities or {}) == {"red", "blue", "green"}


def test_the_accounting_is_exact(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("opinion", opinions(), method=Bottleneck(8), settings=QUICK)
    header = bank.show("opinion").header
    inlay = bank.store.load("opinion")
    stored = sum(t.numel() for t in inlay.tensors.values())
    assert header.parameters["total"] == stored == Bottleneck(8).count(encoder.shape) + 2 * 33
    assert header.parameters["base"] == encoder.shape.parameters
    cost = bank.cost()
    assert cost.total_with_heads == pytest.approx(1 + stored / encoder.shape.parameters)
    assert cost.fine_tuning == 1


def test_a_new_version_is_served_and_the_old_one_comes_back_bit_for_bit(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("opinion", opinions(), method=Bottleneck(8), settings=QUICK)
    first = bank.predict("opinion", TEXTS)
    assert bank.learn("opinion", opinions(seed=3), method=Bottleneck(2), settings=QUICK).version == 2
    second = bank.predict("opinion", TEXTS)
    assert second != first
    assert bank.restore("opinion", 1).version == 3
    assert bank.predict("opinion", TEXTS) == first


def test_a_bank_refuses_another_base(encoder: Encoder, tmp_path: Path) -> None:
    intarsia.open(tmp_path / "bank", encoder).learn("opinion", opinions(), method=Bottleneck(4), settings=QUICK)
    other = tiny_with_words(seed=1)
    with pytest.raises(BankError) as caught:
        intarsia.open(tmp_path / "bank", other).predict("opinion", TEXTS)
    assert encoder.fingerprint in str(caught.value) and other.fingerprint in str(caught.value)


def test_a_bank_remembers_its_base(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "base")
    intarsia.open(tmp_path / "bank", folder).learn("opinion", opinions(), method=Bottleneck(4), settings=QUICK)
    bank = intarsia.open(tmp_path / "bank")
    assert bank.predict("opinion", TEXTS)[0].label in ("yes", "no")
    assert bank.encoder.name == folder


def test_evaluate_and_scores(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    settings = Settings(learning_rate=3e-3, epochs=6, batch_size=16)
    bank.learn("opinion", opinions(400), method=Bottleneck(8), settings=settings)
    held = bank.evaluate("opinion", opinions(40, seed=77))
    assert held.metric == "accuracy" and held.examples == 40
    assert held.interval.low <= held.interval.value <= held.interval.high and held.interval.value > 0.7
    assert bank.evaluate("opinion", opinions(40, seed=77), metric="matthews").metric == "matthews"
    rows = [{**r, "label": 1.5 if r["label"] == "yes" else -2.5} for r in opinions(400)]
    bank.learn("score", rows, method=Bottleneck(8), settings=settings)
    answers = bank.predict("score", ["good good", "bad bad"])
    assert answers[0].score is not None and answers[1].score is not None and answers[0].score > answers[1].score


def test_work_is_tidied_up_and_an_interrupted_run_is_resumed(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)

    def interrupt(progress) -> None:  # type: ignore[no-untyped-def]
        if progress.step == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bank.learn("opinion", opinions(), method=Bottleneck(4), settings=QUICK, watch=interrupt)
    (state,) = (tmp_path / "bank" / "work").glob("opinion-*/state.safetensors")
    (run,) = bank.unfinished()
    assert (run.name, run.path, run.bytes) == ("opinion", state.parent, state.stat().st_size)
    with (state.parent / "states-1.chunks").open("wb") as file:
        file.truncate(1 << 30)  # a hole
    assert bank.unfinished()[0].bytes < 1 << 29
    assert not bank.tasks() and not bank.verify()  # nothing is damaged
    seen: list[int] = []
    bank.learn("opinion", opinions(), method=Bottleneck(4), settings=QUICK, watch=lambda p: seen.append(p.resumed_at))
    assert seen[0] == 4
    assert not list((tmp_path / "bank" / "work").iterdir()) and not bank.unfinished()


def test_wrong_calls_are_explained(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("opinion", opinions(), method=Bottleneck(4), settings=QUICK)
    with pytest.raises(BankError, match="opinion"):
        bank.predict("opinon", TEXTS)
    with pytest.raises(IntarsiaError, match=r"write \[text\]"):
        bank.predict("opinion", "one text")
    with pytest.raises(IntarsiaError, match="single texts"):
        bank.predict("opinion", [("a", "b")])
    with pytest.raises(BankError, match="letters"):
        bank.learn("no/slash", opinions(), settings=QUICK)
    with pytest.raises(IntarsiaError, match="rouge"):
        bank.evaluate("opinion", opinions(20), metric="rouge")


def test_headers_are_json(encoder: Encoder, tmp_path: Path) -> None:
    from intarsia.cli.tables import tasks_dict

    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = bank.learn("opinion", opinions(), method=Bottleneck(4, layers=(1, 2)), settings=QUICK)
    known = json.loads(json.dumps(entry.to_dict()))
    assert known["method"]["layers"] == [1, 2] and known["head"]["pooling"] == "mean"
    assert json.loads(json.dumps(tasks_dict(bank)))["tasks"][0]["name"] == "opinion"
