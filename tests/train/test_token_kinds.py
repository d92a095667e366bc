"""Kinds whose head reads every token: they are learned, share passes with others, and go on after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import opinions, tiny_with_words
from tagged import colours, riddles

from intarsia.encoder.load import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck, Features, Full, LoRA, Method, Prefix
from intarsia.tasks import load_data
from intarsia.train.job import Job, Settings
from intarsia.train.loop import Progress, train, train_together
from intarsia.train.recorded import can_record
from intarsia.train.run import Trained


def exact() -> Encoder:
    return tiny_with_words().to(dtype=torch.float64)


def tags_job(number: int = 0, method: Method | None = None, rows: int = 40, **changes: object) -> Job:
    options = {"learning_rate": 3e-3, "epochs": 2, "batch_size": 6, "seed": number, "dropout": False, **changes}
    data = load_data(colours(rows, number))
    return Job(f"tags{number}", data, method or Bottleneck(8), settings=Settings(**options))  # type: ignore[arg-type]


def span_job(number: int = 0, method: Method | None = None, rows: int = 40, **changes: object) -> Job:
    options = {
        "learning_rate": 3e-3, "epochs": 2, "batch_size": 6, "seed": number, "dropout": False, "max_length": 14,
        **changes,
    }  # fmt: skip
    data = load_data(riddles(rows, number, none=True))
    return Job(f"span{number}", data, method or Bottleneck(8), settings=Settings(**options))  # type: ignore[arg-type]


def label_job(number: int, method: Method) -> Job:
    settings = Settings(learning_rate=1e-3, epochs=2, batch_size=5, seed=number, dropout=False)
    return Job(f"label{number}", load_data(opinions(24, seed=number)), method, settings=settings)


def furthest(a: object, b: object) -> float:
    assert isinstance(a, Trained) and isinstance(b, Trained) and a.tensors.keys() == b.tensors.keys()
    return max(float((a.tensors[k] - b.tensors[k]).abs().max()) for k in a.tensors)


def test_tags_are_learned() -> None:
    job = tags_job(rows=200, epochs=20, learning_rate=1e-2, batch_size=16)
    found = train(job, tiny_with_words())
    assert found.metric == "f1-entities" and found.head.pooling == "none"
    assert found.state.best is not None and found.state.best > 0.9


def test_spans_are_learned() -> None:
    job = span_job(rows=200, epochs=20, learning_rate=1e-2, batch_size=16, max_length=24)
    found = train(job, tiny_with_words())
    assert found.metric == "f1" and found.head.outputs == 2
    assert found.state.best is not None and found.state.best > 0.8
    tuned = found.state.history[found.state.best_epoch - 1]["threshold"]
    assert found.answers.to_dict() == {"no_answer": True, "threshold": tuned}


def jobs() -> list[Job]:
    return [
        tags_job(0), label_job(1, Bottleneck(8)), tags_job(2, LoRA(3)), label_job(3, Prefix(3)), tags_job(4, Full()),
        span_job(5), span_job(6, LoRA(3)), span_job(7, Full()),
    ]  # fmt: skip


def test_jobs_of_all_kinds_end_where_each_would_have_ended_alone() -> None:
    encoder = exact()
    found: dict[str, object] = {}
    train_together(jobs(), encoder, together=6, done=lambda j, result: found.__setitem__(j.name, result))
    for job in jobs():
        assert furthest(found[job.name], train(job, encoder)) <= 1e-9


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    encoder = exact()

    class Killed(Exception):
        pass

    def kill(progress: Progress) -> None:
        if progress.step == 8:
            raise Killed

    for job in (tags_job(), span_job()):
        file = tmp_path / job.name / "state.safetensors"
        file.parent.mkdir()
        with pytest.raises(Killed):
            train(job, encoder, state_file=file, watch=kill, save_every=0.0)
        assert furthest(train(job, encoder, state_file=file), train(job, encoder)) == 0.0


def test_such_jobs_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.train.recorded.available", lambda: True)
    encoder = tiny_with_words()
    assert can_record(label_job(0, Bottleneck(8)), encoder) and not can_record(tags_job(), encoder)
    assert not can_record(span_job(), encoder)


def test_methods_that_see_one_vector_a_text_say_so() -> None:
    with pytest.raises(IntarsiaError, match="one vector a text"):
        train(tags_job(method=Features()), tiny_with_words())
