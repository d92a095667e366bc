"""The table of what is exact, folded and refused, as it stands in docs/exchange.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.exchange.real.compare import LIMIT, Result

TITLES = {"import": "From {} into a bank", "export": "From a bank to {}"}


def table(results: Sequence[Result]) -> str:
    """Return a table for each library and direction: methods by families, with the reasons of what is refused."""
    parts = []
    for library, direction in dict.fromkeys((r.library, r.direction) for r in results):
        own = [r for r in results if (r.library, r.direction) == (library, direction)]
        parts.append(f"**{TITLES[direction].format(library)}**\n\n{_one(own)}")
    return "\n\n".join(parts)


def _one(results: Sequence[Result]) -> str:
    families = list(dict.fromkeys(r.family for r in results))
    reasons: list[str] = []
    lines = ["| | " + " | ".join(families) + " |", "| --- |" + " --- |" * len(families)]
    for method in dict.fromkeys(r.method for r in results):
        cells = []
        for family in families:
            found = [r for r in results if (r.method, r.family) == (method, family)]
            cells.append(_cell(found, reasons))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    worst = max((r.difference for r in results if r.difference is not None), default=0.0)
    notes = [f"Largest difference: {worst:.1e} (limit {LIMIT:.0e})."]
    notes += [f"[{i}] {reason}" for i, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n\n" + "  \n".join(notes)


def _cell(found: Sequence[Result], reasons: list[str]) -> str:
    if not found:
        return "–"
    if any(r.failed for r in found):
        return "**differs**"
    refused = next((r.refused for r in found if r.refused), "")
    if refused:
        reason = _general(refused)
        if reason not in reasons:
            reasons.append(reason)
        return f"refused [{reasons.index(reason) + 1}]"
    return "folded" if any(r.folded for r in found) else "exact"


def _general(reason: str) -> str:
    """Return the sentence of a message that gives the reason, without the sentences on what to do."""
    return " ".join(reason.split(". ")[0].split()).rstrip(".") + "."


def write(page: Path, results: Sequence[Result], versions: str) -> None:
    """Put the tables into the page, between its two marks."""
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- exchange -->", "<!-- /exchange -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not after:
        raise SystemExit(f"{page} must contain {begin} and {end}")
    body = f"{begin}\n{versions}\n\n{table(results)}\n{end}"
    page.write_text(before + body + after, encoding="utf-8")
