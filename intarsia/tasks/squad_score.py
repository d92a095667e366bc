"""Exact match and F1 of answers as SQuAD's own evaluation programs compute them, versions 1.1 and 2.0."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """In lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predictions: str, gold: Sequence[str], *, v2: bool) -> float:
    """1 if it is one of the gold answers; no gold answer at all stands for the empty one."""
    return max(float(normalized(predictions) == normalized(one)) for one in _gold(gold, v2))


def f1(predictions: str, gold: Sequence[str], *, v2: bool) -> float:
    """The best F1 over words with any of the gold answers."""
    return max(_f1(predictions, one, v2) for one in _gold(gold, v2))


def _gold(gold: Sequence[str], v2: bool) -> Sequence[str]:
    """Version 2.0 leaves out gold answers of which nothing remains."""
    return ([one for one in gold if normalized(one)] if v2 else gold) or [""]


def _f1(predictions: str, gold: str, v2: bool) -> float:
    ours, theirs = normalized(predictions).split(), normalized(gold).split()
    if v2 and (not ours or not theirs):
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0
