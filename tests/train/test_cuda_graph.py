"""RecordedPasses of fixed shape compute what other passes compute. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU (TRITON_INTERPRET=1 interprets the kernels on a CPU, slowly)", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")

from intarsia.encoder.encoder import Encoder  # noqa: E402
from intarsia.encoder.noise import Noise  # noqa: E402
from intarsia.encoder.shape import Shape  # noqa: E402
from intarsia.encoder.site_view import SiteView  # noqa: E402
from intarsia.encoder.sites import FFN_OUTPUT  # noqa: E402
from intarsia.encoder.static_shape import DeviceNoise  # noqa: E402
from intarsia.methods import (  # noqa: E402
    IA3,
    Average,
    Bottleneck,
    DiffPruning,
    Full,
    Fuse,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Method,
    Pfeiffer,
    Prefix,
    Spec,
    Split,
    Stack,
    TopLayers,
)
from intarsia.methods import (  # noqa: E402
    METHODS as REGISTERED,
)
from intarsia.methods.method import Ending  # noqa: E402
from intarsia.tasks import load_data  # noqa: E402
from intarsia.train.cuda_graph import GraphStepper, can_record, shape_key  # noqa: E402
from intarsia.train.job import Job, Settings  # noqa: E402
from intarsia.train.loop import train_together  # noqa: E402
from intarsia.train.run import Run  # noqa: E402
from intarsia.train.step import predict, step_together  # noqa: E402
from tests.support.composed import Frozen  # noqa: E402
from tests.support.families import opinions, plain_model, save_tiny, tiny_tokenizer, tiny_with_words  # noqa: E402
from tests.support.small_methods import FORMS, SMALL  # noqa: E402
from tests.support.token_tasks import colours, riddles  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
pytestmark = pytest.mark.cuda


def job(number: int, method: Method, *, dropout: bool = False, pooling: str = "mean", **changes: object) -> Job:
    content = opinions(24, seed=number)
    for i, row in enumerate(content):
        if number % 3 == 2:
            row["label"] = (1.0 if row["label"] == "yes" else -1.0) + 0.1 * i  # type: ignore[assignment]
        elif number % 3 == 1:
            row["label"] = [row["label"], f"l{i % 3}"]  # type: ignore[assignment]
    options = {"learning_rate": 1e-3 * (1 + number), "batch_size": 4, "seed": number, "dropout": dropout, **changes}
    return Job(f"job{number}", load_data(content), method, pooling, Settings(**options))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Toy(Method):
    """Written by docs/add-a-method.md: a gain on each layer's feed-forward output, of which it uses two forms."""

    name: ClassVar[str] = "toy"

    def recordable(self, shape: Shape) -> bool:
        return True

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset((FFN_OUTPUT, layer) for layer in range(shape.layers))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {f"{layer}.{FFN_OUTPUT}.gain": Spec((shape.width,), "zeros") for layer in range(shape.layers)}

    def count(self, shape: Shape) -> int:
        return shape.layers * shape.width

    def output(self, view: SiteView, h: torch.Tensor) -> torch.Tensor:
        gains = view.tensors[f"{view.layer}.{view.site}.gain"]
        by_hand = gains.index_select(0, view.owners.owner_of_token).to(view.dtype)  # `tensors` are float32 in any pass
        return h * (1 + 0.5 * by_hand + 0.5 * view.each(f"{view.layer}.{view.site}.gain"))


ROUTED = [m for m in SMALL.values() if not m.changes_base and not m.cached]
METHODS = [
    Bottleneck(5, activation="relu"), Bottleneck(6, inner_norm="layer"), Bottleneck(4, depth=2), Toy(), *ROUTED,
    *(form for name, form in FORMS.items() if name != "prefix-offset"),  # its passes are not recorded
    Bottleneck(4, activation="gelu_exact", norm_before=True, norm_after="sum", learned_scaling="scalar", scaling=2.0),
    Bottleneck(4, activation="leaky_relu", sizes=(4, 3, 2), learned_scaling="channel"),
    Bottleneck(4, activation="mish", norms=False, base_norm_before=True, residual="sum", base_norm_after=False),
    IA3(sites=("query", "attention.dense.input", "ffn.up")),
]  # fmt: skip


def assert_close(run: Run, other: Run) -> None:
    for name, ours in run.tensors().items():
        theirs = other.tensors()[name]
        scale = max(1e-3, float(theirs.abs().max()))
        assert float((ours - theirs).abs().max()) <= 3e-3 * scale, name


@pytest.mark.interpreted
@pytest.mark.parametrize("number", [0, 1], ids=["label", "labels"])
def test_class_weights_count_in_recorded_steps(number: int) -> None:
    encoder = tiny_with_words().to(DEVICE)
    weighted, rows = job(number, Bottleneck(4), class_weights="balanced"), [0, 1, 2, 3]
    recorded = GraphStepper(weighted, encoder, 1)
    run, other = Run(weighted, encoder, slots_for=recorded.slots_for), Run(weighted, encoder)
    plain = Run(job(number, Bottleneck(4)), encoder)
    recorded.step([(run, rows)])
    expected = step_together([(other, rows)])
    ((_, loss),) = recorded.losses(wait=True)
    assert loss == pytest.approx(expected[0], rel=2e-3)
    assert_close(run, other)
    assert step_together([(plain, rows)])[0] != pytest.approx(expected[0], rel=1e-3)


@pytest.mark.interpreted
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_one_recorded_step_is_one_eager_step(method: Method) -> None:
    encoder = tiny_with_words().to(DEVICE)
    one, rows = job(0, method), [0, 1, 2, 3]
    recorded = GraphStepper(one, encoder, 1)
    run, other = Run(one, encoder, slots_for=recorded.slots_for), Run(one, encoder)
    recorded.step([(run, rows)])
    ((_, loss),) = recorded.losses(wait=True)
    assert loss == pytest.approx(step_together([(other, rows)])[0], rel=1e-4, abs=1e-5)
    assert_close(run, other)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["stack", "stack-paper", "fuse", "fuse-static", "stack-of-fuse", "child-of-a-stack"])
def test_recorded_steps_of_compositions_are_eager_steps(name: str) -> None:
    """Two runs over the same frozen inlays, which stay as they are; the third slot is empty."""
    encoder = tiny_with_words().to(DEVICE)
    frozen = Frozen(tiny_with_words())
    a, b = (frozen.add(task, Pfeiffer(3), seed) for seed, task in enumerate("ab"))
    lora = frozen.add("lora", LoRA(2), 2)
    method: Method = {
        "stack": Stack(a, Pfeiffer(4)),
        "stack-paper": Stack(a, Bottleneck(4, norms=False), lora, residual="paper"),
        "fuse": Fuse(a, b, Pfeiffer(2), penalty_weight=0.1),
        "fuse-static": Fuse(Stack(a, b), b, static=True),
        "stack-of-fuse": Stack(Fuse(a, b, static=True), Average(Pfeiffer(2), Pfeiffer(3)), lora),
        "child-of-a-stack": Stack(
            frozen.add("task", Stack(a, Bottleneck(2)), 6), LoRA(2), frozen.add("fused", Fuse(a, b, Pfeiffer(2)), 7)
        ),
    }[name]
    jobs = [dataclasses.replace(job(number, method), parents=frozen.parents) for number in (0, 1)]
    assert all(can_record(j, encoder) for j in jobs)
    before = {k: {n: t.clone() for n, t in found.tensors.items()} for k, found in frozen.parents.items()}
    recorded, rows = GraphStepper(jobs[0], encoder, 3), [0, 1, 2, 3]
    runs = [Run(j, encoder, slots_for=recorded.slots_for) for j in jobs]
    others = [Run(j, encoder) for j in jobs]
    recorded.step([(run, rows) for run in runs])
    losses = {run.job.name: loss for run, loss in recorded.losses(wait=True)}
    for run, other in zip(runs, others, strict=True):
        assert losses[run.job.name] == pytest.approx(step_together([(other, rows)])[0], rel=1e-4, abs=1e-5)
        assert_close(run, other)
    for digest, found in frozen.parents.items():
        assert all(torch.equal(tensor, before[digest][name]) for name, tensor in found.tensors.items())


def test_compositions_that_take_eager_steps() -> None:
    shape, a = tiny_with_words().shape, Pfeiffer(3)
    for method in (Split(a, a), Fuse(a, a, temperature=True), Stack(a, Prefix(2)), Stack(Full())):
        assert not method.recordable(shape)
    assert Stack(a, LoRA(2)).recordable(shape)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_three_kinds_of_tasks_together_learn_what_each_learns_alone(method: Method) -> None:
    encoder = tiny_with_words().to(DEVICE)
    jobs = [job(i, method) for i in range(3)]
    assert len({shape_key(j) for j in jobs}) == 1
    recorded = GraphStepper(jobs[0], encoder, 4)
    together = [Run(j, encoder, slots_for=recorded.slots_for) for j in jobs]
    alone = [Run(j, encoder) for j in jobs]
    batches = [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    for rows in batches:
        recorded.step([(run, rows) for run in together])
    found = list(recorded.losses(wait=True))
    expected = [step_together([(run, rows)])[0] for rows in batches for run in alone]
    assert [loss for _, loss in found] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    predictions = recorded.predict(together, "dev")
    for run, other, mine in zip(together, alone, predictions, strict=True):
        assert_close(run, other)
        assert run.state.step == 3 and run.state.tokens == other.state.tokens
        assert np.allclose(mine, predict(other, "dev"), atol=1e-3)


def test_a_prefix_beside_relative_positions() -> None:
    """MPNet's own keys have a distance, a prefix has none; and one that begins above the lowest layer."""
    encoder = tiny_mpnet().to(DEVICE)
    one = job(0, Prefix(3, layers=(1,)))
    recorded = GraphStepper(one, encoder, 2)
    run, alone = Run(one, encoder, slots_for=recorded.slots_for), Run(one, encoder)
    for rows in ([0, 1, 2, 3], [4, 5]):
        recorded.step([(run, rows)])
        expected = step_together([(alone, rows)])[0]
        assert list(recorded.losses(wait=True))[-1][1] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert torch.allclose(run.tensors()["now"], alone.tensors()["now"], atol=1e-4)
    assert np.allclose(recorded.predict([run], "dev")[0], predict(alone, "dev"), atol=1e-3)


def test_adapters_of_different_sizes_share_training_slots() -> None:
    encoder = tiny_with_words().to(DEVICE)
    jobs = [job(i, Bottleneck(size, std=0.1**i), batch_size=4) for i, size in enumerate((3, 8, 5))]
    assert len({shape_key(j) for j in jobs}) == 1 != len({shape_key(jobs[0]), shape_key(job(0, Bottleneck(65)))})
    recorded = GraphStepper(jobs[0], encoder, 3)
    assert recorded.training_slots.slots.width % 64 == 0  # for wide loads
    together = [Run(j, encoder, slots_for=recorded.slots_for) for j in jobs]
    alone = [Run(j, encoder) for j in jobs]
    for rows in ([0, 1, 2, 3], [4, 5, 6]):
        recorded.step([(run, rows) for run in together])
        for run in alone:
            step_together([(run, rows)])
    for run, other in zip(together, alone, strict=True):
        assert run.tensors()["now"].shape == other.tensors()["now"].shape
        assert torch.allclose(run.tensors()["now"], other.tensors()["now"], atol=1e-4)
        whole = recorded.training_slots.slots.buffer[run.slot]
        assert int((whole != 0).sum()) <= other.tensors()["now"].numel()  # the padding is still 0
        found, expected = run.result().tensors, other.result().tensors
        assert all(found[k].shape == expected[k].shape for k in expected)


PHASED = [
    LotteryTicket(entries=500, l1=0.1), LotteryTicket(entries=500, rounds=2),
    DiffPruning(entries=500, penalty_weight=1e-3), DiffPruning(entries=500, structured=True),
]  # fmt: skip


def tiny_mpnet() -> Encoder:
    return Encoder(plain_model("mpnet"), tiny_tokenizer(pad=1), name="tiny")


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("method", [Full(), TopLayers(1)], ids=str)
def test_fine_tuning_learns_what_it_learns_elsewhere(family: str, method: Method) -> None:
    """MPNet's relative positions too, which are trained by full fine-tuning alone."""
    encoder = (tiny_with_words() if family == "bert" else tiny_mpnet()).to(DEVICE)
    held = {name: weight.clone() for name, weight in encoder.weights.items()}
    jobs = [job(i, method) for i in range(2)]
    recorded = GraphStepper(jobs[0], encoder, 4)
    assert recorded.training_slots.slots.capacity == 1 and not recorded.accepts(
        jobs[1]
    )  # it has another number of labels
    run, alone = Run(jobs[0], encoder, slots_for=recorded.slots_for), Run(jobs[0], encoder)
    for rows in ([0, 1, 2, 3], [4, 5]):
        recorded.step([(run, rows)])
        expected = step_together([(alone, rows)])[0]
        assert list(recorded.losses(wait=True))[-1][1] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name, ours in run.tensors().items():
        theirs = alone.tensors()[name]
        assert float((ours - theirs).abs().max()) <= 3e-3 * max(1e-3, float(theirs.abs().max())), name
    assert np.allclose(recorded.predict([run], "dev")[0], predict(alone, "dev"), atol=1e-3)
    assert all(torch.equal(weight, held[name]) for name, weight in encoder.weights.items())


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("method", PHASED, ids=str)
def test_each_phase_learns_what_it_learns_elsewhere(
    family: str, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.kernels import gates as kernel
    from intarsia.methods import gates as plain

    def numbers(self: Noise, shape: torch.Size) -> torch.Tensor:
        return torch.full(tuple(shape), 0.4, device=DEVICE)

    def gated(theta: torch.Tensor, difference: torch.Tensor, alpha: torch.Tensor, *rest: Any) -> torch.Tensor:
        penalised, chance = alpha.clone(), plain.expected(alpha.detach())
        penalised.register_hook(lambda gradient: gradient + rest[-1] * chance * (1 - chance))
        return plain._Gated.apply(theta, difference, penalised, numbers(noise, alpha.shape)).to(theta.dtype)

    noise = Noise([0], torch.device("cpu"))
    monkeypatch.setattr(kernel, "gated", gated)  # the same numbers: gates are drawn in another way there
    monkeypatch.setattr(Noise, "uniform", numbers)
    monkeypatch.setattr(DeviceNoise, "uniform", numbers)
    encoder = (tiny_with_words() if family == "bert" else tiny_mpnet()).to(DEVICE)
    held = {name: weight.clone() for name, weight in encoder.weights.items()}
    recorded = GraphStepper(job(0, method), encoder, 4)
    run, alone = Run(job(0, method), encoder, slots_for=recorded.slots_for), Run(job(0, method), encoder)
    end = method.end_phase
    for phase in alone.phases:
        assert run.phase.name == phase.name and run.training_slots is recorded.training_slots
        for rows in ([0, 1, 2, 3], [4, 5]):
            recorded.step([(run, rows)])
            expected = step_together([(alone, rows)])[0]
            assert list(recorded.losses(wait=True))[-1][1] == pytest.approx(expected, rel=1e-3, abs=1e-4)
        for name, ours in run.tensors().items():
            ours, theirs = (read_ones(tensor, run) for tensor in (ours, alone.tensors()[name]))
            assert float((ours - theirs).abs().max()) <= 5e-3 * max(1e-3, float(theirs.abs().max())), name
        assert np.allclose(recorded.predict([run], "dev")[0], predict(alone, "dev"), atol=1e-3)
        if not run.last_phase:
            alone.next_phase()
            with monkeypatch.context() as patched:  # of entries that moved alike one or the other would be taken
                patched.setattr(type(method), "end_phase", lambda *args: as_it_was(end(*args[1:]), alone))
                run.next_phase()
    assert all(torch.equal(weight, held[name]) for name, weight in encoder.weights.items())
    other = Run(job(3, method), encoder, slots_for=recorded.slots_for)  # the next one begins at the first phase
    assert (
        other.phase.name != run.phase.name
        and other.training_slots is recorded.training_slots is not run.training_slots
        and not recorded.kept
    )


def read_ones(row: torch.Tensor, run: Run) -> torch.Tensor:
    """Without gates of what no pass reads: their penalty is left out, and their difference is 0."""
    if row.dim() == 1:  # what an earlier phase left
        return row
    sizes = [spec.size for spec in run.phase.specs.values()]
    parts = row[0].split([*sizes, row.shape[1] - sum(sizes)])
    unread = [name.startswith("gate.pooler") for name in run.phase.specs]
    return torch.cat([part for part, left_out in zip(parts, [*unread, False], strict=True) if not left_out])


def as_it_was(ending: Ending, other: Run) -> Ending:
    """With the entries that another run has found, nearly all of which are the same."""
    if not ending.kept:
        return ending
    same = np.intersect1d(ending.kept["index"].cpu(), other.kept["index"].cpu())
    assert len(same) > 0.9 * len(other.kept["index"])
    starts = ending.starts
    if "values" in starts:
        starts = {"values": other.own_leaves()["values"].detach().cpu()}
    return dataclasses.replace(ending, kept=dict(other.kept), starts=starts)


def test_a_run_resumes_in_its_second_phase() -> None:
    encoder = tiny_with_words().to(DEVICE)
    method = LotteryTicket(entries=100)
    recorded = GraphStepper(job(0, method), encoder, 4)
    run = Run(job(0, method), encoder, slots_for=recorded.slots_for)
    recorded.step([(run, [0, 1, 2, 3])])
    run.next_phase()
    recorded.step([(run, [4, 5])])
    stored = {name: tensor.clone() for name, tensor in run.tensors().items()}
    state = copy.deepcopy(run.state)
    recorded.step([(run, [6, 7])])
    other = GraphStepper(job(0, method), encoder, 4)
    again = Run(job(0, method), encoder, slots_for=other.slots_for)
    again.resume(state, stored)
    other.step([(again, [6, 7])])
    assert again.phase.name == "sparse-1" and again.state == run.state
    for name, ours in again.tensors().items():
        assert torch.allclose(ours, run.tensors()[name], atol=1e-6), name


@pytest.mark.parametrize("kind", ["span", "tags"])
@pytest.mark.parametrize("method", [Bottleneck(8), Full()], ids=str)
def test_heads_that_read_tokens(kind: str, method: Method) -> None:
    encoder = tiny_with_words().to(DEVICE)
    contents = [riddles(30, i) if kind == "span" else colours(30, i) for i in range(2)]
    options = [{"learning_rate": 1e-3 * (1 + i), "batch_size": 6, "seed": i, "max_length": 24} for i in range(2)]
    jobs = [
        Job(f"job{i}", load_data(content), method, settings=Settings(dropout=False, **option))  # type: ignore[arg-type]
        for i, (content, option) in enumerate(zip(contents, options, strict=True))
    ][: 1 if method.changes_base else 2]
    assert len({shape_key(j) for j in jobs}) == 1
    recorded = GraphStepper(jobs[0], encoder, 3)
    together = [Run(j, encoder, slots_for=recorded.slots_for) for j in jobs]
    alone = [Run(j, encoder) for j in jobs]
    batches = [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
    for rows in batches:
        recorded.step([(run, rows) for run in together])
    found = [loss for _, loss in recorded.losses(wait=True)]
    expected = [step_together([(run, rows)])[0] for rows in batches for run in alone]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for run, other, mine in zip(together, alone, recorded.predict(together, "dev"), strict=True):
        for name, ours in run.tensors().items():
            theirs = other.tensors()[name]
            assert float((ours - theirs).abs().max()) <= 3e-3 * max(1e-3, float(theirs.abs().max())), name
        for a, b in zip(mine, predict(other, "dev"), strict=True):
            assert a.shape == b.shape and np.allclose(a, b, atol=1e-3)


def test_long_texts() -> None:
    """Of more tokens than one block of the attention kernel holds, beside short ones."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 200
    encoder = Encoder(plain_model("bert", max_position_embeddings=200), tokenizer, name="tiny").to(DEVICE)
    content = opinions(12)
    for i, row in enumerate(content):
        row["text"] = " ".join([row["text"]] * (1 + 8 * (i % 3)))
    j = Job("long", load_data(content), Bottleneck(8), settings=Settings(batch_size=4, dropout=False, max_length=200))
    recorded = GraphStepper(j, encoder, 2)
    run, other = Run(j, encoder, slots_for=recorded.slots_for), Run(j, encoder)
    assert run.tokens["train"].longest > 128
    for rows in ([0, 1, 2, 3], [4, 5]):
        recorded.step([(run, rows)])
        expected = step_together([(other, rows)])[0]
        assert list(recorded.losses(wait=True))[-1][1] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.allclose(recorded.predict([run], "dev")[0], predict(other, "dev"), atol=1e-3)


@pytest.mark.parametrize("pooling", ["cls", "trained-pooler", "pooler"])
def test_every_pooling(pooling: str) -> None:
    encoder = tiny_with_words().to(DEVICE)
    j = job(0, LayerNorms(), pooling=pooling)
    recorded = GraphStepper(j, encoder, 2)
    run, alone = Run(j, encoder, slots_for=recorded.slots_for), Run(j, encoder)
    recorded.step([(run, [0, 1, 2])])
    expected = step_together([(alone, [0, 1, 2])])[0]
    assert next(iter(recorded.losses(wait=True)))[1] == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(run.tensors()["now"], alone.tensors()["now"], atol=1e-4)


def test_a_neighbour_changes_nothing_also_with_dropout() -> None:
    encoder = tiny_with_words().to(DEVICE)
    jobs = [job(i, Bottleneck(4), dropout=True) for i in range(3)]

    def after_two_steps(which: list[int]) -> torch.Tensor:
        recorded = GraphStepper(jobs[0], encoder, 3)
        runs = {i: Run(jobs[i], encoder, slots_for=recorded.slots_for) for i in which}
        for rows in ([0, 1, 2, 3], [5, 6, 7]):
            recorded.step([(run, rows) for run in runs.values()])
        return runs[0].tensors()["now"].clone()

    alone = after_two_steps([0])
    assert torch.allclose(alone, after_two_steps([1, 0, 2]), atol=1e-6)
    undropped = Run(job(0, Bottleneck(4)), encoder)
    for rows in ([0, 1, 2, 3], [5, 6, 7]):
        step_together([(undropped, rows)])
    assert not torch.allclose(alone, undropped.tensors()["now"], atol=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter computes with
def test_values_that_are_no_numbers_stay_where_they_are() -> None:
    encoder = tiny_with_words().to(DEVICE)
    jobs = [job(i, Bottleneck(4)) for i in range(2)]
    recorded = GraphStepper(jobs[0], encoder, 3)
    bad, good = (Run(j, encoder, slots_for=recorded.slots_for) for j in jobs)
    alone = Run(jobs[1], encoder)
    recorded.training_slots.slots.buffer[bad.slot] = math.nan
    recorded.training_slots.low_precision[bad.slot] = math.nan
    for _ in range(2):
        recorded.step([(bad, [0, 1, 2]), (good, [0, 1, 2])])
        step_together([(alone, [0, 1, 2])])
    losses = dict(recorded.losses(wait=True))
    assert math.isnan(losses[bad]) and math.isfinite(losses[good])
    assert torch.allclose(good.tensors()["now"], alone.tensors()["now"], atol=1e-4)
    bad.leave()  # the next job in its slot starts clean
    fresh, other = Run(jobs[0], encoder, slots_for=recorded.slots_for), Run(jobs[0], encoder)
    assert fresh.slot == bad.slot
    recorded.step([(fresh, [0, 1, 2])])
    step_together([(other, [0, 1, 2])])
    assert torch.allclose(fresh.tensors()["now"], other.tensors()["now"], atol=1e-4)


def test_a_step_too_large_for_one_pass_is_taken_in_several() -> None:
    encoder = tiny_with_words().to(DEVICE)
    jobs = [job(0, LayerNorms(), seed=s) for s in range(3)]
    recorded = GraphStepper(jobs[0], encoder, 3)
    recorded.max_tokens = 8
    runs, alone = [Run(j, encoder, slots_for=recorded.slots_for) for j in jobs], [Run(j, encoder) for j in jobs]
    recorded.step([(run, [0, 1, 2]) for run in runs])
    losses = dict(recorded.losses(wait=True))
    for run, other in zip(runs, alone, strict=True):
        assert losses[run] == pytest.approx(step_together([(other, [0, 1, 2])])[0], rel=1e-4)
        assert torch.allclose(run.tensors()["now"], other.tensors()["now"], atol=1e-4)


@pytest.mark.skipif(not CUDA, reason="bf16 needs a GPU")
@pytest.mark.parametrize("method", [*METHODS, *PHASED, *SMALL.values()], ids=str)
def test_every_method_trains_in_bf16(method: Method) -> None:
    encoder = tiny_with_words().to("cuda", torch.bfloat16)
    done: list[Any] = []
    train_together([job(0, method, dropout=True, epochs=2)], encoder, done=lambda _, result: done.append(result))
    assert done[0].state.best is not None and all(t.isfinite().all() for t in done[0].tensors.values())
    assert all(t.dtype == torch.float32 for name, t in done[0].tensors.items() if name != "method.index")


def test_a_slot_that_rests_is_left_alone() -> None:
    encoder = tiny_with_words().to(DEVICE)
    recorded = GraphStepper(job(0, LayerNorms()), encoder, 2)
    runs = [Run(job(0, LayerNorms(), seed=s), encoder, slots_for=recorded.slots_for) for s in range(2)]
    recorded.step([(run, [0, 1]) for run in runs])
    before = {k: v.clone() for k, v in runs[1].tensors().items()}
    recorded.step([(runs[0], [2, 3])])
    assert all(torch.equal(v, before[k]) for k, v in runs[1].tensors().items())


@pytest.mark.skipif(not CUDA, reason="takes long in the interpreter")
def test_a_sweep_of_three_tasks_on_a_gpu(tmp_path: Path) -> None:
    import intarsia
    from intarsia.train.grid import Grid

    tasks: dict[str, Any] = {f"t{i}": opinions(200, seed=i) for i in range(3)}
    for row in tasks["t2"]:
        row["label"] = 1.5 if row["label"] == "yes" else -1.0
    bank = intarsia.open(tmp_path / "bank", save_tiny(tmp_path / "model"), device="cuda")
    assert bank.encoder.dtype == torch.bfloat16
    grid = Grid(("houlsby-8", "houlsby-4", "bitfit", "full"), learning_rate=(3e-3,), epochs=(3, 6), seeds=2)
    found = bank.sweep(tasks, grid, score_all=True)
    for entry in found.values():
        points = entry.header.training["grid"]
        assert len(points) == 16 and all(point["test"] is not None for point in points)
        assert entry.header.metrics["dev"] == max(point["dev"] for point in points) > 0.8
    answers = bank.predict([("t0", "good"), ("t1", "bad"), ("t2", "good")])
    assert [a.label for a in answers[:2]] == ["yes", "no"] and (answers[2].score or 0) > 0


def test_what_cannot_be_recorded_is_known() -> None:
    encoder = tiny_with_words()
    assert can_record(job(0, Bottleneck(4)), encoder)
    assert not can_record(job(0, Bottleneck(4, inner_norm="batch")), encoder)
    assert not can_record(job(0, Bottleneck(4), max_length=513), encoder)
    assert can_record(job(0, Full()), encoder) and not can_record(job(0, Full(), pooling="pooler"), encoder)
    assert can_record(job(0, LotteryTicket()), encoder) and not can_record(job(0, Prefix(65)), encoder)
    assert not can_record(job(0, Prefix(4, offset=4), max_length=32), encoder)
    assert {type(m) for m in SMALL.values() if can_record(job(0, m), encoder)} == set(REGISTERED.values())

    class Silent(Toy):
        recordable = Method.recordable

    assert can_record(job(0, Toy()), encoder) and not can_record(job(0, Silent()), encoder)  # who says nothing
    for family in ("deberta-v2", "modernbert"):
        assert not can_record(job(0, Bottleneck(4)), Encoder(plain_model(family), tiny_tokenizer(), name="tiny"))
