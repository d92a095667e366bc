"""Training of compositions: only what trains changes, alone and beside others, before and after a kill."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import Average, Bottleneck, Fuse, LoRA, LotteryTicket, Method, Pfeiffer, Prefix, Stack
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks import TaskData, load_data
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.learned import Interface
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train, train_together
from intarsia.train.run import Trained
from intarsia.train.trunk import TrunkCache
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


def test_jobs_over_different_parents_share_passes_and_learn_what_they_learn_alone() -> None:
    f = frozen()
    a, b = f.add("a", Pfeiffer(3), 1), f.add("b", Pfeiffer(3), 2)
    quiet = {"dropout": False}
    jobs = [job(f"over {p.task} {seed}", Stack(p, Pfeiffer(4)), seed=seed, **quiet) for p in (a, b) for seed in (0, 1)]
    jobs += [job("fusion", Fuse(a, b), **quiet), job("plain", Pfeiffer(4), **quiet)]
    together: dict[str, Trained | IntarsiaError] = {}
    train_together(jobs, encoder(), together=len(jobs), done=lambda j, r: together.update({j.name: r}))
    for each in jobs:
        alone, found = train(each, encoder()), together[each.name]
        assert isinstance(found, Trained)
        for name, tensor in alone.tensors.items():
            assert float((found.tensors[name] - tensor).abs().max()) < 2e-5, (each.name, name)


def test_stacks_over_one_parent_share_what_it_computes_below_them(tmp_path: Path) -> None:
    f = frozen()
    language = f.add("language everywhere", Bottleneck(3, norms=False), 7)
    other = f.add("another language", Bottleneck(3, norms=False), 8)
    plain = {"dropout": False, "trunk_dropout": False}
    top = Pfeiffer(4, layers=(2,))
    jobs = [job(f"{p.task} {s}", Stack(p, top), seed=s, **plain) for p in (language, other) for s in (0, 1)]
    jobs.append(job("no language", top, **plain))
    cache, computed = TrunkCache(encoder()), 0
    below = encoder().states_below

    def counted(batch: object, layer: int, groups: object = ()) -> torch.Tensor:
        nonlocal computed
        computed += batch.tokens  # type: ignore[attr-defined]
        return below(batch, layer, groups)  # type: ignore[arg-type]

    shared: dict[str, Trained | IntarsiaError] = {}
    encoder().states_below = counted  # type: ignore[method-assign]
    try:
        train_together(jobs, encoder(), together=5, done=lambda j, r: shared.update({j.name: r}), trunk=cache)
    finally:
        del encoder().states_below  # type: ignore[method-assign]
    tokens = sum(len(row.ids) for row in encoder().tokenize([e.text for e in [*data().train, *data().dev]]))
    assert computed == 3 * tokens  # once for each language, and once for the plain base
    for each in jobs:
        whole = train(
            Job(each.name, data(), each.method, settings=each.settings.changed(trunk_dropout=True), parents=f.parents),
            encoder(),
        )
        found = shared[each.name]
        assert isinstance(found, Trained)
        for name, tensor in whole.tensors.items():
            assert float((found.tensors[name] - tensor).abs().max()) < 2e-5, (each.name, name)


def test_a_killed_job_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    f = frozen()
    method = Fuse(
        f.add("a", Pfeiffer(3), 1), Stack(f.add("b", Pfeiffer(3), 2), Pfeiffer(2)), temperature=True, dropout=0.1
    )
    each = job("killed", method, epochs=2)
    whole = train(each, encoder())
    steps = 0

    def kill(_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(each, encoder(), state_file=tmp_path / "state.safetensors", watch=kill, save_every=0)
    resumed = train(each, encoder(), state_file=tmp_path / "state.safetensors")
    assert all(torch.equal(tensor, resumed.tensors[name]) for name, tensor in whole.tensors.items())


def test_a_fusion_keeps_its_value_matrices_near_the_identity_and_cools_down() -> None:
    f = frozen()
    a, b = f.add("a", Pfeiffer(3), 1), f.add("b", Pfeiffer(3), 2)
    far = {}
    for weight in (0.0, 10.0):
        trained = train(job("fusion", Fuse(a, b, penalty_weight=weight, temperature=True), epochs=2), encoder())
        values = [t for name, t in trained.tensors.items() if name.endswith("value.weight")]
        far[weight] = sum(float((value - torch.eye(len(value))).square().sum()) for value in values)
        cold = [float(t) for name, t in trained.tensors.items() if name.endswith("temperature")]
        assert cold == pytest.approx([50 - 0.05 * trained.state.best_epoch * trained.state.step / 2] * 3)
    assert far[10.0] < 0.2 * far[0.0]
    single = Settings.for_method(Fuse(a, b))
    assert (single.learning_rate, single.epochs) == (5e-5, 10)


def test_a_job_needs_all_its_parents() -> None:
    part = frozen().add("a", Pfeiffer(3), 1)
    with pytest.raises(IntarsiaError, match="which was not given"):
        train(Job("orphan", data(), Stack(part, Pfeiffer(2)), settings=QUICK), encoder())
