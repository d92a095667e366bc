"""Sparse differences: the right entries, exactly as many as asked for, and the base bit for bit everywhere else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import pack
from intarsia.encoder.shape import WeightShape
from intarsia.methods import DiffPruning, LotteryTicket, Method
from intarsia.methods.gates import gated, opened
from intarsia.methods.sparse import added, entries_of, largest, spans, split
from intarsia.tasks import load_data
from intarsia.train.job import Job, Settings
from intarsia.train.loop import train
from intarsia.train.order import epoch_batches
from intarsia.train.run import Run, Trained
from intarsia.train.step import predict, step_together
from tests.support.families import opinions, tiny, tiny_with_words
from tests.support.segments import segments

CPU = torch.device("cpu")


def parameters(*shapes: tuple[int, ...]) -> list[WeightShape]:
    return [WeightShape(f"p{i}", shape, (), False, False) for i, shape in enumerate(shapes)]


# ---- choosing and applying entries

few = st.sampled_from([0.0, 0.0, 1e-45, 0.25, 0.5, 0.5, 1.0, 3e38, float("inf")])
any_magnitude = st.floats(0, allow_nan=False, width=32, allow_subnormal=False)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.lists(few | any_magnitude, min_size=1, max_size=12), min_size=1, max_size=5), data=st.data())
def test_the_largest_are_those_of_a_sort_over_all_entries(values: list[list[float]], data: Any) -> None:
    known = parameters(*((len(v),) for v in values))
    tensors = {w.name: torch.tensor(v) for w, v in zip(known, values, strict=True)}
    flat = [x for v in values for x in v]
    count = data.draw(st.integers(0, len(flat)))
    expected = sorted(sorted(range(len(flat)), key=lambda i: (-flat[i], i))[:count])  # of equal ones the first
    assert largest(known, lambda w: tensors[w.name], count).tolist() == expected


def test_the_largest_of_matrices_are_numbered_row_by_row() -> None:
    known = parameters((2, 3), (4,), (1,))
    tensors = {
        "p0": torch.tensor([[0.0, 5.0, 1.0], [2.0, 0.0, 9.0]]),
        "p1": torch.tensor([0.0, 4.0, 0.0, 0.5]),
        "p2": torch.tensor([7.0]),
    }
    assert [at for _, at in spans(known)] == [0, 6, 10]
    assert largest(known, lambda w: tensors[w.name], 4).tolist() == [1, 5, 7, 10]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data())
def test_a_difference_is_added_where_it_belongs_and_nowhere_else(sizes: list[int], data: Any) -> None:
    known = parameters(*((n, 2) for n in sizes))
    total = 2 * sum(sizes)
    chosen = data.draw(st.lists(st.integers(0, total - 1), unique=True, max_size=total))
    index = torch.tensor(sorted(chosen), dtype=torch.long)
    values = torch.arange(1.0, len(chosen) + 1, requires_grad=True)
    base = {w.name: torch.randn(w.shape, generator=torch.Generator().manual_seed(i)) for i, w in enumerate(known)}
    before = {name: tensor.clone() for name, tensor in base.items()}
    found = added(known, index, values, base)
    flat = torch.cat([base[w.name].reshape(-1) for w in known])
    flat = flat.index_add(0, index, values.detach())
    assert torch.equal(torch.cat([found.get(w.name, base[w.name]).reshape(-1) for w in known]), flat)
    assert found.keys() == {w.name for w, _, _ in split(known, index)}
    assert all(torch.equal(base[name], before[name]) for name in base)
    if chosen:
        sum((t * t).sum() for t in found.values()).backward()  # type: ignore[union-attr]
        assert torch.equal(values.grad, 2 * flat[index])  # type: ignore[arg-type]


def test_differences_add() -> None:
    """Task and language, in either order; taking one away leaves the other, and the base was never written to."""
    known = parameters((6, 5), (7,), (3, 3))
    draw = torch.Generator().manual_seed(0)
    base = {w.name: torch.randn(w.shape, generator=draw, dtype=torch.float64) for w in known}
    before = {name: tensor.clone() for name, tensor in base.items()}
    one, two = (torch.randperm(46, generator=draw)[:n].sort()[0] for n in (20, 15))
    a, b = (torch.randn(n, generator=draw, dtype=torch.float64) for n in (20, 15))
    first = added(known, two, b, {**base, **added(known, one, a, base)})
    second = added(known, one, a, {**base, **added(known, two, b, base)})
    dense = torch.zeros(46, dtype=torch.float64).index_add(0, one, a).index_add(0, two, b)
    for weight, at in spans(known):
        expected = base[weight.name] + dense[at : at + weight.size].view(weight.shape)
        for both in (first, second):
            assert torch.allclose(both.get(weight.name, base[weight.name]), expected, atol=1e-15)
    assert all(torch.equal(base[name], before[name]) for name in base)


@pytest.mark.parametrize(
    ("share", "entries", "count"), [(0.005, None, 5), (1e-9, None, 1), (1.0, None, 900), (0.5, 7, 7), (0.5, 5000, 900)]
)
def test_shares_are_of_all_parameters_and_no_more_than_there_are(share: float, entries: int | None, count: int) -> None:
    assert entries_of(share, entries, 1000, 900) == count


@pytest.mark.parametrize("which", ["all", "bias", "weight", "LayerNorm", "embeddings"])
@pytest.mark.parametrize("method", [LotteryTicket(norms=True), DiffPruning()], ids=lambda m: m.name)
def test_an_entry_has_the_gradient_it_has_in_full_fine_tuning(method: Any, which: str) -> None:
    """Whatever else is touched: also where only the biases, or only the matrices, of linear layers are."""
    encoder = tiny("bert")
    shape, known = encoder.shape, method.trained(encoder.shape)
    index = torch.cat([torch.arange(at, at + w.size) for w, at in spans(known) if which in ("all",) or which in w.name])
    batch = pack(segments([5, 8, 3], pairs=False))
    whole = {w.name: encoder.weights[w.name].detach().clone().requires_grad_() for w in known}
    encoder.forward(batch, weights=whole).sin().sum().backward()
    dense = torch.cat([(torch.zeros_like(t) if t.grad is None else t.grad).reshape(-1) for t in whole.values()])
    values = torch.zeros(len(index), requires_grad=True)
    last = method.phases(shape)[-1].name
    weights = method.weights(last, shape, {"values": values}, {"index": index}, encoder.weights)
    encoder.forward(batch, weights=weights).sin().sum().backward()
    assert values.grad is not None and values.grad.any()
    assert torch.allclose(values.grad, dense[index], atol=1e-5 * float(dense.abs().max()))


# ---- training them


def job(method: Method, **changes: Any) -> Job:
    options = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 8, **changes}
    return Job("opinion", load_data(opinions(40)), method, settings=Settings(**options))


@cache
def base() -> Encoder:
    return tiny_with_words()


def laid_out(method: Any, encoder: Encoder, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The trained parameters laid end to end; with a difference, if given, applied."""
    if tensors is None:
        return torch.cat([encoder.weights[w.name].reshape(-1) for w in method.trained(encoder.shape)])
    own = {k.removeprefix("method."): v for k, v in tensors.items() if k.startswith("method.")}
    last = method.phases(encoder.shape)[-1].name
    weights = {**encoder.weights, **method.weights(last, encoder.shape, own, own, encoder.weights)}
    return torch.cat([weights[w.name].detach().reshape(-1) for w in method.trained(encoder.shape)])


def phase_by_hand(run: Run) -> dict[str, Tensor]:
    """Run a phase as the loop does; what the method's tensors then are."""
    lengths, s = [len(x.ids) for x in run.tokens["train"].segments], run.job.settings
    while not run.phase_done:
        for rows in epoch_batches(lengths, s.batch_size, s.seed, len(run.state.history)):
            step_together([(run, rows)])[0]
        run.end_epoch(len(run.state.history), 0.0, predict(run, "dev"))
    return {k.removeprefix("method."): v for k, v in run.slots.get(0).items() if k.startswith("method.")}


def moved_most(method: Any, dense: dict[str, Tensor], encoder: Encoder, count: int, barred: Tensor) -> Tensor:
    distance = torch.cat(
        [(dense[f"base.{w.name}"] - encoder.weights[w.name]).abs().reshape(-1) for w in method.trained(encoder.shape)]
    )
    distance[barred] = -1.0
    return distance.sort(descending=True, stable=True)[1][:count].sort()[0]


def check_exact(method: Any, trained: Trained, encoder: Encoder) -> None:
    count = method.count(encoder.shape)
    index, values = trained.tensors["method.index"], trained.tensors["method.values"]
    assert index.shape == values.shape == (count,)
    assert index.dtype == torch.long and torch.equal(index, index.unique())  # ascending, none twice
    before, after = laid_out(method, encoder), laid_out(method, encoder, trained.tensors)
    rest = torch.ones(len(before), dtype=torch.bool)
    rest[index] = False
    assert torch.equal(before[rest], after[rest])
    assert int((before != after).sum()) > 0.9 * count
    encoder.check_frozen()


def test_a_lottery_ticket_is_the_entries_that_moved_most() -> None:
    encoder, method = base(), LotteryTicket(entries=300)
    trained = train(job(method), encoder)
    check_exact(method, trained, encoder)
    run = Run(job(method), encoder)
    dense = phase_by_hand(run)
    assert not any(".LayerNorm." in name for name in dense)
    index = moved_most(method, dense, encoder, 300, torch.empty(0, dtype=torch.long))
    assert torch.equal(trained.tensors["method.index"], index)
    run.next_phase()  # back to the pretrained weights, and a head that starts anew
    fresh = run.slots.get(0)
    assert not fresh["method.values"].any()
    head = sum(fresh[name].numel() for name in run.head_specs)
    assert run.adam.first.shape == run.adam.second.shape == (1, 300 + head)  # no state for anything else
    phase_by_hand(run)
    assert torch.equal(run.result().tensors["method.values"], trained.tensors["method.values"])
    assert [h["phase"] for h in trained.state.history] == ["dense-1"] * 2 + ["sparse-1"] * 2


def test_weight_decay_moves_nothing_but_the_head() -> None:
    run = Run(job(LotteryTicket(entries=50)), base())
    for _ in range(2):
        decayed = {name for name, spec in run.slots.specs.items() if spec.decay}
        assert decayed == {"head.output.weight"}
        if not run.last_phase:
            run.next_phase()
    assert not any(spec.decay for phase in DiffPruning().phases(base().shape) for spec in phase.specs.values())


def test_rounds_each_find_their_part_and_keep_what_was_found() -> None:
    encoder, method = base(), LotteryTicket(entries=301, rounds=2)
    trained = train(job(method, epochs=1), encoder)
    check_exact(method, trained, encoder)
    run = Run(job(method, epochs=1), encoder)
    nothing = torch.empty(0, dtype=torch.long)
    first = moved_most(method, phase_by_hand(run), encoder, 150, nothing)
    run.next_phase()
    assert torch.equal(run.kept["index"], first)
    found = phase_by_hand(run)
    run.next_phase()  # dense again, from where the first round ended
    begun = run.slots.get(0)
    now = torch.cat([begun[f"method.base.{w.name}"].reshape(-1) for w in method.trained(encoder.shape)])
    assert torch.equal(now, laid_out(method, encoder, {"method.index": first, "method.values": found["values"]}))
    second = moved_most(method, phase_by_hand(run), encoder, 151, first)
    assert torch.equal(trained.tensors["method.index"], torch.cat([first, second]).sort()[0])


@pytest.mark.parametrize("method", [LotteryTicket(1.0, rounds=2), LotteryTicket(0.9, rounds=3)], ids=str)
def test_more_entries_than_ever_move_are_still_that_many(method: LotteryTicket) -> None:
    """Embeddings of words that are not in the data do not move at all."""
    encoder = base()
    check = Run(job(method, epochs=1, batch_size=32), encoder)
    while not check.last_phase:
        step_together([(check, range(4))])
        check.next_phase()
    assert check.kept["index"].unique().shape == (method.count(encoder.shape),)


def test_an_l1_penalty_keeps_the_difference_small() -> None:
    encoder = base()
    free, held = (train(job(LotteryTicket(entries=300, l1=l1)), encoder).tensors for l1 in (0.0, 3000.0))
    assert float(held["method.values"].abs().mean()) < 0.7 * float(free["method.values"].abs().mean())


def test_the_l1_penalty_is_the_mean_distance_from_the_base() -> None:
    encoder, method = base(), LotteryTicket(entries=3, l1=2.0)
    shape, total = encoder.shape, encoder.shape.parameters
    whole = {f"base.{w.name}": encoder.weights[w.name] + 0.5 for w in method.trained(shape)}
    moved = sum(w.size for w in method.trained(shape))
    dense = method.penalty("dense-1", shape, whole, {}, encoder.weights)
    assert dense is not None and float(dense) == pytest.approx(2.0 * 0.5 * moved / total, rel=1e-4)
    values = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    sparse = method.penalty("sparse-1", shape, {"values": values}, {}, encoder.weights)
    assert sparse is not None and sparse.item() == pytest.approx(2.0 * 3.5 / total)
    sparse.backward()
    assert torch.allclose(values.grad, torch.tensor([1.0, -1.0, 1.0]) * 2.0 / total)  # type: ignore[arg-type]


# ---- gates


def gates(method: DiffPruning, alpha: Tensor, group: float = 5.0, noise: Noise | None = None) -> Tensor:
    """How open gates are: a difference of ones, over a base of zeros."""
    tensors = {"diff.p": torch.ones_like(alpha), "gate.p": alpha, "group.p": torch.tensor([group])}
    shape: Any = None
    return method.weights("gates", shape, tensors, {}, {"p": torch.zeros_like(alpha)}, noise)["p"]


@pytest.mark.parametrize("alpha", [-6.0, -1.0, 0.0, 0.7, 1.5, 6.0])
def test_samples_of_a_gate_have_the_hard_concrete_distribution(alpha: float) -> None:
    plain = DiffPruning(structured=False)
    z = gates(plain, torch.full((200, 500), alpha), noise=Noise([0, 1], CPU))
    assert 0 <= float(z.min()) <= float(z.max()) <= 1
    # z > 0 where s > 1/2, z = 1 where s = 5/6 or more; s is a logistic sample around alpha
    sigmoid = torch.tensor(alpha).sigmoid()
    opened = (torch.tensor(alpha) - torch.tensor(5.0).log()).sigmoid()
    assert float((z > 0).float().mean()) == pytest.approx(float(sigmoid), abs=6e-3)
    assert float((z == 1).float().mean()) == pytest.approx(float(opened), abs=6e-3)
    assert torch.equal(z, gates(plain, torch.full((200, 500), alpha), noise=Noise([0, 1], CPU)))
    assert alpha in (-6.0, 6.0) or not torch.equal(
        z, gates(plain, torch.full((200, 500), alpha), noise=Noise([0, 2], CPU))
    )


def test_without_noise_a_gate_is_at_its_middle() -> None:
    alpha = torch.tensor([-9.0, -0.1, 0.0, 0.4, 1.0, 5.0])
    middle = (3 * alpha.sigmoid() - 1.5).clamp(0, 1)
    assert torch.allclose(gates(DiffPruning(structured=False), alpha), middle)
    grouped = DiffPruning(structured=True)
    assert torch.allclose(gates(grouped, alpha, group=0.4), middle * (3 * torch.tensor(0.4).sigmoid() - 1.5))
    assert not gates(grouped, alpha, group=-1.0).any()  # a closed group closes all


@pytest.mark.parametrize("sampled", [False, True])
def test_gates_give_autograds_gradients(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    theta, w, alpha, u = (torch.randn(40, 50, generator=draw, dtype=torch.float64) for _ in range(4))
    alpha, u = (2 * alpha).requires_grad_(), u.sigmoid()
    w.requires_grad_()
    s = (alpha + (u.clamp(1e-4, 1 - 1e-4).logit() if sampled else 0)).sigmoid()
    plain = theta + w * (3 * s - 1.5).clamp(0, 1)
    noise = Noise([0], torch.device("cpu"))
    monkeypatch.setattr(noise, "uniform", lambda shape: u.clone().view(shape))
    ours = gated(theta, w, alpha, noise if sampled else None)
    assert torch.allclose(ours, plain, atol=1e-14)
    g = torch.randn(40, 50, generator=draw, dtype=torch.float64)
    theirs = torch.autograd.grad(plain, (w, alpha), g)
    for mine, other in zip(torch.autograd.grad(ours, (w, alpha), g), theirs, strict=True):
        assert other.any() and torch.allclose(mine, other, atol=1e-14)
    z = opened(alpha, u.clone() if sampled else None)
    assert torch.allclose(torch.autograd.grad(w.detach() * z, alpha, g)[0], theirs[1], atol=1e-14)


@pytest.mark.parametrize("structured", [False, True])
def test_the_penalty_is_the_expected_number_of_open_gates(structured: bool) -> None:
    method = DiffPruning(structured=structured, penalty_weight=0.25)
    draw = torch.Generator().manual_seed(0)
    sizes = {"a": (3, 4), "b": (5,)}
    alphas = {n: torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for n, s in sizes.items()}
    groups = {n: torch.randn(1, generator=draw, dtype=torch.float64).requires_grad_() for n in sizes}
    tensors = {f"gate.{n}": t for n, t in alphas.items()} | {f"group.{n}": t for n, t in groups.items()}
    shape: Any = None
    none = {n: torch.zeros(s) for n, s in sizes.items()}
    penalty = method.penalty("gates", shape, tensors, {}, none)
    assert penalty is not None and method.penalty("fixed", shape, {}, {}, none) is None
    s = {n: t.detach().sigmoid() for n, t in alphas.items()}
    g = {n: t.detach().sigmoid() if structured else torch.ones(1, dtype=torch.float64) for n, t in groups.items()}
    assert penalty.item() == pytest.approx(0.25 * sum(float(s[n].sum() * g[n][0]) for n in sizes))
    penalty.backward()
    for n in sizes:
        assert torch.allclose(alphas[n].grad, 0.25 * g[n] * s[n] * (1 - s[n]))  # type: ignore[arg-type]
        if structured:
            assert torch.allclose(groups[n].grad, 0.25 * s[n].sum() * g[n] * (1 - g[n]))  # type: ignore[arg-type]


def test_the_penalty_closes_gates_in_training() -> None:
    encoder = base()
    left = []
    for weight in (0.0, 1e-2):
        run = Run(job(DiffPruning(penalty_weight=weight)), encoder)
        for _ in range(6):
            step_together([(run, range(8))])[0]
        now = run.slots.get(0)
        assert all(torch.isfinite(t).all() for t in now.values())
        left.append(sum(float(t.sigmoid().sum()) for name, t in now.items() if name.startswith("method.gate.")))
    assert left[1] < 0.9 * left[0]


@pytest.mark.parametrize("structured", [False, True])
def test_diff_pruning_keeps_exactly_the_largest_gated_entries(structured: bool) -> None:
    encoder, method = base(), DiffPruning(entries=250, structured=structured, gate_rate=50.0, penalty_weight=1e-6)
    trained = train(job(method), encoder)
    check_exact(method, trained, encoder)
    run = Run(job(method), encoder)
    now = phase_by_hand(run)
    gated = []
    for w in encoder.shape.weights:
        z = (3 * now[f"gate.{w.name}"].sigmoid() - 1.5).clamp(0, 1)
        if structured:
            z = z * (3 * now[f"group.{w.name}"].sigmoid() - 1.5).clamp(0, 1)
        gated.append((now[f"diff.{w.name}"] * z).reshape(-1))
    difference = torch.cat(gated)
    index = difference.abs().sort(descending=True, stable=True)[1][:250].sort()[0]
    assert torch.equal(trained.tensors["method.index"], index)
    head = run.slots.get(0)["head.output.weight"]
    run.next_phase()
    begun = run.slots.get(0)  # goes on from the projected difference, with the head it has
    assert torch.allclose(begun["method.values"], difference[index], atol=1e-7)
    assert torch.equal(begun["head.output.weight"], head)
    assert run.adam.first.shape[1] == 250 + sum(spec.size for spec in run.head_specs.values())
    phase_by_hand(run)
    assert torch.equal(run.result().tensors["method.values"], trained.tensors["method.values"])
