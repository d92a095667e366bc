"""Linear layers of the base: their own weights, or what stands for them in a pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from intarsia.encoder.frozen import FrozenLinear, Projections


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_stands_in_is_computed_with_and_known(name: str) -> None:
    """Also without a gradient, as when answering: a GPU's one product for query, key and value is of their own."""
    torch.manual_seed(0)
    linears = tuple(FrozenLinear(nn.Linear(16, 16).requires_grad_(False)) for _ in range(3))
    projections = Projections((linears[0], linears[1], linears[2]))
    seen: list[bool] = []
    linears[1].register_forward_pre_hook(lambda *_: seen.append(projections.ready()))
    x = torch.randn(5, 16)
    own = linears[1](x)
    other = {name: torch.randn_like(getattr(linears[1], name))}
    given = {"weight": linears[1].weight, "bias": linears[1].bias} | other
    with torch.no_grad():
        found = functional_call(linears[1], other, (x,))
    assert torch.allclose(found, nn.functional.linear(x, given["weight"], given["bias"]), atol=1e-5)
    assert torch.equal(linears[1](x), own) and seen == [True, False, True]
