"""Numbers formatted for people: counts, scores, bytes and durations."""

from __future__ import annotations

import math
from collections.abc import Sequence


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


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first names, for a message: a, b, c … (100,000 in all)."""
    shown = ", ".join(name if len(name) <= 100 else f"{name[:100]}…" for name in names[:most])
    return shown + (f" … ({len(names):,} in all)" if len(names) > most else "")


def shown(value: object, most: int = 200) -> str:
    """The beginning of a value's `repr`, for a message: a value from a file can have any length."""
    try:
        text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}…"
