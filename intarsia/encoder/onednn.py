"""Matrix products by oneDNN: float32 on CPUs, without gradients.

oneDNN rounds each row alike, however many rows and threads a product has. The matrix library of PyTorch does not, and
takes twice as long for some hundred rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import pass_threads

_STEPS = (1024, 64), (256, 32), (64, 8), (-1, 4)  # more rows than the first are rounded up to a multiple of the second
_ROWS = 512  # oneDNN chooses the layout for this number of rows; it works for other numbers too

# oneDNN and PyTorch each cache prepared products for 1,024 numbers of rows. Batch sizes vary, and few repeat. With 256
# entries the caches take 0.1 GB instead of 0.4 GB. Both libraries read these variables at first use.
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "256")


@cache
def available() -> bool:
    """Return whether oneDNN computes products on this machine, and can lay out weights in advance."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        weight, x = torch.eye(16), torch.arange(32.0).view(2, 16)
        return all(
            torch.equal(torch.ops.mkldnn._linear_pointwise(x, form, None, "none", [], ""), x)
            for form in (weight, laid_out(weight))
        )
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def laid_out(weight: Tensor) -> Tensor:
    """Return a weight [out, in] as the processor needs it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)


def size_for(rows: int) -> int:
    """Return the number of rows to compute in the place of `rows`, at least as many: one of few.

    The first product of a shape takes half a millisecond more than later ones, because oneDNN prepares it.
    """
    step = next(step for least, step in _STEPS if rows > least)
    return -(-rows // step) * step


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W' + b, x [n, in] → [n, out], by a product of one of few shapes."""
    rows = x.shape[0]
    size = size_for(rows)
    return product(x, weight, bias) if size == rows else product(_longer(x, size), weight, bias)[:rows]


def by_slices(
    x: Tensor, weights: Tensor, biases: Tensor | None, slots: Sequence[int], sizes: Sequence[int]
) -> list[Tensor]:
    """Return x W' + b for consecutive slices of x, each with the weight [out, in] and the bias of its slot.

    To have one of few shapes, a product also takes the rows after its slice, and leaves out what it gives for them.
    """
    outputs, start, rows = [], 0, x.shape[0]
    for slot, size in zip(slots, sizes, strict=True):
        wanted = size_for(size)
        piece = x.narrow(0, start, wanted) if start + wanted <= rows else _longer(x.narrow(0, start, size), wanted)
        out = product(piece, weights[slot], None if biases is None else biases[slot])
        outputs.append(out if wanted == size else out.narrow(0, 0, size))
        start += size
    return outputs


def _longer(x: Tensor, rows: int) -> Tensor:
    return F.pad(x, (0, 0, 0, rows - x.shape[0]))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W' + b, x [.., in] → [.., out]; the weight [out, in] is contiguous, transposed, or laid out."""
    if x.numel() == x.shape[-1]:  # a single row takes another kernel
        return product(torch.cat([x, x], -2), weight, bias)[..., :1, :]
    return pass_threads.product(2.0 * x.numel() * weight.shape[0], _product(), x, weight, bias, "none", [], "")


@cache
def _product() -> Any:
    return torch.ops.mkldnn._linear_pointwise.default
