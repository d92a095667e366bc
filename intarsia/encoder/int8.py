"""Frozen linear layers in dynamic int8, for serving on CPUs.

A weight is quantized once, with a scale for each output channel. The input is quantized in every call, with a scale for
each token. The integer product is exact, so the output for a token does not depend on the other tokens of its pass.

Tokens are stored as unsigned bytes around 128, because processors multiply unsigned by signed bytes; oneDNN subtracts
the 128 again. Products of signed tokens run in oneDNN's reference code, which is 1,000 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.errors import PrecisionError

SERVES_ONLY = "an int8 base serves only, and computes no gradients. Train in float32: omit the precision."
LEVELS = 127  # of each sign
MIDDLE = 128  # the byte that stands for 0
_ROUNDING = 1.5 * 2**23  # a float32 of this size has no fraction bits: adding it rounds to the nearest integer
_ELEMENTS = 1 << 19  # of the input or output of one product: its buffers (2 MB) stay in the cache
_LEAST = 1e-30  # the largest magnitude of a token that is all 0


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """One or more weights that read the same input, quantized and laid out for the processor."""

    laid_out: Tensor
    scales: Tensor  # [out]
    zeros: Tensor  # [out]
    biases: tuple[Tensor, ...]  # one for each weight, [out of the weight]

    @classmethod
    def of(cls, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> Int8Weight:
        """Quantize weights [out, in], to the nearest of 255 values in each row."""
        whole = torch.cat([weight.detach() for weight in weights])
        largest = whole.abs().amax(1)
        scales = torch.where(largest > 0, largest / LEVELS, 1.0)
        quantized = (whole / scales[:, None]).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
        return cls(
            torch.ops.onednn.qlinear_prepack(quantized, None),
            scales,
            torch.zeros(len(scales), dtype=torch.int32),
            tuple(
                weight.new_zeros(len(weight)) if bias is None else bias.detach()
                for weight, bias in zip(weights, biases, strict=True)
            ),
        )


class Int8Linears:
    """The int8 products of one encoder, with the buffers that all its layers share. Passes run one at a time."""

    def __init__(self) -> None:
        self._floats = torch.empty(0)
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._rounding: dict[int, Tensor] = {}  # by width: adding it rounds, and moves 0 to 128

    def product(self, x: Tensor, weight: Int8Weight) -> list[Tensor]:
        """Return x W' + b for each weight that was quantized together: [.., out] of float32."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise PrecisionError(SERVES_ONLY)
        flat = x.reshape(-1, x.shape[-1])
        widths = [len(bias) for bias in weight.biases]
        outputs = [torch.empty(len(flat), width) for width in widths]
        step = max(1, _ELEMENTS // max(flat.shape[1], sum(widths)))
        for start in range(0, len(flat), step):
            tokens, scales = self._quantize(flat[start : start + step])
            product = torch.ops.onednn.qlinear_pointwise(
                tokens, 1.0, MIDDLE, weight.laid_out, weight.scales, weight.zeros, None, 1.0, 0, torch.float32, "none",
                [], "",
            )  # fmt: skip
            parts = product.split(widths, 1) if len(widths) > 1 else (product,)
            for bias, part, output in zip(weight.biases, parts, outputs, strict=True):
                torch.addcmul(bias, part, scales, out=output[start : start + step])
        return [output.view(*x.shape[:-1], -1) for output in outputs]

    def _quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [n, in] as bytes (in a buffer, valid until the next call) and the scale of each token [n, 1]."""
        count, width = x.shape
        if self._bytes.numel() < x.numel():
            self._floats, self._bytes = torch.empty(x.numel()), torch.empty(x.numel(), dtype=torch.uint8)
        if width not in self._rounding:
            # A whole row, because addcmul with a single number does not use vector instructions.
            self._rounding[width] = torch.full((1, width), _ROUNDING + MIDDLE)
        floats, tokens = (buffer[: x.numel()].view(count, width) for buffer in (self._floats, self._bytes))
        largest = torch.maximum(x.amax(1, keepdim=True), x.amin(1, keepdim=True).neg_()).clamp_(min=_LEAST)
        torch.addcmul(self._rounding[width], x, LEVELS / largest, out=floats)
        tokens.copy_(floats.view(torch.int32))  # the lowest byte of each number
        return tokens, largest.div_(LEVELS)
