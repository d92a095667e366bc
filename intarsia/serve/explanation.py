"""What an explanation says: how much each word of a text carried the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

By = Literal["occlusion", "gradients"]

STYLE = """body{font:16px/1.6 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
.words span{border-radius:.2em;padding:.05em 0}.fact{color:#555;font-size:85%}
table{border-collapse:collapse;font-size:90%}td,th{padding:.1em .8em .1em 0;text-align:left}td.n{text-align:right}"""
FOR, AGAINST = (46, 160, 67), (207, 34, 46)  # green and red


@dataclass(frozen=True)
class WordEffect:
    """One word, and how much it carried the answer."""

    word: str
    start: int  # the word's first character in its text
    end: int
    effect: float  # above 0: the word speaks for the answer
    without: float | None = None  # by occlusion: the probability (or the score) of the text without the word
    field: Literal["text", "pair"] = "text"


@dataclass(frozen=True)
class Explanation:
    """The words that carried one answer.

    `value` is what effects are measured in: the log odds of the label's probability, or the score. By occlusion, an
    effect is `value` minus the value of the text without the word. By gradients, it is the word's integrated gradient:
    the effects and `rest` (special tokens and the like) add up to `value` minus `baseline`, but for `error`.
    """

    task: str
    version: int | None
    by: By
    label: str | None  # the label that is explained; None for a score
    answer: float  # the label's probability, or the score
    value: float
    text: str
    pair: str | None
    words: tuple[WordEffect, ...]  # in the order of the text
    unread: int = 0  # words beyond the task's maximum length
    baseline: float | None = None  # by gradients: the value where each token is the mask token
    rest: float = 0.0
    error: float | None = None
    steps: int | None = None  # by gradients: points on the path

    def __repr__(self) -> str:
        best = ", ".join(f"{w.word} {w.effect:+.3g}" for w in self.strongest(5))
        return f"Explanation({self.task!r}, {self.named}; by {self.by}: {best})"

    @property
    def named(self) -> str:
        """The answer in a few words."""
        return f"score {self.answer:.4g}" if self.label is None else f"{self.label} {self.answer:.4g}"

    @property
    def unit(self) -> str:
        return "score" if self.label is None else "log odds"

    @property
    def largest(self) -> float:
        return max((abs(word.effect) for word in self.words), default=0.0)

    def strongest(self, count: int) -> list[WordEffect]:
        """Return the words with the largest effects, of either sign."""
        return sorted(self.words, key=lambda word: -abs(word.effect))[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        known = {**asdict(self), "unit": self.unit, "words": [asdict(word) for word in self.words]}
        return {name: value for name, value in known.items() if value is not None}

    def _repr_html_(self) -> str:
        """Notebooks show this."""
        texts = [("text", self.text)] + ([] if self.pair is None else [("pair", self.pair)])
        drawn = "".join(f'<p class="words">{self._coloured(field, text)}</p>' for field, text in texts)
        rows = "".join(
            f'<tr><td>{escape(w.word)}</td><td class="n">{w.effect:+.3f}</td>'
            + ("" if w.without is None else f'<td class="n">{w.without:.4f}</td>')
            + "</tr>"
            for w in self.strongest(10)
        )
        head = "<th>word</th><th>effect</th>" + ("<th>without it</th>" if self.by == "occlusion" else "")
        unread = f", {self.unread} words not read" if self.unread else ""
        return (
            f"<h3>{escape(self.task)}: {escape(self.named)}</h3>{drawn}"
            f'<p class="fact">effects in {self.unit}, by {self.by}{unread}</p>'
            f"<table><tr>{head}</tr>{rows}</table>"
        )

    def _coloured(self, field: str, text: str) -> str:
        parts, at = [], 0
        for word in (w for w in self.words if w.field == field):
            red, green, blue = FOR if word.effect > 0 else AGAINST
            share = abs(word.effect) / self.largest if self.largest else 0.0
            parts.append(escape(text[at : word.start]))
            parts.append(
                f'<span style="background:rgba({red},{green},{blue},{0.75 * share:.2f})" '
                f'title="{word.effect:+.4f}">{escape(text[word.start : word.end])}</span>'
            )
            at = word.end
        return "".join(parts) + escape(text[at:])


def page(explanations: list[Explanation]) -> str:
    """Return an HTML page that loads nothing."""
    parts = "\n".join(explanation._repr_html_() for explanation in explanations)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Explanations</title><style>{STYLE}</style>'
        f"<body>{parts}</body></html>\n"
    )
