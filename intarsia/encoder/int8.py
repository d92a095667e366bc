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

from intarsia.encoder import pass_threads
from intarsia.errors import PrecisionError

SERVES_ONLY = "an int8 base serves only, and computes no gradients. Train in float32: omit the precision."
LEVELS = 127  # of each sign
MIDDLE = 128  # the byte that stands for 0
_ROUNDING = 1.5 * 2**23  # a float32 of this size has no fraction bits: adding it rounds to the nearest integer
_ELEMENTS = 1 << 19  # of the input or output of one product: its buffers (2 MB) stay in the cache
_VIEWS = 256  # shapes of buffers that are kept
_LEAST = 1e-30  # the largest magnitude of a token that is all 0


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """One or more weights that read the same input, quantized and laid out for the processor."""

    laid_out: Tensor
    scales: Tensor  # [out]
    zeros: Tensor  # [out]
    biases: tuple[Tensor, ...]  # one for each weight, [out of the weight]
    widths: list[int]  # of the outputs of each weight

    @classmethod
    def of(cls, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> Int8Weight:
        """Quantize weights [out, in]."""
        quantized, scales = quantize_weight(torch.cat([weight.detach() for weight in weights]))
        return cls(
            torch.ops.onednn.qlinear_prepack(quantized, None),
            scales,
            torch.zeros(len(scales), dtype=torch.int32),
            tuple(
                weight.new_zeros(len(weight)) if bias is None else bias.detach()
                for weight, bias in zip(weights, biases, strict=True)
            ),
            [len(weight) for weight in weights],
        )


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight [out, in] in int8, to the nearest of 255 values in each row, and the scale of each row."""
    largest = weight.abs().amax(1)
    scales = torch.where(largest > 0, largest / LEVELS, 1.0)
    return (weight / scales[:, None]).round_().clamp_(-LEVELS, LEVELS).to(torch.int8), scales


class Int8Linears:
    """The int8 products of one encoder, with the buffers that all its layers share. Passes run one at a time."""

    def __init__(self) -> None:
        self._floats = torch.empty(0)
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._views: dict[torch.Size, tuple[Tensor, Tensor]] = {}  # of the two buffers, by shape
        self._rounding: dict[int, Tensor] = {}  # by width: adding it rounds, and moves 0 to 128

    def product(self, x: Tensor, weight: Int8Weight) -> list[Tensor]:
        """Return x W' + b for each weight that was quantized together: [.., out] of float32."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise PrecisionError(SERVES_ONLY)
        flat = x.reshape(-1, x.shape[-1])
        widths = weight.widths
        step = max(1, _ELEMENTS // max(flat.shape[1], sum(widths)))
        if len(flat) <= step:
            outputs = self._part(flat, weight, None)
        else:
            outputs = [torch.empty(len(flat), width) for width in widths]
            for start in range(0, len(flat), step):
                part = slice(start, start + step)
                self._part(flat[part], weight, [output[part] for output in outputs])
        return [output.view(*x.shape[:-1], output.shape[1]) for output in outputs]

    def _part(self, x: Tensor, weight: Int8Weight, outputs: list[Tensor] | None) -> list[Tensor]:
        """Return the product of each weight with x [n, in], in `outputs` if they are given."""
        tokens, scales = self._quantize(x)
        product = pass_threads.product(
            2.0 * x.numel() * len(weight.scales),
            torch.ops.onednn.qlinear_pointwise,
            tokens, 1.0, MIDDLE, weight.laid_out, weight.scales, weight.zeros, None, 1.0, 0, torch.float32, "none",
            [], "",
        )  # fmt: skip
        if len(weight.biases) == 1:
            return [torch.addcmul(weight.biases[0], product, scales, out=product if outputs is None else outputs[0])]
        parts = product.split(weight.widths, 1)
        if outputs is None:
            return [torch.addcmul(bias, part, scales) for bias, part in zip(weight.biases, parts, strict=True)]
        every = zip(weight.biases, parts, outputs, strict=True)
        return [torch.addcmul(bias, part, scales, out=output) for bias, part, output in every]

    def _quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [n, in] as bytes (in a buffer, valid until the next call) and the scale of each token [n, 1]."""
        floats, tokens = self._buffers(x.shape)
        scales = torch.abs(x, out=floats).amax(1, keepdim=True).clamp_(min=_LEAST).div_(LEVELS)
        rounding = self._rounding.get(x.shape[1])
        if rounding is None:
            # A whole row, because addcmul with a single number does not use vector instructions.
            rounding = self._rounding[x.shape[1]] = torch.full((1, x.shape[1]), _ROUNDING + MIDDLE)
        torch.addcmul(rounding, x, scales.reciprocal(), out=floats)
        tokens.copy_(floats.view(torch.int32))  # the lowest byte of each number
        return tokens, scales

    def _buffers(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Return a float32 and a byte buffer of this shape."""
        found = self._views.get(shape)
        if found is None:
            count = shape.numel()
            if self._bytes.numel() < count:
                self._floats, self._bytes = torch.empty(count), torch.empty(count, dtype=torch.uint8)
                self._views.clear()
            if len(self._views) >= _VIEWS:
                self._views.clear()
            found = self._views[shape] = self._floats[:count].view(shape), self._bytes[:count].view(shape)
        return found
