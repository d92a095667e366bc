"""Checking what scikit-learn passes: texts or pairs of texts in X, and y of the same length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from intarsia.errors import DataError, IntarsiaError
from intarsia.tasks.requests import texts_of


class InvalidInput(IntarsiaError, ValueError):
    """A bad X, y or parameter. scikit-learn expects a `ValueError`."""


@contextmanager
def invalid_input() -> Iterator[None]:
    """Turn an `IntarsiaError` about a parameter into one that is a `ValueError` too."""
    try:
        yield
    except InvalidInput:
        raise
    except IntarsiaError as error:
        raise InvalidInput(str(error)) from error


def check_texts(X: Any) -> list[str | tuple[str, str]]:
    """The texts of X, or the pairs of texts."""
    if hasattr(X, "tocsr"):
        raise InvalidInput("X is a sparse matrix. Expected texts: a list, a Series, an array or a column of a frame.")
    try:
        found = texts_of(X, "label")
    except DataError as error:
        raise InvalidInput(f"X: {error}") from None
    if not found:
        raise InvalidInput("X has 0 texts, but a minimum of 1 is required.")
    return [_text(number, item) for number, item in enumerate(found, 1)]


def _text(number: int, item: Any) -> str | tuple[str, str]:
    parts = item if isinstance(item, list | tuple) else (item,)
    wrong = next((part for part in parts if not isinstance(part, str) or not part.strip()), None)
    if wrong is not None or len(parts) not in (1, 2) or None in parts:
        raise InvalidInput(
            f"X, text {number:,}: expected a text or a pair of texts, found {item!r:.60} ({type(item).__name__})."
        )
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def check_pairs(texts: Sequence[str | tuple[str, str]], pairs: bool | None = None) -> None:
    """Raise unless all texts are single, or all are pairs (as `pairs` says, if given)."""
    kinds = {isinstance(text, tuple) for text in texts}
    if len(kinds) > 1:
        raise InvalidInput("X has single texts and pairs of texts. Expected one or the other.")
    if pairs is not None and kinds != {pairs}:
        expected = "pairs of texts" if pairs else "single texts"
        raise InvalidInput(f"X: this estimator was fitted on {expected}. Give {expected}.")


def check_same_length(texts: Sequence[Any], y: Any) -> None:
    if len(texts) != len(y):
        raise InvalidInput(f"X has {len(texts):,} texts and y has {len(y):,} labels. Expected one label for each text.")
