"""Random numbers for the tensors of a job that is alone: a function of its seed, the call in the pass and the place."""

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
    """Numbers between 0 and 1, in float32, of the pass's first slot; `site` tells one call in a pass from another."""
    out = torch.empty(tuple(shape), device=layout.seeds.device)
    _uniform[(math.ceil(out.numel() / 1024),)](out, layout.seeds, site_of(site), out.numel(), 1024)
    return out
