"""The table of what is exact, folded and refused, as it stands in docs/exchange.md."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tests.exchange.real.compare import LIMIT, ROUNDING, Result

GENERAL = (  # names of one layer or module → what they stand for
    (r"'[^']*[./]\d+[./][^']*'( \([^)]*\))?", "a module"),
    (r"the layers \d+ and \d+ share the module [^,]*,", "layers share a module,"),
    (r"\b[\w.]+\.(safetensors|bin|json)\b", "the file"),
)
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
    nowhere: dict[str, list[str]] = {}  # reason → the methods that are refused for it in every family
    for method in dict.fromkeys(r.method for r in results):
        own = [r for r in results if r.method == method]
        same = {_general(r.refused) for r in own}
        if len(same) == 1 and "" not in same:
            nowhere.setdefault(same.pop(), []).append(method)
            continue
        cells = [_cell([r for r in own if r.family == family], reasons) for family in families]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    apart = [r.difference for r in results if r.difference is not None and (r.failed or r.difference <= LIMIT)]
    notes = [f"Largest difference: {max(apart, default=0.0):.1e} (limit {LIMIT:.0e})."]
    rounded = [r for r in results if r.difference is not None and r.difference > LIMIT and not r.failed]
    if rounded:
        named = ", ".join(sorted(f"{r.family} {r.method}" for r in rounded))
        worst = max(r.in_float64 for r in rounded if r.in_float64 is not None)
        own = max(r.difference / r.rounding for r in rounded if r.difference is not None)
        notes.append(
            f"Compared in float64 too: {named}. There the difference is {worst:.1e} at most (limit {LIMIT:.0e}); in "
            f"float32 it is at most {own:.1f} times that between the other library's float32 and its float64 (limit "
            f"{ROUNDING:.0f})."
        )
    notes += [f"({i}) {reason}" for i, reason in enumerate(reasons, 1)]
    notes += [f"Refused in every family: {', '.join(methods)}: {reason}" for reason, methods in nowhere.items()]
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {note}" for note in notes)


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
        return f"refused ({reasons.index(reason) + 1})"
    return "folded" if any(r.folded for r in found) else "exact"


def _general(reason: str) -> str:
    """Return a message without the names of single modules, and without the sentences on what to do."""
    first = re.split(r"\. |; the class for", " ".join(reason.split()))[0].rstrip(".")
    for pattern, general in GENERAL:
        first = re.sub(pattern, general, first)
    return first and first + "."


def versions(work: Path) -> str:
    """Return the versions of the libraries that wrote the cases."""
    cases = [json.loads(path.read_text()) for path in sorted(work.glob("*/read/*/case.json"))]
    named = {f"{name} {case[name]}" for case in cases for name in ("adapters", "peft", "transformers") if name in case}
    return ", ".join(sorted(named))


def write(page: Path, results: Sequence[Result], work: Path) -> None:
    """Put the tables into the page, between its two marks."""
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- exchange -->", "<!-- /exchange -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not after:
        raise SystemExit(f"{page} must contain {begin} and {end}")
    made = f"Written by `make test-exchange`: tiny models with random weights, float32; {versions(work)}."
    body = f"{begin}\n{made}\n\n{table(results)}\n{end}"
    page.write_text(before + body + after, encoding="utf-8")
