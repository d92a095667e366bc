"""An explanation for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from intarsia.cli.console import table
from intarsia.formatting import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.serve.explanation import Explanation

SHOWN, WIDTH = 10, 24  # words of a table, characters of a bar


def explanation_parts(found: Explanation) -> list[RenderableType]:
    """Return an explanation for the terminal: the coloured text, and the words with the largest effects."""
    parts: list[RenderableType] = [
        f"{found.task}: {found.named} ({found.unit} {found.value:+.2f}, by {found.by})",
        _coloured(found, "text", found.text),
    ]
    if found.pair is not None:
        parts.append(_coloured(found, "pair", found.pair))
    occluded = found.by == "occlusion"
    rows: list[list[str | Text]] = [
        [
            word.word if found.pair is None else f"{word.word} ({word.field})",
            _bar(word.effect / found.largest if found.largest else 0.0),
            f"{word.effect:+.3f}",
            *([f"{word.without:.4f}"] if word.without is not None else []),
        ]
        for word in found.strongest(SHOWN)
    ]
    columns = ["word", "", "effect", *(["without it"] if occluded else [])]
    parts += ["", table(columns, rows, left=2)]
    if len(found.words) > SHOWN:
        parts.append(f"… and {len(found.words) - SHOWN} words with smaller effects")
    if found.unread:
        parts.append(f"{found.unread} words are beyond the task's maximum length and were not read.")
    if (
        found.error is not None
        and found.baseline is not None
        and abs(found.error) > abs(0.05 * (found.value - found.baseline))
    ):
        parts.append(f"The effects are rough: their sum is off by {found.error:+.3f}.")
    return parts


def _coloured(found: Explanation, field: str, text: str) -> Text:
    drawn, at = Text(), 0
    for word in (w for w in found.words if w.field == field):
        drawn.append(printable(text[at : word.start]))
        share = abs(word.effect) / found.largest if found.largest else 0.0
        colour = "green" if word.effect > 0 else "red"
        style = f"bold reverse {colour}" if share > 0.5 else colour if share > 0.15 else ""
        drawn.append(printable(text[word.start : word.end]), style=style)
        at = word.end
    drawn.append(printable(text[at:]))
    return drawn


def _bar(share: float) -> Text:
    return Text("█" * max(1, round(WIDTH * abs(share))), style="green" if share > 0 else "red") if share else Text("")
