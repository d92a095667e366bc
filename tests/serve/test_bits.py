"""On a CPU a row has the same bits alone and in any pass: for every family, with one thread and with two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from intarsia.encoder import pass_threads
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import IA3, BitFit, Bottleneck, DoRA, LoRA, Method, Prefix
from intarsia.serve.predictor import PassRow, Predictor
from intarsia.serve.served import Served
from intarsia.tasks.learned import Interface, Learned
from intarsia.tasks.task_kind import TaskKind
from tests.support.compiled_for import compiled_for
from tests.support.families import COMPILED, FAMILY_NAMES, tiny, tiny_compiled

METHODS: tuple[Method, ...] = (
    Bottleneck(5),
    Bottleneck(1),
    LoRA(1),
    Bottleneck(3, activation="swish"),
    LoRA(2),
    DoRA(2),
    Prefix(2),
    Prefix(35, layers=(1,), offset=1),
    BitFit(),
    IA3(sites=("key", "attention.dense.input", "ffn.up")),
    Bottleneck(3, activation="gelu_exact", norm_before=True, norm_after="sum", learned_scaling="channel", scaling=2.0),
    Bottleneck(
        3,
        activation="leaky_relu",
        norm_after="change",
        base_norm_before=True,
        residual="sum",
        base_norm_after=False,
        norms=False,
    ),
)


@pytest.fixture(params=["one thread", "two threads", "two threads in larger passes", "two threads in all operations"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Tiny passes run on one thread, unless the limits say otherwise: alone and mixed, a row may meet both."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "one thread" else 2)
    if request.param == "two threads in larger passes":  # a row alone is below these limits
        monkeypatch.setattr(pass_threads, "ELEMENTS", 2 * 40 * 32)
        monkeypatch.setattr(pass_threads, "LARGE", 2 * 40 * 32 * 32)
    elif request.param == "two threads in all operations":
        monkeypatch.setattr(pass_threads, "ELEMENTS", 1)
        monkeypatch.setattr(pass_threads, "LARGE", 1)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def encoder(request: pytest.FixtureRequest) -> Iterator[Encoder]:
    """A tiny base of a family, whose passes may run in the compiled function for a processor."""
    family, _, processor = request.param.partition(" compiled for ")
    if not processor:
        yield tiny(family)
    else:
        with compiled_for(processor):
            yield tiny_compiled(family)


@pytest.mark.parametrize(
    "encoder",
    [*FAMILY_NAMES, *(f"{family} compiled for this" for family in COMPILED), "bert compiled for avx2"],
    indirect=True,
)
def test_a_row_has_the_same_bits_alone_and_in_any_pass(encoder: Encoder, threads: str) -> None:
    kind, draw = TaskKind("labels", ("a", "b", "c")), np.random.default_rng(0)
    tasks: dict[str, Served] = {}
    for seed, method in enumerate(METHODS):
        try:
            method.check(encoder.shape)
        except IntarsiaError:
            continue  # not for this family
        head = kind.head("mean")
        specs = {f"method.{k}": v for k, v in method.tensors(encoder.shape).items()}
        specs |= {f"head.{k}": v for k, v in head.tensors(encoder.shape).items()}
        torch.manual_seed(seed)
        tensors = {k: v + 0.1 * torch.randn(v.shape) for k, v in start(specs, encoder, seed).items()}
        learned = Learned(method, head, kind, tensors)
        tasks[str(seed)] = Served(str(seed), Interface(kind), lambda learned=learned: learned)  # type: ignore[misc]
    predictor = Predictor(encoder)
    held = {key: predictor.hold(task) for key, task in tasks.items()}
    keys = [*tasks, None]
    longest = min(40, encoder.max_length)
    rows = []
    for i in range(40):
        ids = draw.integers(5, 40, int(draw.integers(1, longest))).tolist()
        rows.append(PassRow(keys[i % len(keys)], Segment(ids, [0] * len(ids)), embed=i % len(keys) == len(tasks)))
    passes: dict[object, list[PassRow]] = {}
    for row in rows:
        method = held[row.key].learned.method if row.key is not None else None
        passes.setdefault((predictor.eager_key(method), predictor.length_key(row.segment)), []).append(row)
    for members in passes.values():
        own = {key: held[key] for key in {row.key for row in members} if key is not None}
        mixed = predictor.start(members, own)()
        for row, output in zip(members, mixed, strict=True):
            (alone,) = predictor.start([row], {row.key: held[row.key]} if row.key else {})()
            assert np.array_equal(alone, output), (row.key, len(row.segment.ids))
