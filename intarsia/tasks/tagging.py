"""Tagging: a tag for each word of a sentence, such as its part of speech or its place in an entity.

The words are joined by single spaces and tokenized; a word's first sub-word carries its tag, and the head is a linear
layer on every token's state. Sentences longer than a row are cut between words: in training the rest is left out (and
counted), otherwise it goes to further, overlapping rows, so that every word gets a tag.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import Segment, lengths_of
from intarsia.encoder.windows import windows
from intarsia.errors import DataError, IntarsiaError
from intarsia.tasks.entities import entities, has_entities
from intarsia.tasks.examples import Example, Sentence
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.labels import plain
from intarsia.tasks.metrics import Interval, bootstrap_ratio, check_metric
from intarsia.tasks.task_kind import TaskKind

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

NO_TAG = -100  # of tokens that are no word's first
OVERLAP = 4  # neighbouring rows of a long sentence share a part of so many of a row's tokens


class Tags(TaskKind):
    """How the outputs [tokens, tags] of a tagging task are to be read."""

    reads_tokens = True

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        limit = min(max_length or encoder.max_length, encoder.max_length)
        segments: list[Segment] = []
        owners: list[int] = []
        places: list[np.ndarray] = []  # [words, 2] which word, and the token that carries its tag
        left_out = cut = 0
        for number, (segment, word_of) in enumerate(_tokenized(examples, encoder)):
            words = len(_words(examples[number]))
            rows = list(_rows(word_of, words, limit))
            if training and len(rows) > 1:
                last = int(word_of[rows[0][2] - 1])
                rows = [(0, last + 1, rows[0][2], rows[0][3])]
                left_out, cut = left_out + words - last - 1, cut + 1
            for first, end, stop, begin in rows:
                made, first_tokens = _row(segment, word_of, begin, stop, limit)
                keep = (first_tokens[:, 0] >= first) & (first_tokens[:, 0] < end)
                segments.append(made)
                owners.append(number)
                places.append(first_tokens[keep])
        if left_out:
            warnings.warn(
                f"{cut:,} of {len(examples):,} training sentences are longer than {limit} tokens: their last words, "
                f"{left_out:,} in all, are not learned from. A larger max_length takes them in.",
                stacklevel=2,
            )
        return Inputs(segments, owners, places, left_out)

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """[rows, longest row] the number of each token's tag."""
        place = {tag: i for i, tag in enumerate(self.labels)}
        longest = max(len(segment.ids) for segment in inputs.segments)
        targets = np.full((len(inputs.segments), longest), NO_TAG, np.int64)
        for row, (owner, own) in enumerate(zip(inputs.owners, inputs.places, strict=True)):
            tags = _tags(examples[owner])
            targets[row, own[:, 1]] = [place[tags[word]] for word in own[:, 0]]
        return torch.from_numpy(targets)

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """Mean over the words."""
        lengths = lengths_of(segments, logits.device)
        there = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
        own = targets[there]
        total = F.cross_entropy(logits, own, ignore_index=NO_TAG, reduction="sum")
        return total / (own != NO_TAG).sum().clamp_min(1)  # a row may have no word that is tagged

    def probabilities(self, logits: Tensor) -> np.ndarray:
        return torch.softmax(logits.detach().float(), -1).cpu().numpy()

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        check_metric(metric, self.kind, self.labels)
        found = [[tag for tag, _ in one] for one in self.tagged(examples, inputs, predictions)]
        count = _right_words if metric == "accuracy" else _right_entities
        counts = [count(_tags(example), tags) for example, tags in zip(examples, found, strict=True)]
        return bootstrap_ratio(np.array(counts, float), resamples=resamples)

    def tagged(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[list[tuple[str, float]]]:
        """Each word's tag and its probability."""
        unread = "O" if "O" in self.labels else self.labels[0]  # of a word that the tokenizer has nothing for
        found = [[(unread, 0.0)] * len(_words(example)) for example in examples]
        for owner, places, row in zip(inputs.owners, inputs.places, predictions, strict=True):
            chosen = row[places[:, 1]]  # [words, tags]
            for word, best, p in zip(places[:, 0], chosen.argmax(-1), chosen.max(-1), strict=True):
                found[owner][word] = (self.labels[best], float(p))
        return found

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        named = has_entities(self.labels)
        for example, tags in zip(examples, self.tagged(examples, inputs, predictions), strict=True):
            words = _words(example)
            answer: dict[str, Any] = {
                "tags": [{"word": w, "tag": t, "probability": p} for w, (t, p) in zip(words, tags, strict=True)]
            }
            if named:
                answer["entities"] = [
                    {"type": e.type, "start": e.start, "end": e.end, "text": " ".join(words[e.start : e.end])}
                    for e in entities([tag for tag, _ in tags])
                ]
            made.append(answer)
        return made

    def asked(self, text: Any, task: str, pairs: bool) -> Example:
        """Words, or a text whose words are separated by white space."""
        words = tuple(text.split()) if isinstance(text, str) else tuple(text)
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise IntarsiaError(f"the task {task!r} tags words: give a text, or a list of words, not {text!r}.")
        return Sentence.of(words)


def read_sentence(row: Mapping[str, Any], words: str, tags: str, where: str) -> Sentence:
    """A row of a data file: two lists, or two texts with white space between words and between tags."""
    return Sentence.of(read_words(row.get(words), where), _list(row.get(tags), where, tags, len_of=row.get(words)))


def read_words(value: Any, where: str) -> tuple[str, ...]:
    return _list(value, where, "words")


def _list(value: Any, where: str, what: str, len_of: Any = None) -> tuple[str, ...]:
    value = plain(value)
    found = value.split() if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        raise DataError(f"{where}: expected a list of {what}, found {value!r}.")
    for place, one in enumerate(found, 1):
        if not isinstance(one, str) or not one.strip():
            raise DataError(f"{where}: item {place} is {one!r}. Expected a text.")
    if not found:
        raise DataError(f"{where}: the list is empty. Fill it in, or drop the row.")
    if len_of is not None and len(found) != len(read_words(len_of, where)):
        raise DataError(
            f"{where}: {len(read_words(len_of, where))} words and {len(found)} tags. Expected a tag for each word."
        )
    return tuple(found)


def _words(example: Example) -> tuple[str, ...]:
    assert isinstance(example, Sentence)
    return example.words


def _tags(example: Example) -> tuple[str, ...]:
    assert isinstance(example.label, tuple)
    return example.label


def _right_words(gold: Sequence[str], found: Sequence[str]) -> tuple[int, int]:
    return sum(a == b for a, b in zip(gold, found, strict=True)), len(gold)


def _right_entities(gold: Sequence[str], found: Sequence[str]) -> tuple[int, int]:
    """Twice the entities found with both ends and type right, and all of both sides: their sums' ratio is F1."""
    there, predictions = set(entities(gold)), set(entities(found))
    return 2 * len(there & predictions), len(there) + len(predictions)


def _tokenized(examples: Sequence[Example], encoder: Encoder) -> Iterator[tuple[Segment, np.ndarray]]:
    """Each sentence whole, and which word each of its tokens is of [tokens]; -1 for the tokens around them."""
    unknown = encoder.tokenizer.unk_token or "?"
    sentences = [_words(example) for example in examples]
    for (number, segment, characters), words in zip(
        windows(encoder, [" ".join(words) for words in sentences]), sentences, strict=True
    ):
        word_of = _word_of(characters, words)
        missing = set(range(len(words))) - set(word_of.tolist())
        if missing:  # made of characters that the tokenizer drops
            read = tuple(unknown if i in missing else word for i, word in enumerate(words))
            (again,) = windows(encoder, [" ".join(read)])
            segment, word_of = again.segment, _word_of(again.characters, read)
        del number
        yield segment, word_of


def _word_of(characters: np.ndarray, words: Sequence[str]) -> np.ndarray:
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    # By a token's last character: some tokenizers count the space before a word as the word's.
    last = np.maximum(characters[:, 0], characters[:, 1] - 1)
    return np.where(characters[:, 0] < 0, -1, np.searchsorted(starts, last, side="right") - 1)


def _rows(word_of: np.ndarray, words: int, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """(first word, the one after the last, the token after the last, the first token) of each row.

    Neighbours share tokens; of the words in both, each row has those nearer to its middle.
    """
    inner = np.flatnonzero(word_of >= 0)
    if len(word_of) <= limit or not len(inner):
        yield 0, words, len(word_of), 0
        return
    opening, closing = int(inner[0]), len(word_of) - 1 - int(inner[-1])
    room = max(1, limit - opening - closing)
    starts = np.flatnonzero(np.diff(word_of, prepend=-2) != 0)
    starts = starts[word_of[starts] >= 0]  # the first token of each word
    ends = np.append(starts[1:], inner[-1] + 1)
    first, owned = 0, 0  # both count words that have tokens
    while True:
        end = max(first + 1, int(np.searchsorted(ends, starts[first] + room, side="right")))
        if end >= len(starts):
            yield owned, words, int(ends[-1]), int(starts[first])
            return
        following = int(np.searchsorted(starts, ends[end - 1] - room // OVERLAP, side="left"))
        following = min(max(following, first + 1), end)
        middle = (following + end + 1) // 2
        until = int(word_of[starts[middle]])
        yield owned, until, int(ends[end - 1]), int(starts[first])
        first, owned = following, until


def _row(segment: Segment, word_of: np.ndarray, begin: int, stop: int, limit: int) -> tuple[Segment, np.ndarray]:
    """The tokens from `begin` to before `stop` with those that stand around a text, and the first token of each word
    [words, 2]. A single word that is longer than a row is cut."""
    inner = np.flatnonzero(word_of >= 0)
    if len(word_of) <= limit or not len(inner):
        chosen = np.arange(min(len(word_of), limit))
    else:
        opening, closing = np.arange(inner[0]), np.arange(inner[-1] + 1, len(word_of))
        middle = np.arange(begin, stop)[: max(1, limit - len(opening) - len(closing))]
        chosen = np.concatenate([opening, middle, closing])
    ids = np.asarray(segment.ids)[chosen]
    types = None if segment.types is None else array("b", np.asarray(segment.types)[chosen].tolist())
    own = word_of[chosen]
    words, tokens = np.unique(own, return_index=True)
    first = np.stack([words, tokens], 1)[words >= 0]
    return Segment(array("i", ids.tolist()), types), first
