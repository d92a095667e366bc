"""Passes whose layers are one compiled function: equal to PyTorch, with the same bits in any pass, on any threads."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from intarsia.encoder import int8_probe
from intarsia.encoder.compiled import can_compile
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.encoder.slots import Slots, start
from intarsia.kernels import cpu_library
from intarsia.methods import (
    IA3,
    Average,
    BitFit,
    Bottleneck,
    DoRA,
    Fuse,
    LayerNorms,
    LoRA,
    Method,
    Pfeiffer,
    Prefix,
    Stack,
)
from intarsia.methods.stack import Residual
from tests.support.compiled_for import compiled_for
from tests.support.composed import Frozen, lively
from tests.support.families import COMPILED, tiny, tiny_compiled
from tests.support.small_methods import FORMS, SMALL

LENGTHS = (7, 1, 40, 33, 2, 16, 25, 12)
METHODS: tuple[Method, ...] = (
    Bottleneck(5),
    Bottleneck(16, activation="relu", norms=False),
    Bottleneck(19, parallel=True, activation="swish"),
    Bottleneck(8, places_in_layer="ffn", activation="tanh", layers=(0, 2)),
    Bottleneck(3, base_norm_before=True, activation="gelu_exact"),
    Bottleneck(4, invertible=True, activation="linear"),
    Bottleneck(2, sizes=(2, 33, 7)),
    Pfeiffer(6),
    LayerNorms(),
    LoRA(3, alpha=4.0),
    LoRA(3, alpha=0.0),
    LoRA(17, targets=LINEAR_SITES, layers=(0, 2), biases="all"),
    BitFit(),
    DoRA(3, alpha=4.0),
    DoRA(17, targets=LINEAR_SITES, layers=(0, 2), biases="all"),
    Prefix(1),
    Prefix(37, layers=(0, 2)),
    Prefix(3, offset=2),
    IA3(),
    IA3(sites=(*LINEAR_SITES, "attention.dense.input", "ffn.up.input", "ffn.down.input"), layers=(0, 2)),
)


EACH_VECTOR_SIZE = pytest.mark.parametrize("processor", ["this", "avx2"], indirect=True)


@pytest.fixture(autouse=True)
def processor(request: pytest.FixtureRequest) -> Iterator[str]:
    """The processor for which the function is compiled: this one, or an older one."""
    with compiled_for(getattr(request, "param", "this")) as name:
        yield name


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def segments(encoder: Encoder, lengths: tuple[int, ...] = LENGTHS, offset: int = 0) -> list[Segment]:
    torch.manual_seed(0)
    return [Segment(torch.randint(5, 40, (min(n, encoder.max_length - offset),)).tolist()) for n in lengths]


def group(encoder: Encoder, method: Method, first: int, rows: tuple[int, ...]) -> Group:
    """Rows of several owners with random tensors, in slots from the last to the first."""
    specs = method.tensors(encoder.shape)
    slots = Slots(specs, len(rows) + 1)
    slots.buffer.fill_(float("nan"))  # of slots that no row uses
    for slot in range(1, len(rows) + 1):
        torch.manual_seed(slot)
        slots.put(slot, {k: v + 0.2 * torch.randn(v.shape) for k, v in start(specs, encoder, slot).items()})
    owners = tuple(range(len(rows), 0, -1))
    return Group(method, method.places(encoder.shape), slots.tensors, first, owners, rows)


@torch.no_grad()
def both(encoder: Encoder, rows: list[Segment], groups: list[Group]) -> tuple[Tensor, Tensor]:
    batch = pack(rows)
    return encoder.forward(batch, groups), encoder.forward(batch, groups, compiled=True)


@torch.no_grad()
def check_alone(encoder: Encoder, rows: list[Segment], groups: list[Group]) -> None:
    """Check that each row has the bits that it has alone."""
    batch = pack(rows)
    mixed = encoder.forward(batch, groups, compiled=True)
    for of in groups:
        slots = [slot for slot, count in zip(of.slots, of.rows, strict=True) for _ in range(count)]
        for row, slot in enumerate(slots, of.first):
            own = Group(of.method, of.places, of.tensors, 0, (slot,), (1,))
            alone = encoder.forward(pack([rows[row]]), [own], compiled=True)
            assert torch.equal(alone, mixed[batch.offsets[row] : batch.offsets[row + 1]]), (row, of.method)


def error(expected: Tensor, got: Tensor) -> float:
    return float((expected - got).norm() / expected.norm())


@EACH_VECTOR_SIZE
@pytest.mark.parametrize("family", COMPILED)
def test_the_plain_base_and_every_method_are_as_in_pytorch(family: str) -> None:
    encoder = tiny_compiled(family)
    assert encoder.compiled is not None
    rows = segments(encoder)
    expected, got = both(encoder, rows, [])
    assert error(expected, got) < 1e-5
    for method in METHODS:
        assert can_compile(encoder.shape, method)
        rows = segments(encoder, offset=method.position_offset)
        expected, got = both(encoder, rows, [group(encoder, method, 1, (2, 1, 3))])
        assert error(expected, got) < 1e-5, method


@EACH_VECTOR_SIZE
def test_every_method_of_the_registry_is_as_in_pytorch_or_runs_there() -> None:
    encoder = tiny_compiled()
    compiled = set()
    for name, method in (SMALL | FORMS).items():
        if can_compile(encoder.shape, method := method.sized(encoder.shape)):
            compiled.add(name)
            rows = segments(encoder, offset=method.position_offset)
            expected, got = both(encoder, rows, [group(encoder, method, 1, (2, 1, 3))])
            assert error(expected, got) < 1e-5, name
    assert {"houlsby", "single", "parallel", "pfeiffer", "houlsby-invertible"} <= compiled
    assert {"layernorm", "bitfit", "lora", "lora-all-biases", "dora", "dora-all-biases", "ia3"} <= compiled
    assert {"prefix", "prefix-offset"} <= compiled
    assert not {"pal", "full"} & compiled


@EACH_VECTOR_SIZE
def test_a_token_has_the_same_bits_in_any_pass(threads: int) -> None:
    encoder = tiny_compiled("mpnet")
    rows = segments(encoder, LENGTHS * 3)
    groups = [group(encoder, Bottleneck(5), 1, (2, 3, 1)), group(encoder, Pfeiffer(6), 9, (4, 5))]
    groups += [group(encoder, LoRA(3, targets=LINEAR_SITES, biases="targets"), 18, (2, 1))]
    groups += [group(encoder, IA3(sites=("key", "attention.dense.input", "ffn.up.input", "ffn.up")), 21, (1, 1))]
    groups = [group(encoder, Prefix(30), 0, (1,)), *groups, group(encoder, DoRA(2, biases="targets"), 23, (1,))]
    check_alone(encoder, rows, groups)


@EACH_VECTOR_SIZE
def test_the_number_of_threads_changes_no_bit() -> None:
    encoder = tiny_compiled()
    rows, before = segments(encoder, (3, 37, 5, 40)), torch.get_num_threads()
    found = []
    for count in (1, 2, 4, 5):
        torch.set_num_threads(count)
        found += [both(encoder, part, [group(encoder, Bottleneck(9), 0, (1,))])[1] for part in (rows, rows[:1])]
    torch.set_num_threads(before)
    assert all(torch.equal(one, found[number % 2]) for number, one in enumerate(found))


@EACH_VECTOR_SIZE
@pytest.mark.parametrize(
    ("method", "tensor"),
    [
        (Bottleneck(5), "0.attention.output.up.bias"),
        (IA3(sites=("ffn.up.input",)), "0.ffn.up.input.gain"),
        (DoRA(2), "0.query.a.weight"),
        (Prefix(2), "0.attention.prefix.key"),
    ],
    ids=["adapter", "gain", "magnitude", "prefix"],
)
def test_a_row_without_numbers_leaves_its_neighbours_as_they_were(method: Method, tensor: str, threads: int) -> None:
    encoder = tiny_compiled()
    rows = segments(encoder)
    whole = group(encoder, method, 0, (2, 2, 4))
    with torch.no_grad():
        batch = pack(rows)
        before = encoder.forward(batch, [whole], compiled=True)
        whole.tensors[tensor][whole.slots[1]] = float("nan")
        after = encoder.forward(batch, [whole], compiled=True)
    first, last = batch.offsets[2], batch.offsets[4]
    assert after[first:last].isnan().all()
    assert torch.equal(before[:first], after[:first]) and torch.equal(before[last:], after[last:])


@EACH_VECTOR_SIZE
def test_a_pass_may_begin_or_end_between_layers() -> None:
    encoder = tiny_compiled()
    batch = pack(segments(encoder))
    of = group(encoder, Bottleneck(5, layers=(1, 2), embedding_norm=False), 0, (8,))
    with torch.no_grad():
        whole = encoder.forward(batch, [of], compiled=True)
        below = encoder.states_below(batch, 1, compiled=True)
        assert torch.equal(whole, encoder.forward(batch, [of], above=(1, below), compiled=True))


def test_several_threads_may_run_passes_at_once() -> None:
    encoders = [tiny_compiled(seed=seed) for seed in (0, 1)]
    rows = segments(encoders[0])
    expected = [both(encoder, rows, [])[1] for encoder in encoders]
    wrong: list[int] = []

    def work(number: int) -> None:
        torch.set_num_threads(2)
        for _ in range(50):
            if not torch.equal(both(encoders[number], rows, [])[1], expected[number]):
                wrong.append(number)

    running = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    encoder, before = tiny_compiled(), torch.get_num_threads()
    torch.set_num_threads(2)
    expected = both(encoder, segments(encoder), [])[1]
    child = os.fork()
    if child == 0:  # embeddings run on one thread: OpenMP's threads do not survive a fork
        torch.set_num_threads(1)
        encoder.switchboard.current = None
        with torch.no_grad():
            same = torch.equal(encoder.forward(pack(segments(encoder)), compiled=True), expected)
        os._exit(0 if same else 1)
    torch.set_num_threads(before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("processor", ["this", "avx-vnni"], indirect=True)
def test_int8_is_as_near_as_in_pytorch_and_has_the_same_bits_in_any_pass(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = cpu_library.load()
    if library is None or not library.intarsia_int8():
        pytest.skip("this processor has no products of bytes")
    encoder = tiny_compiled()
    rows = segments(encoder)
    groups = [
        group(encoder, Bottleneck(5), 0, (1, 2)),
        group(encoder, IA3(), 3, (2, 1)),
        group(encoder, DoRA(2), 6, (1,)),
        group(encoder, Prefix(3), 7, (1,)),
    ]
    exact, _ = both(encoder, rows, groups)
    monkeypatch.setattr(int8_probe, "require", lambda *_: None)  # without the trial of the speed
    encoder.use_int8()
    assert encoder.compiled is not None and encoder.compiled.int8
    # A number that lies between two bytes may take either, so the two have different errors of one size.
    by_pytorch, compiled = (float((states - exact).norm() / exact.norm()) for states in both(encoder, rows, groups))
    assert 0 < compiled < 1.2 * by_pytorch < 0.1
    check_alone(encoder, rows, groups)
    with torch.no_grad():
        batch = pack(rows)
        got = encoder.forward(batch, compiled=True)
        for row, segment in enumerate(rows):
            alone = encoder.forward(pack([segment]), compiled=True)
            assert torch.equal(alone, got[batch.offsets[row] : batch.offsets[row + 1]])


@pytest.mark.parametrize("processor", ["avx2"], indirect=True)
def test_without_vnni_int8_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tiny_compiled()
    assert encoder.compiled is not None
    monkeypatch.setattr(int8_probe, "require", lambda *_: None)
    encoder.use_int8()
    assert encoder.compiled is None


@EACH_VECTOR_SIZE
def test_heads_of_8_numbers_need_vectors_of_8(processor: str) -> None:
    library = cpu_library.load()
    assert library is not None
    assert (tiny("bert").compiled is not None) == (library.intarsia_lanes() == 8)
    assert library.intarsia_lanes() == 8 or processor != "avx2"


@pytest.mark.parametrize("family", ["deberta-v2", "albert", "modernbert", "bert"])
def test_other_bases_run_in_pytorch(family: str) -> None:
    encoder = tiny(family, **({"num_attention_heads": 8} if family == "bert" else {}))  # the BERT: 4 numbers a head
    assert encoder.compiled is None
    expected, got = both(encoder, segments(encoder), [])
    assert torch.equal(expected, got)


def test_methods_that_do_more_run_in_pytorch() -> None:
    shape = tiny_compiled().shape
    for method in (Bottleneck(4, depth=2), Bottleneck(4, norm_before=True), Bottleneck(4, activation="mish")):
        assert not can_compile(shape, method)


def test_a_machine_without_a_compiler_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path))
    for name, value in (("CC", "no-such-compiler"), (cpu_library.SWITCH, "0"), (cpu_library.SWITCH, "built")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            cpu_library.load.cache_clear()
            assert cpu_library.load() is None
            assert tiny_compiled().compiled is None
    cpu_library.load.cache_clear()
    assert isinstance(cpu_library.load(), ctypes.CDLL)  # compiled anew, into the empty cache


def test_a_library_that_others_can_write_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path))
    cpu_library.load.cache_clear()
    assert cpu_library.load() is not None
    (made,) = (tmp_path / "compiled").iterdir()
    monkeypatch.setenv(cpu_library.SWITCH, "built")
    for path in (made, made.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        cpu_library.load.cache_clear()
        assert cpu_library.load() is None
        path.chmod(mode)
    cpu_library.load.cache_clear()
    assert cpu_library.load() is not None


def test_magnitudes_follow_what_is_put_into_a_slot() -> None:
    encoder, method = tiny_compiled(), DoRA(3)
    rows, specs = segments(encoder), method.tensors(encoder.shape)
    slots = Slots(specs, 3)
    of = Group(method, method.places(encoder.shape), slots.tensors, 0, (2, 0), (3, 5))
    for seed in range(3):
        for slot in (0, 2)[seed % 2 :]:
            torch.manual_seed(10 * seed + slot)
            slots.put(slot, {k: v + 0.2 * torch.randn(v.shape) for k, v in start(specs, encoder, slot).items()})
        expected, got = both(encoder, rows, [of])
        assert error(expected, got) < 1e-5


@EACH_VECTOR_SIZE
@pytest.mark.parametrize("residual", ["library", "paper"])
def test_stacks_are_as_in_pytorch(residual: Residual, threads: int) -> None:
    encoder = tiny_compiled()
    frozen = Frozen(encoder)
    language = frozen.add("language", Pfeiffer(7, reduction=2, invertible=True))
    sparse = frozen.add("biases", BitFit(), seed=1)
    plain = group(encoder, Bottleneck(5), 6, (2,))
    for parts in (
        (language, Pfeiffer(4)),
        (language, sparse, Bottleneck(6)),
        (sparse, IA3(sites=("key", "ffn.up", "ffn.down.input")), LoRA(3, targets=LINEAR_SITES), IA3()),
        (language, DoRA(2, targets=("query", "ffn.down"))),
        (frozen.add("prefix", Prefix(5)), LoRA(3), Prefix(2, layers=(1,))),
        (frozen.add("houlsby", Bottleneck(9, parallel=residual == "library")), LoRA(3, alpha=4.0), LayerNorms()),
    ):
        stack = Stack(*parts, residual=residual)
        assert can_compile(encoder.shape, stack)
        tensors = {name: tensor[None] for name, tensor in lively(stack, encoder, 2).items()}
        of, rows = frozen.group(stack, tensors, 1, 3), segments(encoder)
        expected, got = both(encoder, rows, [of, plain])
        assert error(expected, got) < 1e-5
        _, alone = both(encoder, rows[1:4], [frozen.group(stack, tensors, 0, 3)])
        batch = pack(rows)
        assert torch.equal(alone, got[batch.offsets[1] : batch.offsets[4]])


def check_composed(
    encoder: Encoder, frozen: Frozen, method: Method, tensors: dict[str, torch.Tensor], plain: Group
) -> None:
    """Rows of a composition are as in PyTorch beside other rows, and have the same bits without them."""
    rows = segments(encoder)
    expected, got = both(encoder, rows, [frozen.group(method, tensors, 1, 3), plain])
    assert error(expected, got) < 1e-5
    _, alone = both(encoder, rows[1:4], [frozen.group(method, tensors, 0, 3)])
    batch = pack(rows)
    assert torch.equal(alone, got[batch.offsets[1] : batch.offsets[4]])


@pytest.mark.parametrize("inside", ["alone", "in a stack"])
def test_averages_are_as_in_pytorch(inside: str, threads: int) -> None:
    encoder = tiny_compiled()
    frozen = Frozen(encoder)
    parts = (
        frozen.add("pfeiffer", Pfeiffer(7)),
        frozen.add("houlsby", Bottleneck(5, layers=(0, 2)), seed=1),
        Bottleneck(4, parallel=True, norms=False),
        frozen.add("biases", BitFit(), seed=2),
        LoRA(3, targets=LINEAR_SITES, biases="targets"),
        frozen.add("norms", LayerNorms(), seed=3),
    )
    plain = group(encoder, Bottleneck(5), 6, (2,))
    for average in (Average(*parts[:2]), Average(*parts, weights=(0.5, 0.25, -0.125, 0.125, 0.125, 0.125))):
        method = average if inside == "alone" else Stack(frozen.add("language", Bottleneck(3)), average, Pfeiffer(2))
        assert can_compile(encoder.shape, method)
        tensors = {name: tensor[None] for name, tensor in lively(method, encoder, 2).items()}
        check_composed(encoder, frozen, method, tensors, plain)


@pytest.mark.parametrize("static", [False, True])
def test_fusions_are_as_in_pytorch(static: bool, threads: int) -> None:
    encoder = tiny_compiled()
    frozen = Frozen(encoder)
    parts = (
        frozen.add("pfeiffer", Pfeiffer(7)),
        frozen.add("houlsby", Bottleneck(5, layers=(0, 2)), seed=1),
        Bottleneck(4, parallel=True, norms=False),
        frozen.add("norms", LayerNorms(), seed=2),
    )
    plain = group(encoder, Bottleneck(5), 6, (2,))
    fuse = Fuse(*parts, static=static)
    inside = frozen.add("fusion", Fuse(*parts[1:], static=static), seed=3)
    for method in (fuse, Stack(frozen.add("low", Bottleneck(3)), fuse, Pfeiffer(2)), Stack(inside, Pfeiffer(2))):
        assert can_compile(encoder.shape, method)
        tensors = {name: tensor[None] for name, tensor in lively(method, encoder, 4, 0.1).items()}
        check_composed(encoder, frozen, method, tensors, plain)


def test_other_compositions_run_in_pytorch() -> None:
    encoder = tiny_compiled()
    part = Frozen(encoder).add("a", Pfeiffer(4))
    averages = Average(part, IA3()), Average(part, part, weights=(1.0, 0.0)), Average(part, Average(part))
    fusions = Fuse(part, part, temperature=True), Fuse(part, Stack(part))
    for method in (*averages, *fusions, Stack(part, Average(part, IA3()))):
        assert not can_compile(encoder.shape, method)
    inner = Stack(part, Pfeiffer(3))
    assert can_compile(encoder.shape, Stack(inner, Pfeiffer(2)))
    assert not can_compile(encoder.shape, Stack(inner, Pfeiffer(2), residual="paper"))
