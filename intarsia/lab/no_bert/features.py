"""Text features: n-grams, counted once and weighted in several ways, and overlap measures of text pairs."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import numpy as np

from intarsia.lab.no_bert.candidates import MAX_NGRAM, TextFeatures, View
from intarsia.tasks.examples import Example, TaskData

WORD = re.compile(r"\w+|[^\w\s]")  # unlike scikit-learn's pattern, keeps punctuation and one-letter words
MAX_FEATURES = 100_000  # the most frequent n-grams of each view
CACHED_EXTRACTORS = 3  # with their matrices


class Corpus:
    """The n-gram counts of all parts, computed once. Vocabularies come only from train."""

    def __init__(self, data: TaskData, seed: int) -> None:
        self.data, self.seed = data, seed
        self.sides = 2 if data.pairs else 1
        self._vectorizers: dict[View, Any] = {}
        self._counts: dict[tuple[View, str], Any] = {}
        self._extractors: dict[TextFeatures, FeatureExtractor] = {}
        self._overlaps: dict[str, np.ndarray] = {}
        self.idf: dict[str, float] = {}  # inverse document frequencies of words, for the overlap of pairs

    def counts(self, view: View, part: str) -> Any:
        """Return n-gram counts [sides * n, f]: the rows of all first texts, then of all second texts."""
        from sklearn.feature_extraction.text import CountVectorizer

        if (view, part) not in self._counts:
            examples: list[Example] = getattr(self.data, part)
            texts = [e.text for e in examples] + [e.pair or "" for e in examples] * (self.sides - 1)
            if part == "train":
                options = {"token_pattern": WORD.pattern} if view == "word" else {"analyzer": "char_wb"}
                shortest = 1 if view == "word" else 2
                self._vectorizers[view] = CountVectorizer(
                    ngram_range=(shortest, MAX_NGRAM[view]), max_features=MAX_FEATURES, **options
                )
                self._counts[view, part] = self._vectorizers[view].fit_transform(texts)
            else:
                self.counts(view, "train")
                self._counts[view, part] = self._vectorizers[view].transform(texts)
        return self._counts[view, part]

    def columns(self, view: View, longest: int, least: int) -> np.ndarray:
        """Return the indices of n-grams up to length `longest` that occur in at least `least` texts of train."""
        frequency = self.counts(view, "train").getnnz(axis=0)
        names = self._vectorizers[view].get_feature_names_out()
        lengths = np.array([name.count(" ") + 1 if view == "word" else len(name) for name in names])
        return np.flatnonzero((frequency >= least) & (lengths <= longest))

    def overlap(self, part: str) -> np.ndarray:
        """Return the overlap measures of the pairs, [n, measures]."""
        if not self.idf:
            frequencies = Counter(
                w for e in self.data.train for text in (e.text, e.pair) for w in set(_words(text or ""))
            )
            texts = 2 * len(self.data.train)
            self.idf = {w: math.log((1 + texts) / (1 + count)) + 1 for w, count in frequencies.items()}
            self.idf[""] = math.log(1 + texts) + 1  # for words that do not occur in train
        if part not in self._overlaps:
            examples: list[Example] = getattr(self.data, part)
            self._overlaps[part] = np.array([_overlap(e.text, e.pair or "", self.idf) for e in examples])
        return self._overlaps[part]

    def extractor(self, features: TextFeatures) -> FeatureExtractor:
        """Return the fitted extractor, from the cache if a recent candidate had the same features."""
        if features not in self._extractors:
            while len(self._extractors) >= CACHED_EXTRACTORS:
                del self._extractors[next(iter(self._extractors))]
            self._extractors[features] = FeatureExtractor(features, self)
        return self._extractors[features]


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _overlap(first: str, second: str, idf: dict[str, float]) -> list[float]:
    """Return the overlap measures of a pair.

    The measures are text lengths, shared and unshared words (counted and weighted by idf), the tf-idf cosine, and the
    overlap of character trigrams, word bigrams and numbers.
    """
    a, b = Counter(_words(first)), Counter(_words(second))
    weight = {w: idf.get(w, idf[""]) for w in a | b}
    shared, only_a, only_b = a.keys() & b.keys(), a.keys() - b.keys(), b.keys() - a.keys()
    shared_weight, only_a_weight, only_b_weight = (
        sum(weight[w] for w in sorted(words)) for words in (shared, only_a, only_b)
    )
    square_a, square_b = (sum((n * weight[w]) ** 2 for w, n in counts.items()) for counts in (a, b))
    dot = sum(a[w] * b[w] * weight[w] ** 2 for w in sorted(shared))
    trigrams_a, trigrams_b = (
        {text[i : i + 3] for i in range(len(text) - 2)} for text in (first.lower(), second.lower())
    )
    bigrams_a, bigrams_b = (set(zip(words, words[1:], strict=False)) for words in (_words(first), _words(second)))
    numbers_a, numbers_b = ({w for w in counts if w.isdecimal()} for counts in (a, b))
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
        shared_weight / max(1e-9, shared_weight + only_a_weight),
        shared_weight / max(1e-9, shared_weight + only_b_weight),
        max((weight[w] for w in only_b), default=0.0),
        dot / max(1e-9, math.sqrt(square_a * square_b)),
        len(trigrams_a & trigrams_b) / max(1, len(trigrams_a | trigrams_b)),
        len(trigrams_a & trigrams_b) / max(1, len(trigrams_b)),
        len(bigrams_a & bigrams_b) / max(1, len(bigrams_b)),
        len(numbers_b - numbers_a),
        len(numbers_a - numbers_b),
    ]


class FeatureExtractor:
    """One feature setting, fitted on train. It computes the matrix [n, f] of any part."""

    def __init__(self, features: TextFeatures, corpus: Corpus) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.preprocessing import StandardScaler

        self.features, self.corpus = features, corpus
        longest = features.longest or tuple(MAX_NGRAM[view] for view in features.views)
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
        """Return the features of a part, [n, f]: sparse for n-grams, dense for SVD components or overlap only."""
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
        """Return the number of fitted values: inverse document frequencies, components, means and scales."""
        count = sum(len(w.idf_) for w in self.weights.values() if w.use_idf)
        count += len(self.corpus.idf) if self.features.overlap else 0
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
        """Combine the rows of first and second texts, [2n, f], into one row per pair."""
        from scipy import sparse

        if not self.features.pairing:
            return grams
        a, b = grams[: grams.shape[0] // 2], grams[grams.shape[0] // 2 :]
        if self.features.pairing == "sides":
            parts = [a, b]
        else:
            parts = [a.multiply(b) if sparse.issparse(a) else a * b, abs(a - b)]
        return sparse.hstack(parts, "csr") if sparse.issparse(a) else np.hstack(parts)
