"""Rows of many inlays in one pass: mixed equals separate, and nothing crosses between rows."""

from __future__ import annotations

import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import Slots, start
from intarsia.methods import Bottleneck, Spec
from tests.support.families import FAMILY_NAMES, tiny
from tests.support.segments import segments

LENGTHS = [4, 9, 1, 30, 12, 7, 3]


def stack(encoder: Encoder, method: Bottleneck, count: int) -> Slots:
    specs = method.tensors(encoder.shape)
    slots = Slots(specs, count)
    for slot in range(count):
        slots.put(slot, {k: v + 0.1 * torch.randn(v.shape) for k, v in start(specs, encoder, slot).items()})
    return slots


def group(encoder: Encoder, method: Bottleneck, slots: Slots, first: int, who: tuple[int, ...], rows: tuple[int, ...]):  # type: ignore[no-untyped-def]
    return Group(method, method.places(encoder.shape), slots.tensors, first, who, rows)


@pytest.mark.parametrize("variant", [{}, {"parallel": True}, {"layers": (1,)}, {"inner_norm": "batch"}], ids=str)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_mixed_and_separate_passes_agree(family: str, variant: dict[str, object]) -> None:
    torch.manual_seed(0)
    encoder = tiny(family)
    small, large = Bottleneck(4, **variant), Bottleneck(8)  # type: ignore[arg-type]
    a, b = stack(encoder, small, 3), stack(encoder, large, 2)
    rows = segments(LENGTHS, pairs=False)
    # rows 0-1: small in slot 2; row 2: small in slot 0; row 3: the plain base; rows 4-6: large in slots 1, 0, 0
    owners = [(small, a, 2)] * 2 + [(small, a, 0), None, (large, b, 1), (large, b, 0), (large, b, 0)]
    groups = [group(encoder, small, a, 0, (2, 0), (2, 1)), group(encoder, large, b, 4, (1, 0), (1, 2))]
    with torch.no_grad():
        for padded in (False, True):
            mixed = encoder.forward(pack(rows), groups, padded=padded).split(LENGTHS)
            for row, owner, states in zip(rows, owners, mixed, strict=True):
                alone = [] if owner is None else [group(encoder, owner[0], owner[1], 0, (owner[2],), (1,))]
                assert (encoder.forward(pack([row]), alone) - states).abs().max() <= 2e-5


def test_a_row_never_influences_another() -> None:
    encoder = tiny("bert")
    method = Bottleneck(4)
    slots = stack(encoder, method, 2)
    rows = segments(LENGTHS, pairs=False)
    groups = [group(encoder, method, slots, 0, (0, 1), (3, 4))]
    with torch.no_grad():
        before = encoder.forward(pack(rows), groups).split(LENGTHS)
        slots.buffer[1].fill_(float("nan"))  # a broken neighbour
        after = encoder.forward(pack(rows), groups).split(LENGTHS)
    for i in range(3):
        assert torch.equal(before[i], after[i])
    assert all(after[i].isnan().all() for i in range(3, 7))


def test_gradients_cannot_cross_between_owners() -> None:
    encoder = tiny("bert")
    method = Bottleneck(4)
    slots = stack(encoder, method, 3)
    leaves = slots.leaves()
    rows = segments(LENGTHS, pairs=False)
    groups = [Group(method, method.places(encoder.shape), leaves, 0, (2, 0), (3, 4))]
    states = encoder.forward(pack(rows), groups).split(LENGTHS)
    gradient = slots.gradient(torch.cat(states[:3]).square().sum(), leaves)
    assert gradient[2].abs().sum() > 0
    assert not gradient[:2].any()


def test_owners_trained_together_get_the_gradients_they_get_alone() -> None:
    encoder = tiny("bert")
    encoder.model.double()
    method = Bottleneck(4)
    specs = method.tensors(encoder.shape)
    slots = Slots(specs, 2, dtype=torch.float64)
    slots.buffer.copy_(stack(encoder, method, 2).buffer)
    rows = segments(LENGTHS, pairs=False)

    def gradients(first: int, who: tuple[int, ...], counts: tuple[int, ...], which: slice) -> torch.Tensor:
        leaves = slots.leaves()
        made = Group(method, method.places(encoder.shape), leaves, first, who, counts)
        return slots.gradient(encoder.forward(pack(rows[which]), [made]).sin().sum(), leaves)

    together = gradients(0, (0, 1), (3, 4), slice(0, 7))
    assert torch.allclose(together[0], gradients(0, (0,), (3,), slice(0, 3))[0], rtol=0, atol=1e-12)
    assert torch.allclose(together[1], gradients(0, (1,), (4,), slice(3, 7))[1], rtol=0, atol=1e-12)


def test_below_the_lowest_trainable_place_there_is_no_backward() -> None:
    encoder = tiny("bert")
    method = Bottleneck(4, layers=(2,))
    slots = stack(encoder, method, 1)
    leaves = slots.leaves()
    seen: list[bool] = []
    encoder.model.encoder.layer[1].register_forward_hook(lambda m, a, out: seen.append(out.requires_grad))
    rows = segments([5, 6], pairs=False)
    states = encoder.forward(pack(rows), [Group(method, method.places(encoder.shape), leaves, 0, (0,), (2,))])
    assert states.requires_grad and seen == [False]


@pytest.mark.parametrize("capacity", [1, 3])
def test_gradients_are_laid_out_as_the_buffer(capacity: int) -> None:
    specs = {
        "a": Spec((2, 3), "zeros"), "fixed": Spec((4,), "zeros", trained=False), "unread": Spec((2,), "zeros"),
        "b": Spec((5,), "zeros"),
    }  # fmt: skip
    slots = Slots(specs, capacity)
    slots.buffer.zero_()
    by_a = torch.arange(6.0 * capacity).view(capacity, 3, 2).transpose(1, 2).bfloat16()  # other strides, another type
    by_b = torch.arange(5.0 * capacity).view(capacity, 5) + 0.1
    laid = slots.laid_out(slots.leaves(), iter([by_a, None, by_b]))
    assert laid.dtype == torch.float32 and laid.shape == slots.buffer.shape
    found = slots.views(laid)
    assert torch.equal(found["a"], by_a.float()) and torch.equal(found["b"], by_b)
    assert not found["fixed"].any() and not found["unread"].any()
