"""Every method on every family: refused with a reason, or counted, started, packed, mixed and trained as promised."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots, start
from intarsia.errors import IntarsiaError
from intarsia.methods import DiffPruning, Full, LotteryTicket, Method
from intarsia.tasks.heads import Head, pool, pooler_instead
from tests.support.families import FAMILY_NAMES, plain_model, tiny
from tests.support.segments import segments
from tests.support.small_methods import FORMS, SMALL

METHODS = {name: method for name, method in {**SMALL, **FORMS}.items() if name != "features"}  # which has no tensors
ROUTED = {name: method for name, method in METHODS.items() if not method.changes_base}
CHANGING = {name: method for name, method in METHODS.items() if method.changes_base}

REFUSED = {
    ("prefix", "deberta-v2"): "relative positions",
    ("prefix-offset", "deberta-v2"): "relative positions",
    ("pfeiffer", "modernbert"): "has its LayerNorm before it",
    ("pfeiffer-invertible", "modernbert"): "has its LayerNorm before it",
    ("top", "albert"): "share one set of weights",
    ("bitfit", "modernbert"): "has no bias",
}


def neutral(method: Any) -> Method:
    """As it starts when its matrices start at 0."""
    return dataclasses.replace(method, std=0.0) if hasattr(method, "std") else method


# Methods that compute what the plain base computes until they are trained: all but a prefix, to which attention is
# drawn even if it is 0, a mix of layers, and an invertible adapter.
ALTERING = ("prefix", "prefix-offset", "features-mix", "houlsby-invertible", "pfeiffer-invertible")
NEUTRAL = {name: neutral(method) for name, method in ROUTED.items() if name not in ALTERING}
UNTRAINABLE = ("key.bias", "k_lin.bias", "attn.k.bias")  # softmax does not see what all keys share: rounding at most

LENGTHS = [7, 4, 9, 6, 1, 12, 5]
ROWS = segments(LENGTHS, pairs=False)
OWNERS = (None, 2, 2, 0, 1, 1, None)  # three slots in one group, plain rows around it
SLOTS, COUNTS = (2, 0, 1), (2, 1, 2)


def pairs(methods: dict[str, Method]) -> list[Any]:
    return [pytest.param(m, f, id=f"{m}-{f}") for m in methods for f in FAMILY_NAMES if (m, f) not in REFUSED]


encoder_of = cache(tiny)  # these tests change none


def lively(method: Method, encoder: Encoder, count: int = 3) -> Slots:
    """Slots full of random tensors around the starts."""
    specs = method.tensors(encoder.shape)
    slots = Slots(specs, count)
    draw = torch.Generator().manual_seed(5)
    for slot in range(count):
        slots.put(slot, start(specs, encoder, slot))
    slots.buffer.add_(0.2 * torch.randn(slots.buffer.shape, generator=draw))
    return slots


def group(method: Method, encoder: Encoder, tensors: Any, first: int, slots: Any, counts: Any) -> Group:
    return Group(method, method.places(encoder.shape), tensors, first, slots, counts)


def assert_close(found: Tensor, expected: Tensor, bound: float = 2e-5) -> None:
    assert float((found - expected).abs().max()) <= bound * max(1.0, float(expected.abs().max()))


def test_exactly_these_pairs_are_refused_and_each_says_why() -> None:
    refused = {}
    for name, method in METHODS.items():
        for family in FAMILY_NAMES:
            try:
                method.check(encoder_of(family).shape)
            except IntarsiaError as error:
                refused[name, family] = str(error)
    assert refused.keys() == REFUSED.keys()
    for pair, reason in REFUSED.items():
        assert reason in refused[pair] and pair[1] in refused[pair]


@pytest.mark.parametrize(("name", "family"), pairs(METHODS))
def test_closed_form_equals_the_trained_tensors(name: str, family: str) -> None:
    shape = encoder_of(family).shape
    method = METHODS[name]
    assert method.count(shape) == sum(s.size for s in method.tensors(shape).values() if s.trained) > 0
    assert method.tensors(shape) == method.phases(shape)[-1].specs


@torch.no_grad()
@pytest.mark.parametrize(("name", "family"), pairs(NEUTRAL))
def test_untrained_it_is_the_base(name: str, family: str) -> None:
    encoder, method = encoder_of(family), NEUTRAL[name]
    specs = method.tensors(encoder.shape)
    slots = Slots(specs, 3)
    for slot in range(3):
        slots.put(slot, start(specs, encoder, slot))
    plain = encoder.forward(pack(ROWS))
    found = encoder.forward(pack(ROWS), [group(method, encoder, slots.tensors, 1, SLOTS, COUNTS)])
    assert_close(found, plain, 1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("name", "family"), pairs(ROUTED))
def test_packed_padded_mixed_and_separate_agree(name: str, family: str) -> None:
    encoder, method = encoder_of(family), METHODS[name]
    slots = lively(method, encoder)
    plain = encoder.forward(pack(ROWS))
    mixed = encoder.forward(pack(ROWS), [group(method, encoder, slots.tensors, 1, SLOTS, COUNTS)])
    padded = encoder.forward(pack(ROWS), [group(method, encoder, slots.tensors, 1, SLOTS, COUNTS)], padded=True)
    assert_close(padded, mixed)
    for row, slot, states, base in zip(ROWS, OWNERS, mixed.split(LENGTHS), plain.split(LENGTHS), strict=True):
        alone = [] if slot is None else [group(method, encoder, slots.tensors, 0, (slot,), (1,))]
        assert_close(states, encoder.forward(pack([row]), alone))
        if slot is not None and method.places(encoder.shape):
            assert not torch.allclose(states, base, atol=1e-2)


@pytest.mark.parametrize(("name", "family"), pairs(ROUTED))
def test_gradients_reach_all_that_the_owner_trains_and_nobody_else(name: str, family: str) -> None:
    encoder, method = encoder_of(family), METHODS[name]
    slots = lively(method, encoder)
    leaves = slots.leaves()
    batch = pack(ROWS)
    states = encoder.forward(batch, [group(method, encoder, leaves, 1, SLOTS, COUNTS)], training=True)
    own = {k: v[2] for k, v in leaves.items()}
    rows = method.pooled(own, pool(states, batch, "mean")[1:3])  # the rows of slot 2
    rows.sin().sum().backward()
    for tensor, leaf in leaves.items():
        assert leaf.grad is not None, tensor
        assert not leaf.grad[:2].any(), tensor
        assert leaf.grad[2].any() or tensor.endswith(UNTRAINABLE), tensor
    assert not any(p.requires_grad or p.grad is not None for p in encoder.model.parameters())


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_rows_of_all_methods_in_one_pass_equal_separate_passes(family: str) -> None:
    encoder = encoder_of(family)
    methods = [m for name, m in ROUTED.items() if (name, family) not in REFUSED]
    stacks = [lively(m, encoder, 2) for m in methods]
    rows, owners, groups = [ROWS[0]], [(-1, 0)], []
    for i, method in enumerate(methods):
        groups.append(group(method, encoder, stacks[i].tensors, len(rows), (1, 0), (1, 1)))
        rows += [ROWS[(2 * i + 1) % 7], ROWS[(2 * i + 2) % 7]]
        owners += [(i, 1), (i, 0)]
        if i % 4 == 3:  # plain rows between them
            rows, owners = [*rows, ROWS[5]], [*owners, (-1, 0)]
    with torch.no_grad():
        mixed = encoder.forward(pack(rows), groups).split([len(r.ids) for r in rows])
        for row, (i, slot), states in zip(rows, owners, mixed, strict=True):
            alone = [] if i < 0 else [group(methods[i], encoder, stacks[i].tensors, 0, (slot,), (1,))]
            assert_close(states, encoder.forward(pack([row]), alone))


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_methods_in_one_pass_have_the_gradients_they_have_alone(family: str) -> None:
    encoder = encoder_of(family)
    names = [n for n, m in ROUTED.items() if (n, family) not in REFUSED and m.places(encoder.shape)]
    stacks = [lively(METHODS[n], encoder, 1) for n in names]
    rows = [ROWS[2], ROWS[5]]

    def gradients(which: list[int]) -> list[Tensor]:
        leaves = [stacks[i].leaves() for i in which]
        groups = [group(METHODS[names[i]], encoder, leaves[at], 2 * at, (0,), (2,)) for at, i in enumerate(which)]
        encoder.forward(pack(rows * len(which)), groups, training=True).sin().sum().backward()
        return [torch.cat([t.grad.reshape(-1) for t in own.values() if t.grad is not None]) for own in leaves]

    together = gradients(list(range(len(names))))
    for i, found in enumerate(together):
        assert_close(found, gradients([i])[0], 1e-4)


# ---- methods that train weights of the base itself


def own_weights(method: Any, encoder: Encoder, noise: Noise | None = None, scale: float = 0.0) -> Any:
    """The first phase's leaves (`scale` away from the start) and the weights they give."""
    phase = method.phases(encoder.shape)[0]
    slots = Slots(phase.specs, 1)
    slots.put(0, start(phase.specs, encoder, 0))
    draw = torch.Generator().manual_seed(3)
    if scale:
        slots.buffer.add_(scale * torch.randn(slots.buffer.shape, generator=draw))
        for name, view in slots.tensors.items():
            if name.startswith(("gate.", "group.")):
                view.uniform_(0.2, 1.2, generator=draw)  # half open: no gradient is cut off
    leaves = {k: v[0].requires_grad_() for k, v in slots.tensors.items()}
    return leaves, method.weights(phase.name, encoder.shape, leaves, {}, encoder.weights, noise)


@torch.no_grad()
@pytest.mark.parametrize(("name", "family"), pairs(CHANGING))
def test_untrained_weights_are_the_base_and_leave_no_trace(name: str, family: str) -> None:
    encoder, method = encoder_of(family), CHANGING[name]
    plain = encoder.forward(pack(ROWS))
    _, weights = own_weights(method, encoder, Noise([0, 0], encoder.device))
    assert all(torch.equal(tensor, encoder.weights[parameter]) for parameter, tensor in weights.items())
    assert_close(encoder.forward(pack(ROWS), weights=weights), plain, 1e-5)
    _, weights = own_weights(method, encoder, scale=0.1)
    changed = encoder.forward(pack(ROWS), weights=weights)
    assert_close(encoder.forward(pack(ROWS), weights=weights, padded=True), changed)
    assert not torch.allclose(changed, plain, atol=1e-2)
    assert torch.equal(encoder.forward(pack(ROWS)), plain)
    encoder.check_frozen()


@pytest.mark.parametrize(("name", "family"), pairs(CHANGING))
def test_gradients_reach_exactly_the_parameters_that_are_trained(name: str, family: str) -> None:
    encoder = encoder_of(family)
    method: Any = CHANGING[name]
    leaves, weights = own_weights(method, encoder, scale=0.1)
    batch = pack(segments(LENGTHS, pairs=True))
    requires: list[bool] = []
    encoder.switchboard.on_layer_output = lambda h: requires.append(h.requires_grad)
    try:
        states = encoder.forward(batch, weights=weights, training=True)
    finally:
        encoder.switchboard.on_layer_output = None
    head_on_pooler(states, batch, encoder, weights).sin().sum().backward()
    trained = {w.name for w in method.trained(encoder.shape)}
    assert {k.partition(".")[2] for k in leaves} == trained == weights.keys()
    for tensor, leaf in leaves.items():
        assert leaf.grad is not None and (leaf.grad.any() or tensor.endswith(UNTRAINABLE)), tensor
    assert not any(p.requires_grad or p.grad is not None for p in encoder.model.parameters())
    layers = encoder.shape.layers
    assert requires == ([False] * (layers - 1) + [True] if name == "top" else [True] * layers)


def head_on_pooler(states: Tensor, batch: Batch, encoder: Encoder, weights: dict[str, Tensor]) -> Tensor:
    """Logits through the base's own pooler, where it has one."""
    head = Head(2, "pooler" if encoder.shape.pooler else "mean")
    draw = torch.Generator().manual_seed(1)
    tensors = {k: torch.randn(s.shape, generator=draw) for k, s in head.tensors(encoder.shape).items()}
    instead = pooler_instead(encoder, {}, weights)
    rows = head.logits(tensors, pool(states, batch, head.pooling), encoder, pooler=instead)
    return torch.cat([rows.reshape(-1), states.reshape(-1)])


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_full_fine_tuning_has_the_gradients_of_the_plain_model(family: str) -> None:
    encoder, model = encoder_of(family), plain_model(family)
    leaves, weights = own_weights(Full(), encoder)
    rows = segments(LENGTHS, pairs=encoder.family.token_types)
    encoder.forward(pack(rows), weights=weights).sin().sum().backward()
    longest = max(LENGTHS)
    ids = torch.full((len(rows), longest), model.config.pad_token_id)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n], mask[i, :n], types[i, :n] = torch.tensor(row.ids), 1, torch.tensor(row.types)
    inputs = {"token_type_ids": types} if encoder.family.token_types else {}
    states = model(input_ids=ids, attention_mask=mask, **inputs).last_hidden_state[mask.bool()]
    states.sin().sum().backward()
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found = leaves[f"base.{name}"].grad
        assert_close(torch.zeros_like(parameter) if found is None else found, expected, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("method", [LotteryTicket(0.02), DiffPruning(0.02)], ids=lambda m: m.name)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_sparse_difference_of_zeros_is_the_base(family: str, method: Any) -> None:
    encoder = encoder_of(family)
    shape, count = encoder.shape, method.count(encoder.shape)
    available = sum(w.size for w in method.trained(shape))
    kept = {"index": torch.randperm(available, generator=torch.Generator().manual_seed(0))[:count].sort()[0]}
    last, zeros = method.phases(shape)[-1].name, {"values": torch.zeros(count)}
    weights = method.weights(last, shape, zeros, kept, encoder.weights)
    assert weights and all(torch.equal(tensor, encoder.weights[name]) for name, tensor in weights.items())
    assert_close(encoder.forward(pack(ROWS), weights=weights), encoder.forward(pack(ROWS)), 1e-5)
