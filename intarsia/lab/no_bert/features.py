"""Texts as numbers: n-grams, counted once and weighed in many ways, and how much the texts of a pair overlap."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import numpy as np

from intarsia.lab.no_bert.candidates import LONGEST, Features, View
from intarsia.tasks.examples import Example, TaskData

WORD = re.compile(r"\w+|[^\w\s]")  # unlike scikit-learn's, keeps punctuation and words of one letter
MOST_FEATURES = 100_000  # a view; the most frequent n-grams are kept
KEPT_READINGS = 3  # matrices are kept for so many ways of reading


class Corpus:
    """The parts as counts of n-grams, each counted once. Vocabularies come from train alone."""

    def __init__(self, data: TaskData, seed: int) -> None:
        self.data, self.seed = data, seed
        self.sides = 2 if data.pairs else 1
        self._vectorizers: dict[View, Any] = {}
        self._counts: dict[tuple[View, str], Any] = {}
        self._readings: dict[Features, Reading] = {}
        self._overlaps: dict[str, np.ndarray] = {}
        self.rarity: dict[str, float] = {}  # of words, for the overlap of pairs

    def counts(self, view: View, part: str) -> Any:
        """[sides * n, f]: the first texts, then the second ones."""
        from sklearn.feature_extraction.text import CountVectorizer

        if (view, part) not in self._counts:
            examples: list[Example] = getattr(self.data, part)
            texts = [e.text for e in examples] + [e.pair or "" for e in examples] * (self.sides - 1)
            if part == "train":
                options = {"token_pattern": WORD.pattern} if view == "word" else {"analyzer": "char_wb"}
                shortest = 1 if view == "word" else 2
                self._vectorizers[view] = CountVectorizer(
                    ngram_range=(shortest, LONGEST[view]), max_features=MOST_FEATURES, **options
                )
                self._counts[view, part] = self._vectorizers[view].fit_transform(texts)
            else:
                self.counts(view, "train")
                self._counts[view, part] = self._vectorizers[view].transform(texts)
        return self._counts[view, part]

    def columns(self, view: View, longest: int, least: int) -> np.ndarray:
        """The n-grams of at most that length, in at least so many texts of train."""
        frequency = self.counts(view, "train").getnnz(axis=0)
        names = self._vectorizers[view].get_feature_names_out()
        lengths = np.array([name.count(" ") + 1 if view == "word" else len(name) for name in names])
        return np.flatnonzero((frequency >= least) & (lengths <= longest))

    def overlap(self, part: str) -> np.ndarray:
        """[n, measures] of the pairs."""
        if not self.rarity:
            known = Counter(w for e in self.data.train for text in (e.text, e.pair) for w in set(_words(text or "")))
            texts = 2 * len(self.data.train)
            self.rarity = {w: math.log((1 + texts) / (1 + count)) + 1 for w, count in known.items()}
            self.rarity[""] = math.log(1 + texts) + 1  # of words that train does not have
        if part not in self._overlaps:
            examples: list[Example] = getattr(self.data, part)
            self._overlaps[part] = np.array([_overlap(e.text, e.pair or "", self.rarity) for e in examples])
        return self._overlaps[part]

    def reading(self, features: Features) -> Reading:
        """The fitted way of reading, kept for the next candidates that read alike."""
        if features not in self._readings:
            while len(self._readings) >= KEPT_READINGS:
                del self._readings[next(iter(self._readings))]
            self._readings[features] = Reading(features, self)
        return self._readings[features]


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _overlap(first: str, second: str, rarity: dict[str, float]) -> list[float]:
    """Lengths; shared and unshared words, counted and weighed; cosine of tf-idf; letters, word pairs and numbers."""
    a, b = Counter(_words(first)), Counter(_words(second))
    weight = {w: rarity.get(w, rarity[""]) for w in a | b}
    shared, only_a, only_b = a.keys() & b.keys(), a.keys() - b.keys(), b.keys() - a.keys()
    heavy, heavy_a, heavy_b = (sum(weight[w] for w in sorted(some)) for some in (shared, only_a, only_b))
    square_a, square_b = (sum((n * weight[w]) ** 2 for w, n in some.items()) for some in (a, b))
    dot = sum(a[w] * b[w] * weight[w] ** 2 for w in sorted(shared))
    pieces_a, pieces_b = ({text[i : i + 3] for i in range(len(text) - 2)} for text in (first.lower(), second.lower()))
    two_a, two_b = (set(zip(words, words[1:], strict=False)) for words in (_words(first), _words(second)))
    numbers_a, numbers_b = ({w for w in some if w.isdecimal()} for some in (a, b))
    length_a, length_b = a.total(), b.total()
    return [
        math.log1p(length_a),
        math.log1p(length_b),
        abs(math.log((1 + length_a) / (1 + length_b))),
        len(shared),
        len(only_a),
        len(only_b),
        len(shared) / max(1, len(a | b)),
        len(shared) / max(1, len(a)),
        len(shared) / max(1, len(b)),
        heavy / max(1e-9, heavy + heavy_a),
        heavy / max(1e-9, heavy + heavy_b),
        max((weight[w] for w in only_b), default=0.0),
        dot / max(1e-9, math.sqrt(square_a * square_b)),
        len(pieces_a & pieces_b) / max(1, len(pieces_a | pieces_b)),
        len(pieces_a & pieces_b) / max(1, len(pieces_b)),
        len(two_a & two_b) / max(1, len(two_b)),
        len(numbers_b - numbers_a),
        len(numbers_a - numbers_b),
    ]


class Reading:
    """One way of reading, fitted on train; then the matrix [n, f] of any part."""

    def __init__(self, features: Features, corpus: Corpus) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.preprocessing import StandardScaler

        self.features, self.corpus = features, corpus
        longest = features.longest or tuple(LONGEST[view] for view in features.views)
        self.columns = {
            view: corpus.columns(view, n, features.least) for view, n in zip(features.views, longest, strict=True)
        }
        plain = {} if features.weighting == "tf-idf" else {"use_idf": False, "norm": None}
        self.weights = {
            view: TfidfTransformer(sublinear_tf=True, **plain).fit(corpus.counts(view, "train")[:, columns])
            for view, columns in self.columns.items()
        }
        self.svd = self.scale = self.overlap_scale = None
        if features.components:
            grams = self._grams("train")
            self.svd = TruncatedSVD(min(features.components, *(n - 1 for n in grams.shape)), random_state=corpus.seed)
            self.scale = StandardScaler().fit(self._combined(self.svd.fit_transform(grams)))
        if features.overlap:
            self.overlap_scale = StandardScaler().fit(corpus.overlap("train"))
        self._matrices: dict[str, Any] = {}

    def matrix(self, part: str) -> Any:
        from scipy import sparse

        if part not in self._matrices:
            blocks = []
            if self.svd is not None and self.scale is not None:
                blocks.append(self.scale.transform(self._combined(self.svd.transform(self._grams(part)))))
            elif self.columns:
                blocks.append(self._combined(self._grams(part)))
            if self.overlap_scale is not None:
                blocks.append(self.overlap_scale.transform(self.corpus.overlap(part)))
            wide = sparse.issparse(blocks[0])
            self._matrices[part] = sparse.hstack(blocks, "csr") if wide else np.hstack(blocks).astype(np.float32)
        return self._matrices[part]

    def parameters(self) -> int:
        """Fitted numbers: inverse document frequencies, components, means and scales."""
        count = sum(len(w.idf_) for w in self.weights.values() if w.use_idf)
        count += len(self.corpus.rarity) if self.features.overlap else 0
        count += 0 if self.svd is None else self.svd.components_.size
        return count + sum(2 * s.mean_.size for s in (self.scale, self.overlap_scale) if s is not None)

    def _grams(self, part: str) -> Any:
        from scipy import sparse

        blocks = []
        for view, columns in self.columns.items():
            counts = self.corpus.counts(view, part)[:, columns]
            binary = self.features.weighting == "binary"
            blocks.append(counts.sign().astype(float) if binary else self.weights[view].transform(counts))
        return sparse.hstack(blocks, "csr")

    def _combined(self, grams: Any) -> Any:
        """The rows of first and second texts, [2n, f], as one row a pair."""
        from scipy import sparse

        if not self.features.pairing:
            return grams
        a, b = grams[: grams.shape[0] // 2], grams[grams.shape[0] // 2 :]
        if self.features.pairing == "sides":
            parts = [a, b]
        else:
            parts = [a.multiply(b) if sparse.issparse(a) else a * b, abs(a - b)]
        return sparse.hstack(parts, "csr") if sparse.issparse(a) else np.hstack(parts)
