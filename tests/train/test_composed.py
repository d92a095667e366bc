"""Training of compositions: only what trains changes, alone and beside others, before and after a kill."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.methods import Average, Bottleneck, Fuse, LoRA, LotteryTicket, Method, Pfeiffer, Prefix, Stack
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks import TaskData, load_data
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.learned import Interface
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train
from tests.support.composed import Frozen
from tests.support.families import opinions, tiny_with_words

QUICK = Settings(learning_rate=5e-3, epochs=1, batch_size=16)


@cache
def encoder() -> Encoder:
    return tiny_with_words()


@cache
def data() -> TaskData:
    return load_data(opinions(40))


@cache
def frozen() -> Frozen:
    return Frozen(encoder())


def compositions() -> dict[str, Method]:
    f = frozen()
    a, b = f.add("a", Pfeiffer(3), 1), f.add("b", Pfeiffer(3), 2)
    houlsby, lora = f.add("houlsby", Bottleneck(3), 3), f.add("lora", LoRA(2), 4)
    return {
        "stack": Stack(a, Pfeiffer(4)),
        "stack-paper": Stack(a, Pfeiffer(4), residual="paper"),
        "stack-mixed": Stack(houlsby, lora, Prefix(2), LoRA(2), Bottleneck(2)),
        "fuse": Fuse(a, b, houlsby, Pfeiffer(2), dropout=0.1, temperature=True),
        "fuse-static": Fuse(Stack(a, b), b, static=True),
        "average": Average(a, lora, Pfeiffer(2), weights=(0.5, 0.25, 0.25)),
        "stack-of-fuse": Stack(Fuse(a, b, static=True), Average(Pfeiffer(2), Pfeiffer(3))),
        "sparse": Stack(f.add("language", LotteryTicket(entries=50), 5), LotteryTicket(entries=60)),
        "sparse-below": Stack(f.add("language", LotteryTicket(entries=50), 5), Pfeiffer(4)),
        "child-of-a-stack": Stack(f.add("task", Stack(a, Pfeiffer(2)), 6), LoRA(2)),
    }


NAMES = (
    "stack stack-paper stack-mixed fuse fuse-static average stack-of-fuse sparse sparse-below child-of-a-stack"
).split()


def job(name: str, method: Method, **changes: object) -> Job:
    settings = QUICK.changed(**changes)
    return Job(name, data(), method, settings=settings, parents=frozen().parents)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_trains_only_its_own_tensors_and_is_served_as_trained(name: str) -> None:
    method = compositions()[name]
    before = {d: {n: t.clone() for n, t in inlay.tensors.items()} for d, inlay in frozen().parents.items()}
    trained = train(job(name, method), encoder())
    for digest, tensors in before.items():
        assert all(torch.equal(tensor, frozen().parents[digest].tensors[n]) for n, tensor in tensors.items())
    encoder().check_frozen()
    shape = encoder().shape
    own = {n.removeprefix("method.") for n in trained.tensors if n.startswith("method.")}
    assert own == method.stored(shape).keys()
    trained.learned.check(shape)
    rows = encoder().tokenize([e.text for e in data().dev])
    task = Served(name, Interface(trained.learned.task_kind), lambda: trained.learned)
    answers = np.stack(Predictor(encoder()).predict([(task, row) for row in rows]))
    metric = trained.learned.task_kind.measure("accuracy", data().dev, Inputs(rows), list(answers), 0)
    assert metric.value == trained.state.best
