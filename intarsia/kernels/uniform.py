"""Random numbers for an exclusive job's tensors: a hash of its seed, the call in the pass and the element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from intarsia.kernels import Layout
from intarsia.kernels.mixing import bits, fraction, site_of


@triton.jit
def _uniform(out, seeds, site, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, fraction(bits(tl.load(seeds), site, index)), mask=index < count)


def uniform(shape: Sequence[int], site: int, layout: Layout) -> Tensor:
    """Numbers between 0 and 1 in float32, with the seed of the pass's first slot. `site` distinguishes the calls in a
    pass."""
    out = torch.empty(tuple(shape), device=layout.seeds.device)
    _uniform[(math.ceil(out.numel() / 1024),)](out, layout.seeds, site_of(site), out.numel(), 1024)
    return out
