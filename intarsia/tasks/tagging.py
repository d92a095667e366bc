"""Tagging: a tag for each word of a sentence, such as its part of speech or its entity tag.

The words are joined by single spaces and tokenized. The head is a linear layer on every token's state; the first
sub-word of each word predicts its tag. Sentences longer than a row are cut between words. In training, the words after
the cut are left out (and counted). Otherwise they go to further overlapping rows, and every word gets a tag.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import Segment, lengths_of
from intarsia.encoder.windows import windows
from intarsia.errors import DataError, IntarsiaError
from intarsia.formatting import shown
from intarsia.tasks.entities import entities, has_entities
from intarsia.tasks.examples import Example, Sentence
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.intervals import of_function, widened
from intarsia.tasks.labels import plain
from intarsia.tasks.metrics import Interval, bootstrap_ratio, check_metric
from intarsia.tasks.own_metric import OwnMetric
from intarsia.tasks.task_kind import TaskKind

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

NO_TAG = -100  # the target of tokens that are not the first of a word
OVERLAP = 4  # neighbouring rows of a long sentence share 1/OVERLAP of a row's tokens


class _RowBounds(NamedTuple):
    """Which words of a sentence a row tags, and which tokens it has. Ends are exclusive."""

    first_word: int
    end_word: int
    first_token: int
    end_token: int


class Tags(TaskKind):
    """The task kind `tags`. The head gives one logit per tag and token [N, tags]."""

    reads_tokens = True

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        """One row per sentence; a sentence that is too long has several rows, or one cut row in training."""
        limit = min(max_length or encoder.max_length, encoder.max_length)
        segments: list[Segment] = []
        owners: list[int] = []
        places: list[np.ndarray] = []  # per row [words, 2]: the word's number and its first token
        left_out = cut = 0
        for number, (segment, word_of) in enumerate(_tokenized(examples, encoder)):
            words = len(_words(examples[number]))
            rows = list(_row_bounds(word_of, words, limit))
            if training and len(rows) > 1:
                end_word = int(word_of[rows[0].end_token - 1]) + 1
                rows = [rows[0]._replace(end_word=end_word)]
                left_out, cut = left_out + words - end_word, cut + 1
            for bounds in rows:
                row, first_tokens = _row(segment, word_of, bounds.first_token, bounds.end_token, limit)
                keep = (first_tokens[:, 0] >= bounds.first_word) & (first_tokens[:, 0] < bounds.end_word)
                segments.append(row)
                owners.append(number)
                places.append(first_tokens[keep])
        if left_out:
            warnings.warn(
                f"{cut:,} of {len(examples):,} training sentences are longer than {limit} tokens: their last words, "
                f"{left_out:,} in all, are left out of training. Raise max_length to include them.",
                stacklevel=2,
            )
        return Inputs(segments, owners, places, left_out)

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """The number of each token's tag [R, longest row]; `NO_TAG` for tokens that are not the first of a word."""
        tag_number = {tag: i for i, tag in enumerate(self.labels)}
        longest = max(len(segment.ids) for segment in inputs.segments)
        targets = np.full((len(inputs.segments), longest), NO_TAG, np.int64)
        for row, (owner, places) in enumerate(zip(inputs.owners, inputs.places, strict=True)):
            tags = _tags(examples[owner])
            targets[row, places[:, 1]] = [tag_number[tags[word]] for word in places[:, 0]]
        return torch.from_numpy(targets)

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """The mean over the tagged words: logits [N, tags], targets [R, longest row] → a scalar."""
        lengths = lengths_of(segments, logits.device)
        inside = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
        by_token = targets[inside]  # [N]
        total = F.cross_entropy(logits, by_token, ignore_index=NO_TAG, reduction="sum")
        return total / (by_token != NO_TAG).sum().clamp_min(1)  # a batch may have no tagged word

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """Probabilities of the tags [N, tags]."""
        return torch.softmax(logits.detach().float(), -1).cpu().numpy()

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        """Accuracy over words, or F1 over entities, with its bootstrap interval over sentences."""
        check_metric(metric, self.kind, self.labels)
        found = [[tag for tag, _ in sentence] for sentence in self.tagged(examples, inputs, predictions)]
        if isinstance(metric, OwnMetric):
            gold = [[*_tags(example)] for example in examples]
            own = Interval(*metric.interval(gold, found, resamples, 0, 0.95))
            return of_function(own, len(examples)) if resamples else own
        count = _count_right_words if metric == "accuracy" else _count_right_entities
        counts = [count(_tags(example), tags) for example, tags in zip(examples, found, strict=True)]
        measured = bootstrap_ratio(np.array(counts, float), resamples=resamples)
        return widened(measured, sum(with_any > 0 for _, with_any in counts)) if resamples else measured

    def tagged(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[list[tuple[str, float]]]:
        """Each word's tag and its probability, sentence by sentence."""
        default = "O" if "O" in self.labels else self.labels[0]  # for a word that has no token
        found = [[(default, 0.0)] * len(_words(example)) for example in examples]
        for owner, places, row in zip(inputs.owners, inputs.places, predictions, strict=True):
            chosen = row[places[:, 1]]  # [words, tags]
            for word, best, p in zip(places[:, 0], chosen.argmax(-1), chosen.max(-1), strict=True):
                found[owner][word] = (self.labels[best], float(p))
        return found

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """One answer per sentence: each word's tag and, for entity tags, the entities."""
        answers: list[dict[str, Any]] = []
        with_entities = has_entities(self.labels)
        for example, tags in zip(examples, self.tagged(examples, inputs, predictions), strict=True):
            words = _words(example)
            answer: dict[str, Any] = {
                "tags": [{"word": w, "tag": t, "probability": p} for w, (t, p) in zip(words, tags, strict=True)]
            }
            if with_entities:
                answer["entities"] = [
                    {"type": e.type, "start": e.start, "end": e.end, "text": " ".join(words[e.start : e.end])}
                    for e in entities([tag for tag, _ in tags])
                ]
            answers.append(answer)
        return answers

    def parse_request(self, text: Any, task: str, pairs: bool) -> Example:
        """A sentence, given as a list of words or as a text that is split at white space."""
        words = tuple(text.split()) if isinstance(text, str) else text
        known = isinstance(words, list | tuple) and bool(words)
        if not known or not all(isinstance(word, str) and word.strip() for word in words):
            raise IntarsiaError(f"the task {task!r} tags words: give a text, or a list of words, not {text!r}.")
        return Sentence.of(tuple(words))


def read_sentence(row: Mapping[str, Any], words: str, tags: str, where: str) -> Sentence:
    """The sentence of one data row. Words and tags are lists, or texts that are split at white space."""
    return Sentence.of(read_words(row.get(words), where), _strings(row.get(tags), where, tags, words=row.get(words)))


def read_words(value: Any, where: str) -> tuple[str, ...]:
    """The words of a list, or of a text that is split at white space."""
    return _strings(value, where, "words")


def _strings(value: Any, where: str, name: str, words: Any = None) -> tuple[str, ...]:
    """The items of a list or a text, checked; with `words` given, there must be one item per word."""
    value = plain(value)
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise DataError(f"{where}: expected a list of {name}, found {shown(value)}.")
    for number, item in enumerate(items, 1):
        if not isinstance(item, str) or not item.strip():
            raise DataError(f"{where}: item {number} is {shown(item)}. Expected a text.")
    if not items:
        raise DataError(f"{where}: the list is empty. Fill it in, or drop the row.")
    if words is not None and len(items) != len(read_words(words, where)):
        raise DataError(
            f"{where}: {len(read_words(words, where))} words and {len(items)} tags. Expected a tag for each word."
        )
    return tuple(items)


def _words(example: Example) -> tuple[str, ...]:
    assert isinstance(example, Sentence)
    return example.words


def _tags(example: Example) -> tuple[str, ...]:
    assert isinstance(example.label, tuple)
    return example.label


def _count_right_words(gold: Sequence[str], found: Sequence[str]) -> tuple[int, int]:
    """The number of words with the right tag, and the number of words."""
    return sum(a == b for a, b in zip(gold, found, strict=True)), len(gold)


def _count_right_entities(gold: Sequence[str], found: Sequence[str]) -> tuple[int, int]:
    """2 · (entities with the right start, end and type), and (true + predicted entities). F1 is the ratio of their
    sums."""
    true, predicted = set(entities(gold)), set(entities(found))
    return 2 * len(true & predicted), len(true) + len(predicted)


def _tokenized(examples: Sequence[Example], encoder: Encoder) -> Iterator[tuple[Segment, np.ndarray]]:
    """Each sentence as one uncut segment, and the word number of each token [tokens]; -1 for special tokens."""
    unknown = encoder.tokenizer.unk_token or "?"
    sentences = [_words(example) for example in examples]
    for (_, segment, characters), words in zip(
        windows(encoder, [" ".join(words) for words in sentences]), sentences, strict=True
    ):
        word_of = _word_of(characters, words)
        missing = set(range(len(words))) - set(word_of.tolist())
        if missing:  # words made only of characters that the tokenizer drops
            replaced = tuple(unknown if i in missing else word for i, word in enumerate(words))
            (window,) = windows(encoder, [" ".join(replaced)])
            segment, word_of = window.segment, _word_of(window.characters, replaced)
        yield segment, word_of


def _word_of(characters: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """The word number of each token [tokens], from its characters [tokens, 2] in the joined sentence."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    # A token's last character decides: some tokenizers count the space before a word as part of the word.
    last = np.maximum(characters[:, 0], characters[:, 1] - 1)
    return np.where(characters[:, 0] < 0, -1, np.searchsorted(starts, last, side="right") - 1)


def _row_bounds(word_of: np.ndarray, words: int, limit: int) -> Iterator[_RowBounds]:
    """The bounds of each row of a sentence.

    Neighbouring rows share tokens. A shared word is tagged by the row in which it is nearer to the middle.
    """
    inner = np.flatnonzero(word_of >= 0)
    if len(word_of) <= limit or not len(inner):
        yield _RowBounds(0, words, 0, len(word_of))
        return
    opening, closing = int(inner[0]), len(word_of) - 1 - int(inner[-1])
    room = max(1, limit - opening - closing)
    starts = np.flatnonzero(np.diff(word_of, prepend=-2) != 0)
    starts = starts[word_of[starts] >= 0]  # the first token of each word
    ends = np.append(starts[1:], inner[-1] + 1)
    first, first_tagged = 0, 0  # the row's first word among those with tokens, and the first word that it tags
    while True:
        end = max(first + 1, int(np.searchsorted(ends, starts[first] + room, side="right")))
        if end >= len(starts):
            yield _RowBounds(first_tagged, words, int(starts[first]), int(ends[-1]))
            return
        following = int(np.searchsorted(starts, ends[end - 1] - room // OVERLAP, side="left"))
        following = min(max(following, first + 1), end)
        middle = (following + end + 1) // 2
        end_tagged = int(word_of[starts[middle]])
        yield _RowBounds(first_tagged, end_tagged, int(starts[first]), int(ends[end - 1]))
        first, first_tagged = following, end_tagged


def _row(segment: Segment, word_of: np.ndarray, first: int, end: int, limit: int) -> tuple[Segment, np.ndarray]:
    """The row of the tokens `first` to `end` (exclusive) with the special tokens around them, and [words, 2] the number
    and first token of each word. A word that is longer than a row is cut."""
    inner = np.flatnonzero(word_of >= 0)
    if len(word_of) <= limit or not len(inner):
        chosen = np.arange(min(len(word_of), limit))
    else:
        opening, closing = np.arange(inner[0]), np.arange(inner[-1] + 1, len(word_of))
        middle = np.arange(first, end)[: max(1, limit - len(opening) - len(closing))]
        chosen = np.concatenate([opening, middle, closing])
    ids = np.asarray(segment.ids)[chosen]
    types = None if segment.types is None else array("b", np.asarray(segment.types)[chosen].tolist())
    words, first_tokens = np.unique(word_of[chosen], return_index=True)
    places = np.stack([words, first_tokens], 1)[words >= 0]
    return Segment(array("i", ids.tolist()), types), places
