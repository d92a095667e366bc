"""Masked words: texts without labels, in which some tokens are hidden and must be predicted.

Texts are cut into consecutive rows; a row never holds two texts. In training the hidden tokens are drawn anew at each
step. In dev and test a row's own tokens determine them, so all methods predict the same tokens. The head gives
probabilities over the vocabulary, for hidden tokens only.
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
from intarsia.tasks.heads import Hidden, Pooling
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.intervals import FEW, widened
from intarsia.tasks.masking import Vocabulary, hide, row_generator, step_generator
from intarsia.tasks.metrics import Interval, bootstrap_ratio, check_metric
from intarsia.tasks.task_kind import TaskKind
from intarsia.tasks.word_head import WordHead

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

BEST = 5  # words in an answer
# The prediction for one hidden token. The first two fields are meaningful where the true token is known.
PREDICTION = np.dtype(
    [("log_probability", "f8"), ("right", "?"), ("words", "i8", (BEST,)), ("probabilities", "f8", (BEST,))]
)


class Words(TaskKind):
    """The task kind `words`. The head reads only the hidden tokens and gives a logit per word [hidden, words].

    `Segment.asked` [hidden tokens, 2] holds the index and the true id of each hidden token; -1 if the id is unknown.
    """

    reads_tokens = True
    draws = True

    def head(self, pooling: Pooling, hidden: Hidden | None = None) -> WordHead:
        return WordHead()

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        """Rows of at most `max_length` tokens. `places` of a row depends on the example:

        - training: nothing is hidden yet; the tokens that may be hidden (`at_step` draws from them);
        - dev and test: tokens are hidden; the tokens that could be;
        - `Cloze`: the masks of the text count as hidden; the character of each mask in the text.
        """
        vocabulary = Vocabulary.of(encoder)
        limit = min(max_length or encoder.max_length, encoder.max_length)
        if limit <= encoder.tokenizer.num_special_tokens_to_add():
            raise IntarsiaError(f"max_length {limit} leaves no room for words between the special tokens; raise it.")
        segments: list[Segment] = []
        owners: list[int] = []
        places: list[np.ndarray] = []
        for owner, segment, characters in windows(encoder, [e.text for e in examples], max_length=limit):
            cloze = isinstance(examples[owner], Cloze)
            tokens = vocabulary.masks(segment) if cloze else vocabulary.may_hide(segment)
            if not len(tokens):
                continue
            if cloze:
                hidden = np.stack([tokens, np.full_like(tokens, -1)], 1)
                segment, row_places = segment._replace(asked=hidden), characters[tokens, 0]
            else:
                row_places = tokens
                if not training:
                    segment = hide(segment, tokens, vocabulary, row_generator(segment))
            segments.append(segment)
            owners.append(owner)
            places.append(row_places)
        _check_something_hidden(examples, owners, vocabulary)
        return Inputs(segments, owners, places, vocabulary=vocabulary)

    def at_step(self, inputs: Inputs, rows: Sequence[int], seed: int, step: int) -> list[Segment]:
        """The given rows with newly drawn hidden tokens."""
        assert inputs.vocabulary is not None
        random = step_generator(seed, step)
        return [hide(inputs.segments[row], inputs.places[row], inputs.vocabulary, random) for row in rows]

    def read(self, states: Tensor, segments: Sequence[Segment]) -> Tensor:
        """The states of the hidden tokens, [N, d] → [hidden, d]."""
        first = np.cumsum([0, *(len(segment.ids) for segment in segments[:-1])])
        places = [start + _hidden(segment)[:, 0] for start, segment in zip(first, segments, strict=True)]
        return states.index_select(0, torch.from_numpy(np.concatenate(places)).to(states.device))

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """Empty [R, 0]: the hidden tokens are drawn at each step, and `loss` takes them from the segments."""
        return torch.empty(len(inputs.segments), 0)

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """The mean over the hidden tokens: logits [hidden, words] → a scalar."""
        return F.cross_entropy(logits, _true_ids(segments).to(logits.device))

    def predictions(self, logits: Tensor, segments: Sequence[Segment]) -> list[np.ndarray]:
        """One array of `PREDICTION` per row, with one item per hidden token.

        It keeps the `BEST` words only: the probabilities of all words would not fit into memory for a whole corpus.
        """
        logits, true = logits.detach(), _true_ids(segments).to(logits.device)
        total = logits.logsumexp(-1)
        best, words = logits.topk(min(BEST, logits.shape[1]))
        true_logits = logits.gather(1, true.clamp_min(0)[:, None])[:, 0]
        predictions = np.zeros(len(true), PREDICTION)
        predictions["log_probability"] = (true_logits - total).cpu().numpy()
        predictions["right"] = (words[:, 0] == true).cpu().numpy()
        predictions["words"][:, : words.shape[1]] = words.cpu().numpy()
        predictions["probabilities"][:, : words.shape[1]] = (best - total[:, None]).exp().cpu().numpy()
        return np.split(predictions, np.cumsum([len(_hidden(segment)) for segment in segments])[:-1])

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        """Accuracy, likelihood or perplexity over the hidden tokens, with its bootstrap interval over texts."""
        check_metric(metric, self.kind, self.labels)
        counts = np.zeros((len(examples), 2))
        for owner, row in zip(inputs.owners, predictions, strict=True):
            counts[owner] += row["right" if metric == "accuracy" else "log_probability"].sum(), len(row)
        counts = counts[counts[:, 1] > 0]
        found = bootstrap_ratio(counts, resamples=resamples)
        if metric == "accuracy":
            return widened(found, len(counts)) if resamples else found
        few = bool(resamples) and len(counts) < FEW
        value, low, high = (math.exp(mean) for mean in found)
        likelihood = metric == "likelihood"
        bounds = Interval(value, low, high) if likelihood else Interval(1 / value, 1 / high, 1 / low)
        return bounds.marked(few)

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """One answer per text: for each mask its first character and the best words."""
        assert inputs.vocabulary is not None
        masks: list[list[dict[str, Any]]] = [[] for _ in examples]  # per text
        for owner, characters, row in zip(inputs.owners, inputs.places, predictions, strict=True):
            for start, prediction in zip(characters.tolist(), row, strict=True):
                pairs = zip(prediction["words"].tolist(), prediction["probabilities"].tolist(), strict=True)
                words = [{"word": inputs.vocabulary.word(word), "probability": p} for word, p in pairs]
                masks[owner].append({"start": start, "words": words})
        return [{"masks": own} for own in masks]

    def parse_request(self, text: Any, task: str, pairs: bool) -> Example:
        """A text with mask tokens in place of words."""
        if not isinstance(text, str):
            raise IntarsiaError(f"the task {task!r} fills in the masks of a text: give a text, not {text!r}.")
        return Cloze(text)


def _hidden(segment: Segment) -> np.ndarray:
    """The index and true id of each hidden token [hidden, 2]."""
    assert segment.asked is not None
    return segment.asked


def _true_ids(segments: Sequence[Segment]) -> Tensor:
    """The true ids of the hidden tokens [hidden]; -1 if unknown."""
    return torch.from_numpy(np.concatenate([_hidden(segment)[:, 1] for segment in segments]))


def _check_something_hidden(examples: Sequence[Example], owners: Sequence[int], vocabulary: Vocabulary) -> None:
    """Raise if a request has no mask, or if no text has a token that may be hidden."""
    with_rows = set(owners)
    for number, example in enumerate(examples):
        if isinstance(example, Cloze) and number not in with_rows:
            mask = vocabulary.tokenizer.mask_token
            raise IntarsiaError(
                f"{example.text!r} has no mask to fill in: write {mask} in place of a word, as in "
                f"'The capital of France is {mask}.'"
            )
    if not with_rows:
        raise DataError(
            f"none of the {len(examples):,} texts has a word that the tokenizer knows. Check the data's language."
        )
