"""Functions of a CPU without gradients whose values for one row do not depend on the other rows, bit for bit.

The matrix library takes other kernels for few rows, and PyTorch computes the last few elements of a tensor by other
code than the rest; both round differently. These functions pad instead, so that an answer is the same alone, in any
batch, and beside any other task.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder import onednn

ROWS = 16  # matrix products of at least this many rows round alike, without oneDNN
OUTPUTS = 2  # the same for output columns: one column takes a matrix-vector kernel
VECTOR = 32  # elements that the vectorised code of PyTorch takes at a time: two registers of 16
GRAIN = 32768  # elements from which PyTorch splits an element-wise function among threads


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W' + b, x [.., in] → [.., out]."""
    rows, outputs = x.numel() // max(1, x.shape[-1]), weight.shape[0]
    if not _applies(x, weight, *([] if bias is None else [bias])) or not rows:
        return F.linear(x, weight, bias)
    if outputs < OUTPUTS:
        weight, bias = torch.cat([weight, weight]), None if bias is None else torch.cat([bias, bias])
    flat = x.reshape(rows, x.shape[-1])
    if by_onednn(x, weight):
        out = onednn.linear(flat, weight, bias)
    elif rows >= ROWS and outputs >= OUTPUTS:
        return F.linear(x, weight, bias)
    else:
        out = F.linear(at_least(flat, ROWS), weight, bias)[:rows]
    return out[:, :outputs].contiguous().view(*x.shape[:-1], outputs)  # element-wise functions round views otherwise


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN computes x W', without gradients. Weights with few outputs take other kernels."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.shape[0] >= OUTPUTS
        and (weight.is_contiguous() or weight.t().is_contiguous())
        and onednn.available()
    )


def at_least(x: Tensor, rows: int) -> Tensor:
    """Return x [n, width] with zeros for the rows that it lacks."""
    return x if x.shape[0] >= rows else F.pad(x, (0, 0, 0, rows - x.shape[0]))


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return an element-wise function of `x`."""
    count = x.numel()
    if not _applies(x) or not count:
        return function(x)
    unit = VECTOR * min(torch.get_num_threads(), -(-count // GRAIN))
    if count % unit == 0:
        return function(x)
    padded = x.new_zeros(-(-count // unit) * unit)
    padded[:count] = x.reshape(-1)
    return function(padded)[:count].view(x.shape)


def _applies(*tensors: Tensor) -> bool:
    return tensors[0].device.type == "cpu" and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
