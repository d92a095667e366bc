"""Masked words: texts without labels, of which some words are hidden and to be found.

Texts are cut into consecutive rows; a row never holds two texts. In training, what is hidden is drawn anew at each
step; in the parts that are measured on, a row's own tokens decide it, so that all methods are asked the same. The head
gives probabilities of all words, for the tokens that are asked about alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import Segment
from intarsia.encoder.windows import windows
from intarsia.errors import DataError, IntarsiaError
from intarsia.tasks.examples import Cloze, Example
from intarsia.tasks.heads import Pooling
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.masking import Vocabulary, hide, of_step, of_text
from intarsia.tasks.metrics import Interval, bootstrap_ratio, check_metric
from intarsia.tasks.task_kind import TaskKind
from intarsia.tasks.word_head import WordHead

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

BEST = 5  # words in an answer
# What is said of each token that is asked about; the first two where it is known.
SAID = np.dtype([("log_probability", "f8"), ("right", "?"), ("words", "i8", (BEST,)), ("probabilities", "f8", (BEST,))])


class Words(TaskKind):
    """How the outputs [asked tokens, words] of masked-word training are to be read."""

    reads_tokens = True
    draws = True

    def head(self, pooling: Pooling) -> WordHead:
        return WordHead()

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        """Rows with some tokens hidden; of training, whole, with the `places` that may be; of a cloze, with the
        character at which each mask stands."""
        vocabulary = Vocabulary.of(encoder)
        limit = min(max_length or encoder.max_length, encoder.max_length)
        if limit <= encoder.tokenizer.num_special_tokens_to_add():
            raise IntarsiaError(f"max_length {limit} leaves no room for words beside the special tokens; raise it.")
        segments: list[Segment] = []
        owners: list[int] = []
        places: list[np.ndarray] = []
        for owner, segment, characters in windows(encoder, [e.text for e in examples], max_length=limit):
            cloze = isinstance(examples[owner], Cloze)
            found = vocabulary.masks(segment) if cloze else vocabulary.may_hide(segment)
            if not len(found):
                continue
            if cloze:
                asked = np.stack([found, np.full_like(found, -1)], 1)
                segment, found = segment._replace(asked=asked), characters[found, 0]
            elif not training:
                segment = hide(segment, found, vocabulary, of_text(segment))
            segments.append(segment)
            owners.append(owner)
            places.append(found)
        _check_found(examples, owners, vocabulary)
        return Inputs(segments, owners, places, vocabulary=vocabulary)

    def at_step(self, inputs: Inputs, rows: Sequence[int], seed: int, step: int) -> list[Segment]:
        assert inputs.vocabulary is not None
        random = of_step(seed, step)
        return [hide(inputs.segments[row], inputs.places[row], inputs.vocabulary, random) for row in rows]

    def read(self, states: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Those of the tokens that are asked about."""
        first = np.cumsum([0, *(len(segment.ids) for segment in segments[:-1])])
        places = [start + _asked(segment)[:, 0] for start, segment in zip(first, segments, strict=True)]
        return states.index_select(0, torch.from_numpy(np.concatenate(places)).to(states.device))

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """[rows, 0]: what is asked for is drawn at each step."""
        return torch.empty(len(inputs.segments), 0)

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """Mean over the tokens that are asked about."""
        return F.cross_entropy(logits, _true(segments).to(logits.device))

    def predictions(self, logits: Tensor, segments: Sequence[Segment]) -> list[np.ndarray]:
        """Of each row, for each token asked about: the log-probability of the true word, whether it is the best, and
        the best ones. The probabilities of all words would not fit into memory for a whole corpus."""
        logits, true = logits.detach(), _true(segments).to(logits.device)
        total = logits.logsumexp(-1)
        best, words = logits.topk(min(BEST, logits.shape[1]))
        of_true = logits.gather(1, true.clamp_min(0)[:, None])[:, 0]
        predictions = np.zeros(len(true), SAID)
        predictions["log_probability"] = (of_true - total).cpu().numpy()
        predictions["right"] = (words[:, 0] == true).cpu().numpy()
        predictions["words"][:, : words.shape[1]] = words.cpu().numpy()
        predictions["probabilities"][:, : words.shape[1]] = (best - total[:, None]).exp().cpu().numpy()
        return np.split(predictions, np.cumsum([len(_asked(segment)) for segment in segments])[:-1])

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        check_metric(metric, self.kind, self.labels)
        counts = np.zeros((len(examples), 2))
        for owner, row in zip(inputs.owners, predictions, strict=True):
            counts[owner] += row["right" if metric == "accuracy" else "log_probability"].sum(), len(row)
        found = bootstrap_ratio(counts[counts[:, 1] > 0], resamples=resamples)
        if metric == "accuracy":
            return found
        value, low, high = (math.exp(mean) for mean in found)
        return Interval(value, low, high) if metric == "likelihood" else Interval(1 / value, 1 / high, 1 / low)

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        assert inputs.vocabulary is not None
        made: list[list[dict[str, Any]]] = [[] for _ in examples]
        for owner, characters, row in zip(inputs.owners, inputs.places, predictions, strict=True):
            for start, one in zip(characters.tolist(), row, strict=True):
                pairs = zip(one["words"].tolist(), one["probabilities"].tolist(), strict=True)
                words = [{"word": inputs.vocabulary.word(word), "probability": p} for word, p in pairs]
                made[owner].append({"start": start, "words": words})
        return [{"masks": masks} for masks in made]

    def asked(self, text: Any, task: str, pairs: bool) -> Example:
        if not isinstance(text, str):
            raise IntarsiaError(f"the task {task!r} fills in the masks of a text: give a text, not {text!r}.")
        return Cloze(text)


def _asked(segment: Segment) -> np.ndarray:
    assert segment.asked is not None
    return segment.asked


def _true(segments: Sequence[Segment]) -> Tensor:
    """[asked tokens] their true ids; -1 where they are not known."""
    return torch.from_numpy(np.concatenate([_asked(segment)[:, 1] for segment in segments]))


def _check_found(examples: Sequence[Example], owners: Sequence[int], vocabulary: Vocabulary) -> None:
    there = set(owners)
    for number, example in enumerate(examples):
        if isinstance(example, Cloze) and number not in there:
            mask = vocabulary.tokenizer.mask_token
            raise IntarsiaError(
                f"there is nothing to fill in in {example.text!r}: write {mask} in the place of a word, as in "
                f"'The capital of France is {mask}.'"
            )
    if not there:
        raise DataError(f"{len(examples):,} texts hold no words that the tokenizer knows. Check the data's language.")
