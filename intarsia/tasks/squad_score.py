"""Exact match and F1 of an answer, as in SQuAD's evaluation programs (versions 1.1 and 2.0)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """The text in lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, gold: Sequence[str], *, v2: bool) -> float:
    """1 if the prediction equals a gold answer, else 0. Without gold answers, the empty answer is the gold answer."""
    return max(float(normalized(predicted) == normalized(answer)) for answer in _gold(gold, v2))


def f1(predicted: str, gold: Sequence[str], *, v2: bool) -> float:
    """The best F1 over words with any of the gold answers."""
    return max(_f1(predicted, answer, v2) for answer in _gold(gold, v2))


def _gold(gold: Sequence[str], v2: bool) -> Sequence[str]:
    """The gold answers. Version 2.0 leaves out those that are empty after normalisation."""
    return ([answer for answer in gold if normalized(answer)] if v2 else gold) or [""]


def _f1(predicted: str, gold: str, v2: bool) -> float:
    """F1 over the words of two answers."""
    predicted_words, gold_words = normalized(predicted).split(), normalized(gold).split()
    if v2 and (not predicted_words or not gold_words):
        return float(predicted_words == gold_words)
    same = sum((Counter(predicted_words) & Counter(gold_words)).values())
    return 2 * same / (len(predicted_words) + len(gold_words)) if same else 0.0
