"""Numbers formatted for people: counts, scores, bytes and durations."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """A count with thousands separators: 1234567 → 1,234,567."""
    return f"{value:,.0f}"


def score(value: float, bound_of: float | None = None) -> str:
    """A score times 100, as papers print it: 0.876 → 87.6.

    Scores below 0.01 (likelihoods can be that small) get two significant digits. `bound_of`: `value` is a bound of
    this score and gets as many digits.
    """
    size = abs(value if bound_of is None else bound_of)
    digits = 1 if size >= 0.01 or size == 0 else 1 - math.floor(math.log10(100 * size))
    return f"{100 * value:.{digits}f}"


def size(count: float) -> str:
    """A number of bytes with a unit: 1234567 → 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def seconds(value: float) -> str:
    """A duration: 45 → 45s, 125 → 2m05s, 3700 → 1h01m."""
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
