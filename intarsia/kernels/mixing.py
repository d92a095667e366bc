"""Random decisions as a function of (seed, site, index): the same on the way forward and back, nothing stored."""

from __future__ import annotations

import math

import triton
import triton.language as tl


@triton.jit
def mixed(x):
    """A 32-bit finaliser with low bias."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def bits(seed, site, index):
    """32 of them. The start is mixed well, once; an element's own part is few operations, since kernels decide on every
    element, some of them twice."""
    start = mixed(mixed(seed.to(tl.uint32)) + site)
    x = (index.to(tl.uint32) ^ start) * 0x9E3779B1
    x ^= x >> 15
    return x * 0x85EBCA6B


@triton.jit
def fraction(x):
    """Between 0 and 1, of 23 of the bits: in the middle of its step, which a float32 holds exactly."""
    return ((x >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def kept(seed, site, index, limit):
    """True with probability 1 - limit / 2^32."""
    return bits(seed, site, index) >= limit


def limit_of(p: float) -> int:
    return math.ceil(p * 2.0**24) << 8


def site_of(number: int) -> int:
    """A call's number in a pass, spread over 32 bits (signed)."""
    spread = (number + 1) * 0x9E3779B9 % 2**32
    return spread - 2**32 if spread >= 2**31 else spread
