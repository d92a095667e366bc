"""Values formatted for people: counts, scores, bytes, durations, and texts of files for a terminal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

# What a terminal obeys or hides: control characters (escape sequences begin with one), marks that change the direction
# of the text around them, and halves of surrogate pairs. Line ends and tabs stay.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey: unprintable characters become escapes such as \\x1b."""
    return UNPRINTABLE.sub(_escape, text)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON with unescaped non-ASCII characters, except those that a terminal would obey."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


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
