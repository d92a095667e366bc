"""Numbers as people read them: counts, scores, bytes and durations."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """1234567 → 1,234,567."""
    return f"{value:,.0f}"


def score(value: float, bound_of: float | None = None) -> str:
    """Times 100, as the papers give them: 0.876 → 87.6. Small ones, as likelihoods can be, have two digits that count;
    a bound has as many as what it is a bound of."""
    size = abs(value if bound_of is None else bound_of)
    digits = 1 if size >= 0.01 or size == 0 else 1 - math.floor(math.log10(100 * size))
    return f"{100 * value:.{digits}f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def seconds(value: float) -> str:
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
