"""Random numbers as a hash of (seed, site, index). Forward and backward get the same ones, and nothing is stored."""

from __future__ import annotations

import math

import triton
import triton.language as tl


@triton.jit
def mixed(x):
    """A 32-bit integer hash with low bias."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def bits(seed, site, index):
    """32 random bits.

    Seed and site are hashed well, once. The part for each element is only a few operations, because kernels compute it
    for every element, some of them twice.
    """
    start = mixed(mixed(seed.to(tl.uint32)) + site)
    x = (index.to(tl.uint32) ^ start) * 0x9E3779B1
    x ^= x >> 15
    return x * 0x85EBCA6B


@triton.jit
def fraction(x):
    """A number between 0 and 1 from 23 of the bits: the middle of one of 2^23 steps, which is exact in float32."""
    return ((x >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def kept(seed, site, index, limit):
    """True with probability 1 - limit / 2^32."""
    return bits(seed, site, index) >= limit


def limit_of(p: float) -> int:
    """The limit for `kept` that drops with probability p."""
    return math.ceil(p * 2.0**24) << 8


def site_of(number: int) -> int:
    """The number of a call in a pass, spread over 32 bits (signed)."""
    spread = (number + 1) * 0x9E3779B9 % 2**32
    return spread - 2**32 if spread >= 2**31 else spread
