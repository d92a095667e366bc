"""Kinds whose head reads tokens: they are learned, share passes with others, and go on after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import BitFit, Bottleneck, Features, Full, LoRA, LotteryTicket, Method, Prefix
from intarsia.tasks import load_data
from intarsia.train.cuda_graph import can_record
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train, train_together
from intarsia.train.progress import Progress
from intarsia.train.run import Run, Trained
from intarsia.train.step import predict
from tests.support.families import opinions, tiny_with_words
from tests.support.token_tasks import colours, riddles, topics


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


def words_job(number: int = 0, method: Method | None = None, rows: int = 40, **changes: object) -> Job:
    options = {
        "learning_rate": 3e-3, "epochs": 2, "batch_size": 6, "seed": number, "dropout": False, "max_length": 8,
        **changes,
    }  # fmt: skip
    data = load_data(topics(rows, number), kind="words")  # several rows a text
    return Job(f"words{number}", data, method or Bottleneck(8), settings=Settings(**options))  # type: ignore[arg-type]


def label_job(number: int, method: Method) -> Job:
    settings = Settings(learning_rate=1e-3, epochs=2, batch_size=5, seed=number, dropout=False)
    return Job(f"label{number}", load_data(opinions(24, seed=number)), method, settings=settings)


def furthest(a: object, b: object) -> float:
    assert isinstance(a, Trained) and isinstance(b, Trained) and a.tensors.keys() == b.tensors.keys()
    return max(float((a.tensors[k] - b.tensors[k]).abs().max()) for k in a.tensors)


def test_tags_are_learned() -> None:
    job = tags_job(rows=200, epochs=20, learning_rate=1e-2, batch_size=16)
    found = train(job, tiny_with_words())
    assert found.metric == "f1-entities" and found.learned.head.pooling == "none"
    assert found.state.best is not None and found.state.best > 0.9


def test_spans_are_learned() -> None:
    job = span_job(rows=200, epochs=20, learning_rate=1e-2, batch_size=16, max_length=24)
    found = train(job, tiny_with_words())
    assert found.metric == "f1" and found.learned.head.outputs == 2
    assert found.state.best is not None and found.state.best > 0.8
    tuned = found.state.history[found.state.best_epoch - 1]["threshold"]
    assert found.learned.task_kind.to_dict() == {"no_answer": True, "threshold": tuned}


def test_words_are_learned() -> None:
    encoder = tiny_with_words()
    job = words_job(method=Full(), rows=200, epochs=6, batch_size=8, max_length=24)
    run = Run(job, encoder)
    untrained = run.score("dev", predict(run, "dev"))
    found = train(job, encoder)
    assert found.metric == "likelihood" and untrained < 0.02
    assert found.state.best is not None and found.state.best > 0.15  # words alone, without what is around them: 1/16


def test_what_is_hidden_is_the_jobs_own_and_its_steps() -> None:
    encoder = tiny_with_words()
    one, other = Run(words_job(1), encoder), Run(words_job(1, LoRA(3)), encoder)
    rows = [3, 0, 5]
    assert [s.ids for s in one.drawn(rows)] == [s.ids for s in other.drawn(rows)]  # by the seed, whatever the method
    first = one.drawn(rows)
    one.state.step += 1
    assert [s.ids for s in one.drawn(rows)] != [s.ids for s in first]
    for run in (one, other):
        dev = run.tokens["dev"].segments
        assert [s.ids for s in dev] == [s.ids for s in one.tokens["dev"].segments]


@pytest.mark.parametrize(
    "method", [Bottleneck(8), Full(), LotteryTicket(entries=50)], ids=["houlsby", "full", "lt-sft"]
)
def test_hidden_words_leave_the_base_alone(method: Method) -> None:
    encoder = tiny_with_words()
    trained = train(words_job(method=method, epochs=1), encoder)  # compares the base's fingerprint at its end
    assert not any(weight.requires_grad or weight.grad is not None for weight in encoder.weights.values())
    assert sum(v.numel() for k, v in trained.tensors.items() if k.startswith("head.")) == 32 * 32 + 3 * 32 + 120
    words = trained.tensors.get("method.base.embeddings.word_embeddings.weight")
    if words is not None:  # both ends of the fine-tuned model have them
        assert not torch.equal(words, encoder.weights[encoder.shape.words.name])


def test_hidden_words_say_what_cannot_be() -> None:
    encoder = tiny_with_words()
    with pytest.raises(IntarsiaError, match=r"new words are masked at each step\. Leave trunk_dropout on"):
        train(words_job(trunk_dropout=False), encoder)
    with pytest.raises(IntarsiaError, match=r"lower is better.*Use likelihood"):
        train(words_job(metric="perplexity"), encoder)
    with pytest.raises(IntarsiaError, match="Expected one of likelihood, perplexity, accuracy"):
        train(words_job(metric="f1"), encoder)
    with pytest.raises(IntarsiaError, match="leaves no word"):
        train(words_job(max_length=2), encoder)
    encoder.tokenizer.mask_token = None
    with pytest.raises(IntarsiaError, match=r"tiny has no mask token.*Choose an encoder"):
        train(words_job(), encoder)


def jobs() -> list[Job]:
    return [
        tags_job(0), label_job(1, Bottleneck(8)), tags_job(2, LoRA(3)), label_job(3, Prefix(3)), tags_job(4, Full()),
        span_job(5), span_job(6, LoRA(3)), span_job(7, Full()), words_job(8), words_job(9, LoRA(3)),
        words_job(10, BitFit()), words_job(11, Full()),
    ]  # fmt: skip


def test_jobs_of_all_kinds_end_where_each_would_have_ended_alone() -> None:
    encoder = exact()
    found: dict[str, object] = {}
    train_together(jobs(), encoder, together=8, done=lambda j, result: found.__setitem__(j.name, result))
    for job in jobs():
        assert furthest(found[job.name], train(job, encoder)) <= 1e-9


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    encoder = exact()

    class Killed(Exception):
        pass

    def kill(progress: Progress) -> None:
        if progress.step == 8:
            raise Killed

    for job in (tags_job(), span_job(), words_job(), words_job(1, LotteryTicket(entries=50))):
        file = tmp_path / job.name / "state.safetensors"
        file.parent.mkdir()
        with pytest.raises(Killed):
            train(job, encoder, state_file=file, watch=kill, save_every=0.0)
        assert furthest(train(job, encoder, state_file=file), train(job, encoder)) == 0.0


def test_which_of_them_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.train.cuda_graph.available", lambda: True)
    encoder = tiny_with_words()
    assert all(can_record(job, encoder) for job in (label_job(0, Bottleneck(8)), tags_job(), span_job()))
    assert not can_record(words_job(), encoder)


def test_methods_that_see_one_vector_a_text_say_so() -> None:
    with pytest.raises(IntarsiaError, match="one vector per text"):
        train(tags_job(method=Features()), tiny_with_words())
    with pytest.raises(IntarsiaError, match="one vector per text"):
        train(words_job(method=Features()), tiny_with_words())
