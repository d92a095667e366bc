"""Both kinds of ownership say the same of who owns which token. Triton is not needed for that."""

from __future__ import annotations

import pytest
import torch

from intarsia.encoder.owners import Owners
from intarsia.encoder.ownership import Ownership
from intarsia.encoder.static_shape import DeviceOwners
from intarsia.kernels import Layout


def recorded(tiles: list[int], slots: int, align: int) -> DeviceOwners:
    table = torch.tensor(tiles, dtype=torch.int32)
    of_slots = torch.zeros(slots, dtype=torch.int32)
    return DeviceOwners(Layout(len(tiles) * align, align, table, of_slots, of_slots, table, table, 32, of_slots), {})


def test_the_owner_of_each_token() -> None:
    eager: Ownership = Owners((2, 0), (96, 32))
    static: Ownership = recorded([2, 2, 2, 0], 3, 32)
    assert torch.equal(eager.owner_of_token, static.owner_of_token)
    assert eager.owner_of_token.dtype == static.owner_of_token.dtype == torch.int64
    assert set(eager.slots) <= set(static.slots) == {0, 1, 2}


def test_a_bottleneck_drops_what_is_left_to_it() -> None:
    from intarsia.encoder.noise import Noise

    draw = torch.Generator().manual_seed(0)
    owners: Ownership = Owners((1, 0), (3, 2))
    shapes = {"a.down.weight": (4, 6), "a.down.bias": (4,), "a.up.weight": (6, 4), "a.up.bias": (6,)}
    tensors = {name: torch.randn(2, *shape, generator=draw) for name, shape in shapes.items()}
    h = torch.randn(5, 6, generator=draw)
    dropped = Noise([3], h.device).drop(h, 0.5)
    found = owners.bottleneck(h, h, tensors, "a", "gelu", 0.5, Noise([3], h.device))
    assert torch.equal(found, owners.bottleneck(dropped, dropped, tensors, "a", "gelu"))
    assert not torch.equal(found, owners.bottleneck(h, h, tensors, "a", "gelu"))


def test_what_a_recorded_pass_does_not_compute_says_so() -> None:
    with pytest.raises(RuntimeError, match="recordable"):
        recorded([0], 1, 32).batch_norm(torch.zeros(32, 4), {}, "a", True, 1e-5, 0.1)
