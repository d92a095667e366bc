"""The written form of a composition: `stack(medical, pfeiffer-48 std=0.01)`, `fuse(a, stack(b, c), static=yes)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from intarsia.errors import IntarsiaError
from intarsia.methods.compose import DEEPEST

OPEN, CLOSE = "([", ")]"
OPTION = re.compile(r"\s*([A-Za-z_]+)\s*=\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Expression:
    """A name with options (KEY=VALUE), and the parts of a composition; None: a method or a task."""

    name: str
    options: tuple[str, ...] = ()
    parts: tuple[Expression, ...] | None = None


def read(text: str, levels: int = DEEPEST + 1) -> Expression:
    """Return what a text says. A list in an option stands in brackets where commas separate parts: `layers=[0,2]`."""
    if levels == 0:
        raise IntarsiaError(f"compositions are nested more than {DEEPEST} levels deep.")
    name, opened, rest = text.strip().partition("(")
    if not opened:
        words = [*separated(name, " ")]
        if not words:
            raise IntarsiaError("a part of the composition is empty; expected a method such as pfeiffer-48, or a task.")
        return Expression(words[0], tuple(map(_bare, words[1:])))
    inside, after = _until_closed(text, rest)
    parts, options = [], [_bare(word) for word in separated(after, " ")]
    for part in separated(inside, ","):
        found = OPTION.fullmatch(part)
        if found is not None:
            options.append(_bare(f"{found[1]}={found[2].strip()}"))
        else:
            parts.append(read(part, levels - 1))
    return Expression(name.strip(), tuple(options), tuple(parts))


def separated(text: str, mark: str) -> Iterator[str]:
    """Yield the parts of a text between marks that are not inside parentheses or brackets; no empty words."""
    depth = first = 0
    for place, letter in enumerate(text + mark):
        depth += (letter in OPEN) - (letter in CLOSE)
        if letter == mark and (depth == 0 or place == len(text)):
            if (part := text[first:place].strip()) or (mark != " " and text.strip()):
                yield part
            first = place + 1


def _until_closed(whole: str, rest: str) -> tuple[str, str]:
    """Return what is before and after the parenthesis that closes."""
    depth = 1
    for place, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return rest[:place], rest[place + 1 :]
    raise IntarsiaError(f"{whole.strip()[:100]!r}: a closing parenthesis is missing.")


def _bare(option: str) -> str:
    """Return an option without the brackets around its value."""
    key, equals, value = option.partition("=")
    return f"{key}={value[1:-1]}" if equals and value[:1] == "[" and value[-1:] == "]" else option
