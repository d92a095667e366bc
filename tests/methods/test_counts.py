"""Parameter counts as published, on the shapes of BERT-base and BERT-large; no weights are made."""

from __future__ import annotations

from math import prod

import pytest

from intarsia.encoder.shape import Shape
from intarsia.encoder.sites import LINEAR_SITES
from intarsia.errors import IntarsiaError
from intarsia.methods import (
    IA3,
    METHODS,
    PAL,
    Bapna,
    BitFit,
    Bottleneck,
    DiffPruning,
    DoRA,
    Features,
    Full,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Method,
    Pfeiffer,
    Prefix,
    TopLayers,
)

LAYER = 7_087_872  # of BERT-base
POOLER = 768 * 768 + 768


@pytest.fixture(scope="module")
def base() -> Shape:
    from transformers import BertConfig

    return Shape.of(BertConfig())


@pytest.fixture(scope="module")
def large() -> Shape:
    from transformers import BertConfig

    return Shape.of(BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))


COUNTS: list[tuple[Method, int]] = [
    (Pfeiffer(), 894_528),
    (Pfeiffer(64, layers=(0, 1, 2)), 3 * (2 * 64 * 768 + 64 + 768)),
    (Pfeiffer(48, layers="all-but-last"), 11 * (2 * 48 * 768 + 48 + 768)),
    (Pfeiffer(reduction=2, invertible=True), 12 * (2 * 384 * 768 + 384 + 768) + 296_064),
    (Bottleneck(64, norms=False, invertible=True), 2_379_264 + 296_064),
    (Bapna(64, invertible=True), 12 * (2 * 64 * 768 + 64 + 768 + 2 * 768) + 296_064),
    (Bottleneck(64, places_in_layer="ffn", norms=False), 2_379_264 // 2),
    (Bottleneck(64, norms=False), 2_379_264),
    (Bapna(64), 12 * (2 * 64 * 768 + 64 + 768 + 2 * 768)),
    (PAL(norms=False), 1_819_836),
    (PAL(), 1_819_836 + 38_400),
    (PAL(heads=6, norms=False), 1_819_836),
    (BitFit(pooler=True), 102_912),
    (BitFit(), 102_912 - 768),
    (BitFit(("query", "ffn.up")), 12 * (768 + 3072)),
    (LayerNorms(), 38_400),
    (LoRA(8), 294_912),
    (LoRA(4, targets=LINEAR_SITES), 12 * 4 * (4 * (768 + 768) + 2 * (768 + 3072))),
    (DoRA(8), 294_912 + 12 * 2 * 768),
    (IA3(), 55_296),
    (Prefix(16), 294_912),
    (Full(), 109_482_240),
    (TopLayers(1), LAYER + POOLER),
    (TopLayers(12), 12 * LAYER + POOLER),
    (LotteryTicket(entries=14_155_776), 14_155_776),
    (LotteryTicket(entries=7_667_712), 7_667_712),
    (LotteryTicket(), round(0.005 * 109_482_240)),
    (DiffPruning(0.005), round(0.005 * 109_482_240)),
    (Features(), 0),
    (Features(mix=True), 13),
    (Features(hidden=256), 256 * 769),
]


@pytest.mark.parametrize(("method", "count"), COUNTS, ids=str)
def test_published_counts_of_bert_base(base: Shape, method: Method, count: int) -> None:
    assert method.count(base) == count
    assert sum(s.size for s in method.tensors(base).values() if s.trained) == count


def test_every_method_has_a_count() -> None:
    assert {type(method) for method, _ in COUNTS} == set(METHODS.values())


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (BitFit(pooler=True), 272_384),
        (LayerNorms(), 100_352),
        (Full(), 335_141_888),
        (DiffPruning(0.005), 1_675_709),
        (Prefix(16), 2 * 16 * 1024 * 24),
    ],
    ids=str,
)
def test_published_counts_of_bert_large(large: Shape, method: Method, count: int) -> None:
    assert method.count(large) == count


@pytest.mark.parametrize("m", [1, 64, 1024])
def test_bapna_and_firat_count_2md_m_d_and_a_norm_of_2d(base: Shape, m: int) -> None:
    assert Bapna(m).count(base) == 12 * (2 * m * 768 + m + 768 + 2 * 768)


def test_eight_pals_cost_an_eighth_of_the_base(base: Shape) -> None:
    assert round(1 + 8 * PAL(norms=False).count(base) / base.parameters, 2) == 1.13


def test_bitfit_is_less_than_a_thousandth(base: Shape) -> None:
    assert round(100 * BitFit(pooler=True).count(base) / base.parameters, 2) == 0.09


def test_what_is_trained_is_what_is_counted(base: Shape) -> None:
    top = TopLayers(2).trained(base)
    assert {layer for w in top for layer in w.layers} == {10, 11}
    assert [w.name for w in top if not w.layers] == ["pooler.dense.weight", "pooler.dense.bias"]
    ticket = LotteryTicket().trained(base)
    assert sum(w.size for w in ticket) == 109_482_240 - 38_400  # no LayerNorm
    assert sum(w.size for w in LotteryTicket(norms=True).trained(base)) == 109_482_240
    assert LotteryTicket(1.0).count(base) == 109_482_240 - 38_400  # more is not there


def test_groups_of_structured_diff_pruning(large: Shape) -> None:
    """One for each matrix and vector of the base. The paper's 393 has the head's matrix and vector too, and the head is
    outside the penalty here."""
    gates, fixed = DiffPruning(structured=True).phases(large)
    groups = [s for name, s in gates.specs.items() if name.startswith("group.")]
    assert len(groups) == 393 - 2 == len(large.weights)
    assert all(s.shape == (1,) and s.value == 5.0 for s in groups)
    entries = [s for name, s in gates.specs.items() if name.startswith("gate.")]
    assert sum(prod(s.shape) for s in entries) == large.parameters
    assert list(fixed.specs) == ["values"]
    plain = DiffPruning(structured=False).phases(large)[0]
    assert not [name for name in plain.specs if name.startswith("group.")]


def test_rounds_of_a_lottery_ticket_share_its_entries(base: Shape) -> None:
    phases = LotteryTicket(entries=10, rounds=3).phases(base)
    assert [p.name for p in phases] == ["dense-1", "sparse-1", "dense-2", "sparse-2", "dense-3", "sparse-3"]
    assert [p.specs["values"].size for p in phases[1::2]] == [3, 6, 10]


def test_gates_learn_at_the_papers_rate() -> None:
    method = DiffPruning()
    assert float(str(method.recipe["learning_rate"])) * method.gate_rate == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LotteryTicket(0.0),
        lambda: LotteryTicket(1.1),
        lambda: LotteryTicket(entries=0),
        lambda: LotteryTicket(entries=-3),
        lambda: LotteryTicket(rounds=0),
        lambda: LotteryTicket(l1=-1.0),
        lambda: DiffPruning(-0.1),
        lambda: DiffPruning(entries=0),
        lambda: DiffPruning(penalty_weight=-1.0),
        lambda: Pfeiffer(0),
        lambda: Pfeiffer(reduction=0),
        lambda: Bapna(0),
        lambda: PAL(10, 3),
        lambda: PAL(0),
        lambda: LoRA(0),
        lambda: LoRA(targets=()),
        lambda: LoRA(targets=("nowhere",)),
        lambda: BitFit(sites=("nowhere",)),
        lambda: Prefix(0),
        lambda: Features(hidden=-1),
        lambda: TopLayers(0),
    ],
)
def test_impossible_options_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IntarsiaError):
        make()


def test_more_top_layers_than_there_are_are_refused(base: Shape) -> None:
    with pytest.raises(IntarsiaError, match="has 12"):
        TopLayers(13).check(base)
    TopLayers(12).check(base)


def test_a_pooler_that_is_not_there_cannot_be_trained() -> None:
    from tests.support.families import config

    with pytest.raises(IntarsiaError, match="no pooler"):
        BitFit(pooler=True).check(Shape.of(config("distilbert")))
